"""What is known of a fix stands in its entry of the catalogue and in its patch, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import torch_bottleneck

PACKAGE = Path(torch_bottleneck.__file__).parent
OWNERS = ("catalog", "harness/trials/patches")
FILES = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if not file.relative_to(PACKAGE).as_posix().startswith(OWNERS)
]


def literals(file: Path) -> Iterator[tuple[ast.Constant, bool]]:
    """Return the string literals of a file that names fixes, each with whether it is a docstring."""
    text = file.read_text()
    tree = ast.parse(text if "FX" in text else "")
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node, id(node) in alone


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_no_fix_is_named_outside_the_catalogue_and_the_patches(file: Path) -> None:
    # Help pages of commands are docstrings, and show an id as an example.
    help_pages = file.parent.name == "cli"
    named = [
        f"line {node.lineno}: {node.value[:60]!r}"
        for node, docstring in literals(file)
        if (re.search(r"FX\d", node.value) and not (docstring and help_pages))
        or (node.value.startswith("FX") and not docstring)
    ]
    assert not named


def test_the_search_finds_what_it_looks_for() -> None:
    file = PACKAGE / "catalog" / "input.py"
    assert any(node.value == "FX101" for node, _ in literals(file))
