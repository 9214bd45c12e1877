"""The folders import only downwards, and the package says of itself what it contains."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bottleneck"
MODULES = sorted(PACKAGE.rglob("*.py"))

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    tomllib = pytest.importorskip("tomli")


def test_import_linter_keeps_the_layers() -> None:
    pytest.importorskip("importlinter")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    done = subprocess.run(
        [*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: \d+ kept, 0 broken", done.stdout), done.stdout


def test_every_folder_with_python_in_it_is_packaged() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent for path in MODULES}
    names = {".".join(["torch_bottleneck", *folder.relative_to(PACKAGE).parts]) for folder in folders}
    assert names == set(declared)


def statement_lines(tree: ast.Module) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            continue
        if isinstance(node, (ast.expr, ast.stmt)) and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            lines.add(node.lineno)
    return len(lines)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_house_habits(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    docstring = ast.get_docstring(tree)
    assert docstring, "a module says what comes in and what goes out"
    assert path.stem not in {"util", "utils", "common", "helpers", "misc"}
    assert statement_lines(tree) <= 420, "past 400 lines, look for the second idea"
    absolute = [
        name
        for node in ast.walk(tree)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom) and node.level == 0
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        if name.split(".")[0] in {"torch_bottleneck", "bottleneck"}
    ]
    if path.relative_to(PACKAGE).as_posix() == "harness/__main__.py":
        return  # runs before sys.path is the script's, and says there why it imports by name
    # The package must work under whatever name it is found by: pandas finds the folder itself.
    assert not absolute, f"imports inside the package are relative: {absolute}"
