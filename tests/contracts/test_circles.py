"""No file imports, by whatever way round, what imports it; not inside a folder either.

An import within a function counts: it hides a circle from Python, not from the reader. What only the type
checker sees does not count.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "bottleneck"
ALLOWED = {"": {"harness.process.api"}}
"""`torch_bottleneck.Harness`, which the root looks up when it is first asked for."""


def imports_of(tree: ast.AST, name: str, modules: set[str], *, package: bool) -> set[str]:
    """Return the modules of ours that a file imports. Names are dotted, from the package on.

    Args:
        tree: the file.
        name: its own name.
        modules: all names; a folder's is that of its `__init__`.
        package: the file is such an `__init__`.
    """
    parts = name.split(".") if name else []
    found: set[str] = set()
    for node in _outside_of_type_checking(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            up = node.level - package
            base = [*parts[: len(parts) - up], *(node.module or "").split(".")]
            start = ".".join(filter(None, base))
            for alias in node.names:
                inner = ".".join(filter(None, [start, alias.name]))
                found.add(inner if inner in modules else start)
    return found & modules - {name}


def _outside_of_type_checking(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node = ast.Module(body=node.orelse, type_ignores=[])
        nodes += [node, *_outside_of_type_checking(node)]
    return nodes


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of names that reach one another."""
    reached = {name: _reach(graph, name) for name in graph}
    groups = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in graph
        if name in reached[name]
    }
    return sorted(sorted(group) for group in groups)


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def graph_of_package() -> dict[str, set[str]]:
    files = {
        ".".join(part for part in file.relative_to(PACKAGE).with_suffix("").parts if part != "__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    return {
        name: imports_of(ast.parse(file.read_text()), name, set(files), package=file.name == "__init__.py")
        - ALLOWED.get(name, set())
        for name, file in files.items()
    }


def test_no_file_imports_what_imports_it() -> None:
    graph = graph_of_package()
    assert sum(map(len, graph.values())) > 1000, "imports are found at all"
    assert circles(graph) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from .b import f", {"x.b"}),
        ("from . import b", {"x.b"}),
        ("from .. import y", {"y"}),
        ("from . import f", {"x"}),
        ("def f():\n    from ..y import g", {"y"}),
        ("if TYPE_CHECKING:\n    from .b import f", set()),
        ("if TYPE_CHECKING:\n    from .b import f\nelse:\n    from .. import y", {"y"}),
        ("import ast", set()),
    ],
)
def test_what_counts_as_an_import(source: str, expected: set[str]) -> None:
    assert imports_of(ast.parse(source), "x.a", {"", "x", "x.a", "x.b", "y"}, package=False) == expected


def test_an_init_names_its_own_folder_with_one_dot() -> None:
    assert imports_of(ast.parse("from .b import f"), "x", {"", "x", "x.b"}, package=True) == {"x.b"}


def test_a_circle_of_three_is_found_and_a_line_is_not() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
