"""In the user's process there is one table of events, one buffer, and one way to put things back.

Which room may import which is a contract of import-linter (pyproject.toml).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "bottleneck" / "harness"
MODULES = sorted(HARNESS.rglob("*.py"))

SETS_FOR_ITSELF = {
    "events/replacing.py": "the one way",
    "torch_private.py": "a setting of dynamo's, at the script's own wish",
    "trials/patches/flags.py": "a flag of torch's, which is the fix",
    "process/runner.py": "argv and excepthook, as python itself sets them for a script",
    "process/stopping.py": "the thread's excepthook, once the process is being left",
    "windows/memory_window.py": "showwarning, which warnings.catch_warnings puts back",
    "loading/worker.py": "a worker process of a loader, for as long as it lives",
    "process/isolation.py": "dont_write_bytecode, in a copy of the process that ends with it",
}
"""Modules that set attributes of what they import, and why."""


def attributes_set(tree: ast.Module) -> list[str]:
    """Return what sets or deletes attributes of something imported that is not ours."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.level == 0)
        for alias in node.names
    }
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
                out.append(ast.unparse(node))
            continue
        if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del))):
            continue
        root: ast.expr = node
        while isinstance(root, (ast.Attribute, ast.Subscript)):
            root = root.value
        if isinstance(root, ast.Name) and root.id in imported:
            out.append(ast.unparse(node))
    return out


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(HARNESS).as_posix())
def test_what_is_replaced_goes_through_one_module(path: Path) -> None:
    found = attributes_set(ast.parse(path.read_text()))
    if path.relative_to(HARNESS).as_posix() in SETS_FOR_ITSELF:
        assert found, "the exception is needed no more"
    else:
        assert not found


def test_an_attribute_set_by_hand_is_found() -> None:
    by_hand = (
        "import torch\nfrom torch import nn\ntorch.compile = 1\nold, torch.nn.Linear.x = 1, 2\ndel nn.a\n"
    )
    assert len(attributes_set(ast.parse(by_hand))) == 3
    assert attributes_set(ast.parse("setattr(owner, name, ours)"))
    assert not attributes_set(ast.parse("import torch\nself.torch = torch.compile\n"))


def test_every_event_is_a_row_of_the_table() -> None:
    rows = [
        path.relative_to(HARNESS).as_posix()
        for path in MODULES
        if "Event(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Event"
    ]
    assert set(rows) == {"events/table.py"}
    from torch_bottleneck.harness.events import table

    events = {value for value in vars(table).values() if isinstance(value, table.Event)}
    assert set(table.EVENTS) == events
    assert len(rows) == len(events) == len({event.name for event in events})


# -- what a script may do to the clocks, and to its signals -----------------------------------------------

IN_THE_SCRIPT_S_PROCESS = [
    *MODULES,
    *(ROOT / "bottleneck" / "runs" / f"{name}.py" for name in ("asking", "plan", "store", "tasks")),
]


def calls_of_clocks(tree: ast.Module) -> list[str]:
    """Return the calls of functions that a script may have replaced."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "time"
    ]


@pytest.mark.parametrize("path", IN_THE_SCRIPT_S_PROCESS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_clocks_are_those_from_before_the_script(path: Path) -> None:
    assert calls_of_clocks(ast.parse(path.read_text())) == []


def test_a_call_of_a_clock_is_found() -> None:
    assert calls_of_clocks(ast.parse("import time\nx = time.sleep(time.time())\nkept = partial(time.sleep)"))


def threads_started(tree: ast.Module) -> list[bool]:
    """Return, for each thread that is started, whether the script's signals are kept from it."""
    kept = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        and any("signals_go_elsewhere" in ast.unparse(item) for item in node.items)
    ]
    inside = {id(inner) for block in kept for inner in ast.walk(block)}
    starts = ("start_new_thread", "Thread(", "timer.start()")
    return [
        id(node) in inside
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and any(word in ast.unparse(node) for word in starts)
    ]


def test_no_thread_of_ours_takes_a_signal() -> None:
    found = {
        path.relative_to(HARNESS).as_posix(): threads_started(ast.parse(path.read_text())) for path in MODULES
    }
    assert sum(map(len, found.values())) >= 6
    assert [name for name, kept in found.items() if not all(kept)] == []


IMPORT_ALL = """
import importlib, os, pkgutil, torch, torch._dynamo
before = dict(os.environ)
import torch_bottleneck.harness
for found in pkgutil.walk_packages(torch_bottleneck.harness.__path__, "torch_bottleneck.harness."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
        assert dict(os.environ) == before, (found.name, set(os.environ) ^ set(before))
"""


def test_our_imports_leave_the_environment_of_the_script_and_its_children_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
