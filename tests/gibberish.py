"""A copy of the package in which every sentence that people read is replaced by gibberish.

In: the package. Out: `rewritten`, the source of one module; `copy_with_gibberish`, a whole copy.

A string is a sentence if it has a space and a word of lower-case letters, and does not stand where code
looks something up: in a comparison, a prefix test, a regular expression, the key of a dictionary. Each gets
a gibberish of its own, so that whoever compares with a sentence no longer finds it.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "bottleneck"
ROOMS = ("timeline", "analyzers", "catalog", "diagnose")
"""Where sentences are made that a diagnosis holds."""
MARK = "zq"

_SENTENCE = re.compile(r"\b[a-z]{2,}\b")
_LOOKS_UP = frozenset(
    [
        "startswith",
        "endswith",
        "partition",
        "rpartition",
        "removeprefix",
        "removesuffix",
        "split",
        "find",
        "count",
        "compile",
    ]
)

_TEMPLATES = frozenset({"code", "of_run", "value"})
"""Fields of a fix that are filled in and run, not read."""


def _data() -> frozenset[str]:
    """Return the strings with a space that files and records hold as data, not for people.

    They are what model/ says a field may be (`Literal`), and the constants of model/ itself.
    """
    found = set()
    for path in sorted((PACKAGE / "model").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal":
                found |= {item.value for item in ast.walk(node.slice) if isinstance(item, ast.Constant)}
            if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Dict):
                found |= {item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
    return frozenset(text for text in found if isinstance(text, str))


DATA = _data() | {
    "Pregraph bytecode",
    "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    "sampled ",
}
"""The last three are names of the trace and the start of a phase in run.json."""


class _Rewriter(ast.NodeTransformer):
    def __init__(self, module: str) -> None:
        self.module = module
        self.count = 0

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        text = node.value
        if not isinstance(text, str) or " " not in text or text in DATA or not _SENTENCE.search(text):
            return node
        self.count += 1
        return ast.copy_location(ast.Constant(f"{MARK}{self.count}{self.module[:2]} "), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return node if name in _LOOKS_UP else self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg in _TEMPLATES else self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        node.values = [self.visit(value) for value in node.values]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        return node


def rewritten(source: str, module: str) -> tuple[str, int]:
    """Return the source with gibberish for sentences, and how many there were."""
    rewriter = _Rewriter(module)
    tree = rewriter.visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree)), rewriter.count


def copy_with_gibberish(target: Path) -> int:
    """Copy the package to `target`, rewriting `ROOMS`; return how many sentences were replaced."""
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("__pycache__"))
    count = 0
    for path in _modules(target):
        text, replaced = rewritten(path.read_text("utf-8"), path.stem)
        path.write_text(text, "utf-8")
        count += replaced
    return count


def _modules(package: Path) -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((package / room).rglob("*.py"))
