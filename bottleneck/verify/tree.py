"""A parsed source file, and what the edits look for in it.

In: source text. Out: libcst's nodes with their parents and lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from .syntax import parsed

_Kind = TypeVar("_Kind", bound=cst.CSTNode)


@dataclass(frozen=True, slots=True)
class Tree:
    """A parsed file, with parents and lines of its nodes."""

    module: cst.Module
    parents: Mapping[cst.CSTNode, cst.CSTNode]
    places: Mapping[cst.CSTNode, Any]

    @classmethod
    def of(cls, text: str) -> Tree:
        """Parse a file.

        Raises:
            CannotEditError: it is not Python as this libcst knows it.
        """
        wrapper = MetadataWrapper(parsed(text))
        found = wrapper.resolve_many([ParentNodeProvider, PositionProvider])
        parents: Any = found[ParentNodeProvider]
        return cls(wrapper.module, parents, found[PositionProvider])

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the first and last line of a node."""
        place = self.places[node]
        return place.start.line, place.end.line

    def code(self, node: cst.CSTNode) -> str:
        """Return a node as it is written."""
        return self.module.code_for_node(node)

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def within_function(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around a node in its own function, the nearest first."""
        for up in self.above(node):
            if isinstance(up, (cst.FunctionDef, cst.ClassDef, cst.Lambda, cst.BaseComp)):
                return
            yield up

    def scope(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """Return the function or module whose names a node uses."""
        found = next(up for up in self.above(node) if isinstance(up, (cst.FunctionDef, cst.Module)))
        assert isinstance(found, (cst.FunctionDef, cst.Module))
        return found

    def calls_at(self, line: int) -> list[cst.Call]:
        """Return the calls that a line is part of."""
        spans = ((call, *self.lines(call)) for call in calls(self.module))
        return [call for call, first, last in spans if first <= line <= last]

    def with_body(self, block: cst.CSTNode, body: Sequence[cst.BaseStatement]) -> str:
        """Return the source with other statements in one of its blocks."""
        if block is self.module:
            return self.module.with_changes(body=body).code
        changed = self.module.deep_replace(block, block.with_changes(body=body))
        assert isinstance(changed, cst.Module)
        return changed.code


def parts(node: cst.CSTNode, kind: type[_Kind]) -> list[_Kind]:
    """Return a node and all below it that are of a kind, in the order of the source."""

    class Finder(cst.CSTVisitor):
        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, kind):
                found.append(node)
            return True

    found: list[_Kind] = []
    node.visit(Finder())
    return found


def calls(node: cst.CSTNode) -> list[cst.Call]:
    """Return all calls in a node."""
    return parts(node, cst.Call)


def statements(block: cst.CSTNode) -> Sequence[cst.BaseStatement]:
    """Return the statements of a block, or of a module."""
    assert isinstance(block, (cst.IndentedBlock, cst.Module))
    body: Sequence[cst.BaseStatement] = block.body
    return body
