"""Whoever wants something of a trace asks it: no reader builds masks, name tables or searches of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "bottleneck"
TRACE = PACKAGE / "timeline" / "trace"
READERS = sorted(
    path
    for room in ("timeline", "analyzers", "diagnose", "review")
    for path in (PACKAGE / room).rglob("*.py")
    if TRACE not in path.parents
)
LOOPS = (ast.For, ast.comprehension)


def _is_names_of_a_trace(node: ast.AST) -> bool:
    """`trace.names`, `self._trace.names`, and the same inside `enumerate(...)` and its likes."""
    return any(
        isinstance(part, ast.Attribute)
        and part.attr in {"names", "kind"}
        and isinstance(part.value, (ast.Name, ast.Attribute))
        and "trace" in (part.value.id if isinstance(part.value, ast.Name) else part.value.attr)
        for part in ast.walk(node)
    )


def breaches(tree: ast.Module) -> list[str]:
    """What a module does by itself that a trace answers."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, LOOPS) and _is_names_of_a_trace(node.iter):
            found.append("a loop over a trace's names")
        if isinstance(node, (ast.Name, ast.Attribute)):
            word = node.id if isinstance(node, ast.Name) else node.attr
            if word == "searchsorted":
                found.append("searchsorted")
        if isinstance(node, ast.arguments):
            names = [a.arg for a in (*node.posonlyargs, *node.args, *node.kwonlyargs)]
            if "kinds" in names:
                found.append("a parameter called kinds")
        if isinstance(node, ast.keyword) and node.arg == "kinds":
            found.append("an argument called kinds")
    return found


@pytest.mark.parametrize("path", READERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_readers_ask_the_trace(path: Path) -> None:
    assert breaches(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "code",
    [
        "codes = [i for i, n in enumerate(trace.names) if n == 'x']",
        "for name in self._trace.names: pass",
        "at = np.searchsorted(trace.ts_ns, when)",
        "def read(trace, kinds): ...",
        "read(trace, kinds=kinds)",
    ],
)
def test_what_the_rule_finds(code: str) -> None:
    assert len(breaches(ast.parse(code))) == 1
