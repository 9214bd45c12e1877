"""Changes one call or adds one statement in Python source, and leaves everything else as it is.

In: source text, a line, what to change. Out: the new text, or a sentence why it cannot be done. libcst
keeps comments, quotes and line breaks; a line number from a running frame finds the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from ..model.run import JsonValue

_LOADER_ORDER = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
)
"""Positional parameters of DataLoader, from 1.0 on."""
_ZERO_GRAD_ORDER = ("set_to_none",)


class CannotEditError(Exception):
    """The source does not show exactly what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    matches: Callable[[str], bool]
    keywords: Mapping[str, JsonValue]
    drop: Sequence[str] = ()


def set_keywords(
    source: str,
    line: int,
    *,
    matches: Callable[[str], bool],
    keywords: Mapping[str, JsonValue],
    drop: Sequence[str] = (),
    each: bool = False,
) -> str:
    """Return the source with keywords set in the call that stands at a line.

    `matches` tells by its last name whether a call is meant, like "DataLoader"; with `each` several at that
    line are. `drop` are keywords that contradict the new ones.

    Raises:
        CannotEditError: there is no such call there, there are several, or it is given `**options`.
    """
    wrapper = MetadataWrapper(parsed(source))
    editor = _CallEditor(line, _Change(matches=matches, keywords=keywords, drop=drop))
    changed = wrapper.visit(editor)
    if editor.problem:
        raise CannotEditError(editor.problem)
    if editor.found != 1 and not (each and editor.found):
        what = "no such call" if editor.found == 0 else f"{editor.found} such calls"
        raise CannotEditError(f"line {line} has {what}")
    return changed.code


def drop_statement(source: str, line: int, *, matches: Callable[[str], bool]) -> str:
    """Return the source without the statement at a line, which is nothing but one call.

    Raises:
        CannotEditError: the call is part of something larger, or the only statement of its block.
    """
    wrapper = MetadataWrapper(parsed(source))
    editor = _StatementDropper(line, matches)
    changed = wrapper.visit(editor)
    if editor.problem or not editor.found:
        raise CannotEditError(editor.problem or f"line {line} has no such statement")
    return changed.code


def add_before_imports(source: str, statement: str, *, needs: str) -> str:
    """Return the source with a statement before its imports of anything but Python's own modules.

    `needs`, a module of Python's own that it uses, is imported with it where it is not yet.
    """
    module = parsed(source)
    place, known = 0, False
    for i, line in enumerate(module.body):
        parts = line.body if isinstance(line, cst.SimpleStatementLine) else ()
        imports = [part for part in parts if isinstance(part, (cst.Import, cst.ImportFrom))]
        docstring = i == 0 and isinstance(parts[0] if parts else None, cst.Expr)
        if not docstring and not (imports and all(_is_pythons_own(part) for part in imports)):
            break
        place = i + 1
        known = known or any(
            _binds(alias, needs) for part in imports if isinstance(part, cst.Import) for alias in part.names
        )
    lines = [*([] if known else [f"import {needs}"]), statement]
    added = [cst.parse_statement(f"{line}\n") for line in lines]
    body = [*module.body[:place], *added, *module.body[place:]]
    return module.with_changes(body=body).code


def _is_pythons_own(part: cst.Import | cst.ImportFrom) -> bool:
    """Say whether an import is of the standard library, which imports no torch."""
    names = [alias.name for alias in part.names] if isinstance(part, cst.Import) else [part.module]
    if isinstance(part, cst.ImportFrom) and (part.relative or part.module is None):
        return False
    code = cst.Module([]).code_for_node
    return all(name is not None and code(name).split(".")[0] in sys.stdlib_module_names for name in names)


def add_after_imports(source: str, statements: Sequence[str], *, needs: str = "torch") -> str:
    """Return the source with statements after the imports at its top.

    `needs`, a module that they use, is imported with them where its own name is not.
    """
    module = parsed(source)
    last, known = -1, False
    for i, statement in enumerate(module.body):
        if not isinstance(statement, (cst.SimpleStatementLine, cst.If, cst.Try)):
            # What is imported further down comes after things have begun to run.
            break
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for part in statement.body:
            docstring = i == 0 and isinstance(part, cst.Expr) and isinstance(part.value, cst.BaseString)
            if docstring or isinstance(part, (cst.Import, cst.ImportFrom)):
                last = i
            if isinstance(part, cst.Import):
                known = known or any(_binds(alias, needs) for alias in part.names)
    lines = [*([] if known else [f"import {needs}"]), *statements]
    added = [cst.parse_statement(f"{line}\n") for line in lines]
    if not added:
        return source
    first = added[0]
    if isinstance(first, cst.SimpleStatementLine) and last >= 0:
        added[0] = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return module.with_changes(body=[*module.body[: last + 1], *added, *module.body[last + 1 :]]).code


def _binds(alias: cst.ImportAlias, name: str) -> bool:
    """Say whether an import makes this name known, as `import torch.nn` does with torch."""
    return cst.Module([]).code_for_node(alias.name).split(".")[0] == name and alias.asname is None


def parsed(source: str) -> cst.Module:
    """Return the syntax tree of a whole file.

    Raises:
        CannotEditError: it is not Python as this libcst knows it.
    """
    try:
        return cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise CannotEditError(f"it cannot be parsed: {error.message}") from None


def _last_name(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Name):
        return node.value
    return node.attr.value if isinstance(node, cst.Attribute) else ""


class _CallEditor(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, line: int, change: _Change) -> None:
        super().__init__()
        self.found = 0
        self.problem = ""
        self._line = line
        self._change = change

    def leave_Call(  # noqa: N802 - libcst's name
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        span = self.get_metadata(PositionProvider, original_node)
        name = _last_name(original_node.func)
        if not (span.start.line <= self._line <= span.end.line) or not self._change.matches(name):
            return updated_node
        self.found += 1
        unpacked = next((arg.star for arg in updated_node.args if arg.star), "")
        if unpacked:
            what = "**options" if unpacked == "**" else "*arguments"
            self.problem = f"{name}() at line {self._line} gets {what}, which may contain the keyword"
            return updated_node
        return self._changed(updated_node, name)

    def _changed(self, call: cst.Call, name: str) -> cst.Call:
        args = [arg for arg in call.args if arg.keyword is None or arg.keyword.value not in self._change.drop]
        if args and len(args) < len(call.args):
            args[-1] = args[-1].with_changes(comma=call.args[-1].comma)
        order: Sequence[str] = _ZERO_GRAD_ORDER if name == "zero_grad" else ()
        if "Loader" in name:
            order = _LOADER_ORDER
        for keyword, value in self._change.keywords.items():
            expression = cst.parse_expression(repr(value))
            for i, arg in enumerate(args):
                named = arg.keyword.value if arg.keyword is not None else ""
                if arg.keyword is None and not arg.star and i < len(order):
                    named = order[i]
                if named == keyword:
                    args[i] = arg.with_changes(value=expression)
                    break
            else:
                args = _appended(args, keyword, expression, call)
        return call.with_changes(args=args)


def _appended(args: list[cst.Arg], keyword: str, value: cst.BaseExpression, call: cst.Call) -> list[cst.Arg]:
    """Return the arguments with one more, laid out as the others are."""
    new = cst.Arg(
        value=value,
        keyword=cst.Name(keyword),
        equal=cst.AssignEqual(
            whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
        ),
    )
    if not args:
        return [new]
    last = args[-1]
    separator = cst.Comma(whitespace_after=_between(args, call))
    if isinstance(last.comma, cst.Comma) and isinstance(last.comma.whitespace_after, _Lines):
        # A trailing comma: what is written behind it stays with its own argument.
        behind = last.comma.whitespace_after
        between = separator.whitespace_after
        if isinstance(between, _Lines):
            separator = cst.Comma(whitespace_after=behind.with_changes(last_line=between.last_line))
        new = new.with_changes(comma=last.comma.with_changes(whitespace_after=_bare(behind)))
    else:
        new = new.with_changes(comma=last.comma, whitespace_after_arg=last.whitespace_after_arg)
    last = last.with_changes(comma=separator, whitespace_after_arg=cst.SimpleWhitespace(""))
    return [*args[:-1], last, new]


_Lines = cst.ParenthesizedWhitespace


def _between(args: list[cst.Arg], call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """Return what stands between two arguments of this call: a blank, or a new line and its indent."""
    if len(args) >= 2 and isinstance(args[-2].comma, cst.Comma):
        return _bare(args[-2].comma.whitespace_after)
    if isinstance(call.whitespace_before_args, _Lines):
        return _bare(call.whitespace_before_args)
    return cst.SimpleWhitespace(" ")


def _bare(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """Return white space without the comments and empty lines in it."""
    if not isinstance(space, _Lines):
        return space
    line = cst.TrailingWhitespace(whitespace=cst.SimpleWhitespace(""), newline=space.first_line.newline)
    return space.with_changes(first_line=line, empty_lines=[])


class _StatementDropper(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, line: int, matches: Callable[[str], bool]) -> None:
        super().__init__()
        self.found = False
        self.problem = ""
        self._line = line
        self._matches = matches

    def leave_SimpleStatementLine(  # noqa: N802 - libcst's name
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.RemovalSentinel:
        span = self.get_metadata(PositionProvider, original_node)
        if not span.start.line <= self._line <= span.end.line:
            return updated_node
        body = original_node.body
        only = body[0] if len(body) == 1 else None
        if not isinstance(only, cst.Expr) or not isinstance(only.value, cst.Call):
            self.problem = f"line {self._line} has more than the call"
            return updated_node
        if not self._matches(_last_name(only.value.func)):
            return updated_node
        self.found = True
        return cst.RemoveFromParent()

    def leave_IndentedBlock(  # noqa: N802 - libcst's name
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.BaseSuite:
        if original_node.body and not updated_node.body:
            return updated_node.with_changes(body=[cst.SimpleStatementLine(body=[cst.Pass()])])
        return updated_node
