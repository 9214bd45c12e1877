"""Python loops inside a step: over samples, heads, time steps, tasks or parameters.

In: sampled stacks of the training thread, as lines of the user's frames, and the lines of the update.
Out: `LoopTime`s: which loop ran in how many of the samples of each part of the training loop.

A line that runs once and a line that runs a thousand times look alike in a sample. The source tells
them apart: the outermost loop around a sampled line that is not the training loop itself is one. The
training loop holds the update; so does a loop over epochs. A loop that passes a value through a list
of layers (`for layer in layers: x = layer(x)`) is the depth of a model and not counted either, nor is one
over the groups of an optimizer. Source is read when all has been captured, never while steps are timed.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ...model.run import LoopTime, SourceSite

Chain: TypeAlias = tuple[tuple[str, int, str], ...]
"""(file, line, function) of the user's frames, the outermost first."""

_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_JOINS = (".cat", ".concat", ".concatenate", ".hstack", ".vstack")
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_YIELDS = (ast.Yield, ast.YieldFrom)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS_KEPT = 6


@dataclass(frozen=True, slots=True)
class _Found:
    """One loop of a file."""

    first: int
    begins: int
    """The first line that each round runs."""
    last: int
    carried: bool
    """A round reads what the round before it made."""
    form: bool
    """Of a model or an optimizer: a value passes through the layers that it goes over, or these are groups of
    parameters, mostly one."""
    yields: bool = False
    """Each round hands something out, and goes on when it is asked for more: a loop of who asks."""


def find_loops(
    counts: Mapping[tuple[str, Chain], int], *, updates: Iterable[tuple[str, int]]
) -> list[LoopTime]:
    """Return the loops that sampled stacks stand in, the most frequent first.

    `counts` has the samples by part of the training loop and stack. `updates` are the frames that led to an
    update: a loop around one is no loop in a step.
    """
    held = list(updates)
    of: dict[str, int] = {}
    seen: dict[tuple[str, int], dict[str, int]] = {}
    known: dict[tuple[str, int], tuple[_Found, str]] = {}
    files: dict[str, list[list[_Found]]] = {}
    for (part, chain), count in counts.items():
        of[part] = of.get(part, 0) + count
        found = _outermost(chain, held, files)
        if found is None:
            continue
        (file, _, function), loop = found
        key = (file, loop.first)
        known[key] = (loop, function)
        parts = seen.setdefault(key, {})
        parts[part] = parts.get(part, 0) + count
    out = [
        LoopTime(
            site=SourceSite(file=file, line=first, function=known[file, first][1]),
            begins=known[file, first][0].begins,
            last_line=known[file, first][0].last,
            carried=known[file, first][0].carried,
            seen=parts,
            of=dict(of),
        )
        for (file, first), parts in seen.items()
    ]
    return sorted(out, key=lambda loop: -sum(loop.seen.values()))[:LOOPS_KEPT]


def _outermost(
    chain: Chain, updates: list[tuple[str, int]], files: dict[str, list[list[_Found]]]
) -> tuple[tuple[str, int, str], _Found] | None:
    for frame in chain:
        file, line, _ = frame
        if file not in files:
            files[file] = _scopes(file)
        for scope in files[file]:
            # Outer loops come before the loops inside them.
            for loop in scope:
                if not loop.begins <= line <= loop.last or loop.form:
                    continue
                if not any(name == file and loop.first <= at <= loop.last for name, at in updates):
                    return frame, loop
    return None


def loops_around(file: str, line: int, *, since: int) -> tuple[tuple[int, int], ...]:
    """Return first and last line of the loops around a line, the outermost first.

    Loops around the function, which begins at line `since`, are none of its own.
    """
    found = [
        (loop.first, loop.last)
        for scope in _known_scopes(file)
        for loop in scope
        if since <= loop.first <= line <= loop.last and not (loop.form or loop.yields)
    ]
    return tuple(sorted(found, key=lambda loop: (loop[0], -loop[1])))


def tree_of(file: str) -> ast.Module:
    """Return the source of a file as a tree, an empty one where it is not to be had."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return ast.parse("")


def _scopes(file: str) -> list[list[_Found]]:
    """Return the loops of a file, by function; nothing where its source is not to be had."""
    scopes: list[list[_Found]] = [[]]
    tree = tree_of(file)
    generators = {
        each.name
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and any(isinstance(n, _YIELDS) for n in ast.walk(each))
    }
    _collect(tree, scopes[0], scopes, generators)
    return [scope for scope in scopes if scope]


_known_scopes = lru_cache(maxsize=64)(_scopes)


def _collect(node: ast.AST, own: list[_Found], scopes: list[list[_Found]], generators: set[str]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _SCOPES):
            scopes.append([])
            _collect(child, scopes[-1], scopes, generators)
            continue
        if isinstance(child, (ast.For, ast.AsyncFor, ast.While)):
            own.append(_read_loop(child, generators))
        elif isinstance(child, _COMPREHENSIONS):
            first, last = child.lineno, child.end_lineno or child.lineno
            own.append(_Found(first, first, last, carried=False, form=False))
        _collect(child, own, scopes, generators)


def _begins(loop: _Loop, generators: set[str]) -> int:
    """Return the first line of the rounds; a generator's head runs in each of them."""
    if isinstance(loop, ast.While):
        return loop.lineno
    called = {ast.unparse(each.func) for each in ast.walk(loop.iter) if isinstance(each, ast.Call)}
    if any(name.rpartition(".")[2] in generators for name in called):
        return loop.lineno
    return max(loop.lineno, min(loop.body[0].lineno, (loop.iter.end_lineno or loop.lineno) + 1))


def _read_loop(loop: _Loop, generators: set[str]) -> _Found:
    reader = _Reader()
    for statement in loop.body:
        reader.statement(statement)
    carried = reader.carries()
    form = False
    if not isinstance(loop, ast.While):
        target = {name for name, _ in _names(loop.target)}
        form = carried and any(_calls(node, target) for node in _inside(loop.body))
        form = form or ast.unparse(loop.iter).endswith(".param_groups")
    last = loop.end_lineno or loop.lineno
    yields = any(_yields(statement) for statement in loop.body)
    return _Found(loop.lineno, _begins(loop, generators), last, carried=carried, form=form, yields=yields)


def _yields(node: ast.AST) -> bool:
    """Whether a part of a function hands something out."""
    if isinstance(node, _YIELDS):
        return True
    return not isinstance(node, _SCOPES) and any(map(_yields, ast.iter_child_nodes(node)))


def _inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _calls(node: ast.AST, target: set[str]) -> bool:
    """Whether a node calls what the loop goes over: `layer(x)`, `layers[i](x)`, `checkpoint(layer, x)`."""
    if not isinstance(node, ast.Call):
        return False
    called: ast.AST = node.func
    if node.args and "checkpoint" in ast.unparse(called):
        called = node.args[0]
    if isinstance(called, ast.Attribute) and called.attr == "forward":
        called = called.value
    if isinstance(called, ast.Name):
        return called.id in target
    if isinstance(called, ast.Subscript):
        return any(name in target for name, _ in _names(called))
    return False


def _names(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield (name, is stored) of the variables in an expression; `self.state` counts as one."""
    if isinstance(node, _SCOPES):
        return
    if isinstance(node, _COMPREHENSIONS):
        # What it goes over has names of its own.
        parts = [name for child in ast.iter_child_nodes(node) for name in _names(child)]
        own = {name for name, stored in parts if stored}
        yield from ((name, False) for name, stored in parts if not stored and name not in own)
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{node.value.id}.{node.attr}", isinstance(node.ctx, ast.Store)
        yield node.value.id, False
        return
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Store)
        return
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def _added(node: ast.Assign | ast.AnnAssign) -> list[ast.expr] | None:
    """Return what `total = total + x`, or `rows = torch.cat([rows, x])`, adds; None for any other assignment.

    It is the same as `total += x`.
    """
    if isinstance(node, ast.AnnAssign) or len(node.targets) != 1:
        return None
    value, target = node.value, ast.unparse(node.targets[0])
    parts: list[ast.expr] = []
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        parts = [value.left, value.right]
    elif isinstance(value, ast.Call) and value.args and ast.unparse(value.func).endswith(_JOINS):
        parts = value.args[0].elts if isinstance(value.args[0], (ast.List, ast.Tuple)) else []
    others = [part for part in parts if ast.unparse(part) != target]
    return others if len(others) == len(parts) - 1 else None


class _Reader:
    """Reads the body of a loop in the order in which it runs."""

    def __init__(self) -> None:
        self._from: dict[str, set[str]] = {}
        """Of each name that the round assigns: the names that its value was made from, as they were
        before the round."""
        self._sure: set[str] = set()
        """What has been assigned in this round where the reader is, whichever way led there."""

    def carries(self) -> bool:
        """Whether a round needs what the one before made: a name's value was made from its last one.

        The next batch, fetched before this one's backward, is read a round later, too, but is made from none.
        """
        return any(name in self._reached(name) for name in self._from)

    def _reached(self, name: str) -> set[str]:
        found: set[str] = set()
        left = [name]
        while left:
            new = self._from.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    def statement(self, node: ast.stmt) -> None:
        """Take in one statement and those inside it."""
        if isinstance(node, _SCOPES):
            return
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            added = _added(node)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            self._take([node.value] if added is None else added, targets)
            return
        if isinstance(node, ast.AugAssign):
            # `total += x` alone is a sum, which needs no loop; where x is made from the total, it does.
            self._take([node.value], [node.target])
            return
        if isinstance(node, (ast.For, ast.AsyncFor)):
            self._take([node.iter], [node.target])
        ways: list[set[str]] = []
        for _, value in ast.iter_fields(node):
            items = [each for each in (value if isinstance(value, list) else [value]) if each is not None]
            if items and isinstance(items[0], ast.stmt):
                ways.append(self._way(items))
                continue
            for item in items:
                if isinstance(item, (ast.ExceptHandler, ast.match_case)):
                    self._way(item.body)
                elif isinstance(item, ast.AST):
                    self._take([item])
        if ways and isinstance(node, (ast.With, ast.AsyncWith)):
            self._sure = ways[0]
        elif len(ways) > 1 and isinstance(node, ast.If):
            self._sure = set.intersection(*ways)

    def _way(self, body: Iterable[ast.stmt]) -> set[str]:
        """Take in one way through a statement; return what is assigned for sure at the end of it."""
        before = set(self._sure)
        for each in body:
            self.statement(each)
        after, self._sure = self._sure, before
        return after

    def _take(self, values: Iterable[ast.AST | None], targets: Iterable[ast.AST] = ()) -> None:
        """Take in what a value is made from, for the names that the targets, or itself, store.

        A name that is assigned in two places has what both are made from: which one runs is not known.
        """
        parts = [value for value in values if value is not None]
        read = {name for part in parts for name, stored in _names(part) if not stored}
        made_from = {source for name in read for source in self._sources(name)}
        for part in (*parts, *targets):
            for name, stored in _names(part):
                if stored:
                    self._from[name] = self._from.get(name, set()) | made_from
                    self._sure.add(name)

    def _sources(self, name: str) -> set[str]:
        return self._from.get(name, set()) | (set() if name in self._sure else {name})
