"""What a frame is calling: the words of the user's source, and the library function behind them.

In: a code object and the instruction that runs. Out: `Place`, its line, the call as written there, the
name of what is called, and the loops around it. Source is read when all has been captured.
"""

from __future__ import annotations

import ast
import sys
from functools import lru_cache
from itertools import takewhile
from types import CodeType
from typing import Any, NamedTuple

from .sites import is_library
from .step_loops import loops_around, tree_of

_LONGEST = 60
_INSTRUCTION_BYTES = 2


Position = tuple[int, "int | None", "int | None", "int | None"]
"""Line, last line, first and last column."""


class Place(NamedTuple):
    """Where a frame of the user's stands."""

    line: int
    call: str
    """As written, `gc.collect()` or `table.iloc[i]`; empty where the source does not tell."""
    callee: str
    """`module.name` of the library function that is called; empty if it is the user's own or not known."""
    loops: tuple[tuple[int, int], ...]
    """First and last line of the loops around it in its function, the outermost first."""
    discards: bool
    """The statement there is a call by itself, whose value is thrown away."""


def place_of(code: CodeType, instruction: int, namespace: dict[str, Any]) -> Place:
    """Return where a frame stands.

    `instruction` is its `f_lasti`; names of the call are looked up in `namespace`.
    """
    position = position_of(code, instruction)
    line = position[0]
    call, callee = call_at(code.co_filename, position, namespace)
    loops = loops_around(code.co_filename, line, since=code.co_firstlineno)
    return Place(line, call, callee, loops, line in _discarding(code.co_filename))


def call_at(file: str, position: Position, namespace: dict[str, Any]) -> tuple[str, str]:
    """Return the call at a position, and what is called in a library."""
    node = _node_at(file, position)
    if node is None:
        return "", ""
    for made in _expressions(file).get(("made", (node.lineno, node.col_offset)), []):
        # A name is given: what it stood for is freed, which belongs to the library's call that made it.
        called = _called(made.func, namespace) if isinstance(made, ast.Call) else ""
        if isinstance(made, ast.Call) and called and not called.startswith("torch."):
            node = made
    if not isinstance(node, ast.Call):
        text = ast.unparse(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            # What the name stood for is freed: often the whole graph of the step before.
            text = f"{text} = ..."
        return (text, "") if len(text) <= _LONGEST else ("", "")
    called = _called(node.func, namespace)
    text = ast.unparse(node.func)
    if isinstance(node.func, ast.Name) and called and not called.startswith("builtins."):
        text = _public(called, namespace.get(node.func.id))
    # Of a generator it is told which.
    given = ast.unparse(node.args[0]) if called == "builtins.next" and node.args else ""
    text = f"{text}({given})"
    return (text if len(text) <= _LONGEST else ""), called


def _public(name: str, what: object) -> str:
    """Return `package.odeint` of `package._impl.odeint.odeint`, if it is to be found there."""
    *modules, last = name.split(".")
    public = ".".join(takewhile(lambda module: not module.startswith("_"), modules))
    return f"{public}.{last}" if getattr(sys.modules.get(public), last, None) is what is not None else name


def is_read_by_index(file: str, position: Position) -> bool:
    """Return whether a part of the source reads something by its index, or is the entry of a function.

    What is read by its name is no row: an array of an archive may be decompressed for it.
    """
    if is_entry(position):
        return True
    node = _node_at(file, position)
    return isinstance(node, ast.Subscript) and not (
        isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    )


def is_entry(position: Position) -> bool:
    """Return whether a part of the source is the entry of a function, where nothing of it has run yet."""
    return position[1:] == (position[0], 0, 0)


def name_of(code: CodeType, namespace: dict[str, Any]) -> str:
    """Return `module.name` of a function, by its frame."""
    # Python 3.10 does not tell the class of a method.
    name = getattr(code, "co_qualname", code.co_name)
    return f"{namespace.get('__name__', '')}.{name}".replace(".<locals>", "")


def position_of(code: CodeType, instruction: int) -> Position:
    """Return what part of the source an instruction (`f_lasti`) was made of."""
    first = code.co_firstlineno
    if sys.version_info >= (3, 11):
        positions = _positions(code)
        at = instruction // _INSTRUCTION_BYTES
        line, end_line, column, end_column = positions[at] if 0 <= at < len(positions) else (None,) * 4
        if line is None:
            # The way back of a loop whose last statement is a condition that does not hold, for one.
            before = (line for line, *_ in reversed(positions[: max(0, at)]) if line is not None)
            return next(before, first), None, None, None
        return line, end_line, column, end_column
    rows = [row for begin, _, row in code.co_lines() if begin <= instruction and row is not None]
    return (rows[-1] if rows else first), None, None, None


@lru_cache(maxsize=512)
def _positions(code: CodeType) -> list[tuple[int | None, int | None, int | None, int | None]]:
    return list(code.co_positions())  # type: ignore[attr-defined, unused-ignore]


def _node_at(file: str, position: Position) -> ast.expr | None:
    line, end_line, column, end_column = position
    found = _expressions(file)
    if end_column is None or column is None:
        # Lines alone (Python 3.10): certain where the line holds one call that is inside no other.
        calls = [node for node in found.get(("line", line), []) if isinstance(node, ast.Call)]
        return calls[0] if calls else None
    begin = (line, column)
    ending = found.get((end_line, end_column), [])
    exact = [node for node in ending if (node.lineno, node.col_offset) == begin]
    # Of a chain over several lines the interpreter gives the beginning of its last link.
    calls = [n for n in ending if isinstance(n, ast.Call) and (n.lineno, n.col_offset) < begin]
    node = exact[0] if exact else calls[-1] if calls else None
    return node.iter if isinstance(node, ast.For) else node


@lru_cache(maxsize=64)
def _expressions(file: str) -> dict[tuple[Any, Any], list[ast.expr | ast.For]]:
    """Return the expressions and loops of a file by where they end, and by line; outer ones first.

    And by where the name that is given to them begins.
    """
    out: dict[tuple[Any, Any], list[ast.expr | ast.For]] = {}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, (ast.expr, ast.For)):
            out.setdefault((node.end_lineno, node.end_col_offset), []).append(node)
            out.setdefault(("line", node.lineno), []).append(node)
        if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name):
            out.setdefault(("made", (name.lineno, name.col_offset)), []).append(node.value)
    return out


@lru_cache(maxsize=64)
def _discarding(file: str) -> frozenset[int]:
    """Return the lines of a file's statements that are a call by itself."""
    return frozenset(
        line
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


def _called(function: ast.expr, namespace: dict[str, Any]) -> str:
    """Return `module.name` of what a dotted name means, if that is a library's."""
    names: list[str] = []
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    builtins = namespace.get("__builtins__")
    found: Any = namespace.get(function.id)
    if found is None and not names:
        names_of = builtins if isinstance(builtins, dict) else getattr(builtins, "__dict__", {})
        return f"builtins.{function.id}" if function.id in names_of else ""
    owner = getattr(found, "__name__", "") if isinstance(found, type(sys)) else ""
    for name in reversed(names):
        if not isinstance(found, type(sys)):
            break
        # Only attributes of modules: others may compute something when they are asked.
        owner, found = found.__name__, vars(found).get(name)
    module = getattr(found, "__module__", None) if not isinstance(found, type(sys)) else None
    known = sys.modules.get(module or owner)
    file = getattr(known, "__file__", None)
    if known is None or (file is not None and not is_library(file)):
        return ""
    own = getattr(found, "__qualname__", None) or ".".join(reversed(names))
    return f"{module or owner}.{own}" if (module or owner) and own else ""
