"""A script is run by one function, in a parent process without torch; commands only parse, call and print."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from torch_bottleneck.runs.launch import command_of
from torch_bottleneck.runs.plan import Plan

PACKAGE = Path(__file__).resolve().parents[2] / "bottleneck"


def trees(*words: str, room: str = "") -> dict[str, ast.Module]:
    """Return the files of a folder that hold one of these words: parsing all takes longer than asking."""
    texts = {
        path.relative_to(PACKAGE).as_posix(): path.read_text() for path in (PACKAGE / room).rglob("*.py")
    }
    return {name: ast.parse(text) for name, text in texts.items() if any(word in text for word in words)}


@pytest.mark.parametrize("plan", [Plan(script="t.py"), Plan(module="t")], ids=["script", "module"])
def test_what_is_started_is_there(plan: Plan, tmp_path: Path) -> None:
    """Both ways into the harness are named by text, which moves past them unnoticed."""
    (tmp_path / "t.py").write_text("print('it ran')\n")
    plan = Plan(script=plan.script, module=plan.module, out=str(tmp_path / "run"), quiet=True)
    done = subprocess.run(
        [sys.executable, *command_of(plan)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "it ran\n", done.stderr


def imported_by(room: str) -> set[str]:
    """Return the top-level names that a folder imports at run time; those of ours with a dot in front."""
    found: set[str] = set()
    for tree in trees("import", room=room).values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level < 2:
                found.add("." if node.level else str(node.module).split(".")[0])
            elif isinstance(node, ast.ImportFrom) and node.module is None:
                found |= {f".{alias.name}" for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(f".{str(node.module).split('.')[0]}")
    return found


def test_runs_needs_no_torch_and_of_ours_only_records_and_errors() -> None:
    """import-linter holds this too, through all that these import in turn."""
    found = imported_by("runs")
    assert {name for name in found if name.startswith(".")} == {
        ".",
        ".__version__",
        ".clocks",
        ".errors",
        ".files",
        ".model",
    }
    assert not found & {"torch", "numpy", "pandas", "rich", "click"}


@pytest.mark.parametrize("room", ["compare", "verify"])
def test_what_decides_imports_no_reporter(room: str) -> None:
    assert ".model" in imported_by(room)
    assert ".reporters" not in imported_by(room)


def users_of(*names: str) -> set[str]:
    """Return the files that use one of these names other than by defining it."""
    return {
        file
        for file, tree in trees(*names).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names
    }


def test_one_function_makes_a_run_folder_of_a_script() -> None:
    steps = ("put_aside", "record_end", "report_done", "wait_for_ranks", "collect", "RANKS_SECONDS")
    assert users_of(*steps) == {"runs/run_script.py"}
    assert users_of("run_script") == {
        "cli/diagnose.py",  # diagnose
        "compare/repeats.py",  # gate
        "verify/arms.py",  # verify, with fixes and without
        "verify/source.py",  # verify --all, which diagnoses first
        "watching/job.py",  # watch
    }


def test_run_json_is_decoded_in_one_place() -> None:
    decoded = {
        file
        for file, tree in trees("decode", "read_json").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("decode", "decode_json", "read_json"))
        and any(ast.unparse(word) == "Run" for word in (*node.args, *(k.value for k in node.keywords)))
    }
    assert decoded == {"model/documents.py"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda path: path.stem)
def test_a_command_parses_calls_and_prints(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 120
