"""How many rounds the loops around this place have left, as far as their heads tell.

In: the thread that asks. Out: a lower bound in rounds of the innermost loop, or None.

A running frame shows its iterators to nobody since Python 3.11, but its names, and the source tells what
they mean: of `for step in range(args.steps)` both are numbers that can be looked up, and so is what an
`if step == last: break` waits for. Nothing of the program is called for that, and no property is read.
"""

from __future__ import annotations

import ast
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any, TypeAlias

from .sites import is_library, names_in
from .step_loops import tree_of

_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_PLAIN = (list, tuple, dict, range, str)
"""Their length is no call of the program's."""
_BARS = frozenset({"tqdm", "trange", "track"})
"""Progress bars pass on what they are given."""
_MATH: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def rounds_left() -> int | None:
    """Return how many rounds the innermost loop still makes at least, with those of the loops around it."""
    left: int | None = None
    inside = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        for loop, names in _loops_of(frame):
            rest, length = _read(loop, names)
            if rest is not None:
                left = (left or 0) + rest * inside
            inside *= length or 1
        frame = frame.f_back
    return left


def _loops_of(frame: FrameType) -> Iterator[tuple[_Loop, Mapping[str, Any]]]:
    """Yield the loops of the user's that a frame is in, the innermost first, with the names that it knows."""
    code = frame.f_code
    if is_library(code.co_filename):
        return
    # A module's code has no names of its own.
    scope = code.co_firstlineno if code.co_flags & inspect.CO_NEWLOCALS else 0
    line = frame.f_lineno or 0
    around = [
        loop
        for loop in _loops(code.co_filename).get(scope, ())
        if loop.lineno <= line <= (loop.end_lineno or 0)
    ]
    if around:
        names = {**frame.f_globals, **dict(names_in(frame))}
        yield from ((loop, names) for loop in reversed(around))


@lru_cache(maxsize=64)
def _loops(file: str) -> dict[int, list[_Loop]]:
    """Return the loops of a file by the first line of their function, 0 for none; outer ones come first."""
    found: dict[int, list[_Loop]] = {}

    def gather(node: ast.AST, scope: int) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, _SCOPES):
                heads = getattr(child, "decorator_list", [])
                inner = min([child.lineno, *(head.lineno for head in heads)])
            elif isinstance(child, _LOOPS):
                found.setdefault(scope, []).append(child)
            gather(child, inner)

    gather(tree_of(file), 0)
    return found


def _read(loop: _Loop, names: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return (rounds left, rounds in all) of one loop, each None where its source does not tell."""
    if isinstance(loop, ast.While):
        rests, length = [*_until(loop.test, names, ends=False)], None
    else:
        rest, length = _rounds(loop.iter, loop.target, names)
        rests = [] if rest is None or _overwrites(loop) else [rest]
    for statement in loop.body:
        if isinstance(statement, ast.If) and isinstance(statement.body[-1], (ast.Break, ast.Return)):
            rests += _until(statement.test, names, ends=True)
    return min(rests, default=None), length


@lru_cache(maxsize=64)
def _overwrites(loop: ast.For | ast.AsyncFor) -> bool:
    """Return whether the body gives the loop's own names other values, as an inner `for _ in` does."""
    own = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in own
        for statement in loop.body
        for node in ast.walk(statement)
    )


def _rounds(iterated: ast.expr, target: ast.expr, names: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return (rounds left, rounds in all) of what a for loop goes over."""
    if isinstance(iterated, ast.Call) and iterated.args:
        called = getattr(iterated.func, "attr", getattr(iterated.func, "id", ""))
        first, rest = iterated.args[0], [_value(node, names) for node in iterated.args]
        if called in ("range", "trange") and rest and all(type(value) is int for value in rest):
            rounds = range(*rest)
            at = _value(target, names)
            known = type(at) is int and at in rounds
            return (len(rounds) - 1 - rounds.index(at) if known else None), len(rounds)
        if called == "enumerate":
            _, length = _rounds(first, first, names)
            counter = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            at, since = _value(counter, names), rest[1] if len(rest) > 1 else 0
            if length is None or type(at) is not int or type(since) is not int:
                return None, length
            return max(0, length - 1 - (at - since)), length
        if called in _BARS:
            return _rounds(first, target, names)
    over = _value(iterated, names)
    return None, len(over) if type(over) in _PLAIN else None


def _until(test: ast.expr, names: Mapping[str, Any], *, ends: bool) -> Iterator[int]:
    """Yield by how much numbers have to grow until a test `ends` a loop, or no longer lets it go on."""
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        low, high = _value(node.left, names), _value(node.comparators[0], names)
        if type(low) is not int or type(high) is not int:
            continue
        grows = (ast.Gt, ast.GtE, ast.Eq) if ends else (ast.Lt, ast.LtE, ast.NotEq)
        if isinstance(node.ops[0], grows) and high > low:
            yield high - low


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return what an expression is; None where that would need a call of the program's."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_value(node.value, names), node.attr, None)
    if isinstance(node, ast.Subscript):
        held, key = _value(node.value, names), _value(node.slice, names)
        return held.get(key) if type(held) is dict and isinstance(key, (str, int)) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _MATH:
        left, right = _value(node.left, names), _value(node.right, names)
        both = type(left) is int and type(right) is int and (right or type(node.op) is not ast.FloorDiv)
        return _MATH[type(node.op)](left, right) if both else None
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and len(node.args) == 1:
        held = _value(node.args[0], names)
        return len(held) if type(held) in _PLAIN else None
    return None
