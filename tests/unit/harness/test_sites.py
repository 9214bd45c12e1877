"""Which line raised an error, and whether the script meant to."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from torch_bottleneck.harness.lines.sites import SiteBook, raised_by_script, told_of_error

_SCRIPT = """
import json

def checks():
    assert not True, "the loss went up"

def stops():
    raise TimeoutError("an hour is over")

def runs_out():
    next(iter(()))

def in_torch():
    torch.nn.functional.linear(torch.ones(2, 3), torch.ones(2, 4))

def operator():
    torch.ones(2, 3) @ torch.ones(2, 4)

def in_library():
    json.loads("{")
"""


@pytest.mark.parametrize(
    ("function", "own"),
    [
        ("checks", True),
        ("stops", True),
        ("runs_out", True),
        ("in_torch", False),
        ("operator", False),
        ("in_library", False),
    ],
)
def test_what_a_statement_of_the_script_raises_is_told_from_what_fails(function: str, own: bool) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(compile(_SCRIPT, "/home/me/train.py", "exec"), names)
    with pytest.raises(Exception) as raised:
        names[function]()
    assert raised_by_script(raised.value) is own
    told = told_of_error(raised.value)
    assert told.startswith(type(raised.value).__name__) and ", in /home/me/train.py:" in told


def test_a_variable_s_line_is_the_first_in_the_program_s_own_files_that_is_no_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, switch = tmp_path / "job.py", f"SWITCH_{id(tmp_path)}"
    file.write_text(f'# {switch}: see below\nimport os\n\nos.environ["{switch}"] = "1"\n')
    module = ModuleType("job")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "job", module)
    book = SiteBook()
    book.naming(switch)
    book.naming(switch * 2)
    assert [(e.phase, e.site.file, e.site.line) for e in book.entries()] == [(switch, str(file), 4)]


def test_an_evaluation_is_at_the_line_that_no_training_forward_goes_through() -> None:
    """It calls the same function as the training; where all lines are shared, the innermost is told."""
    book = SiteBook()
    program = """
def forecast(phase):
    note(phase)

def vali():
    forecast("evaluation")

def either(phase):
    forecast(phase)

def alone():
    note("evaluation")

def train():
    forecast("forward")
    vali()
    alone()

train()
for phase in ("forward", "evaluation"):
    either(phase)
"""
    exec(compile(program, "/home/me/train.py", "exec"), {"note": lambda phase: book.note(phase)})
    found = {(entry.phase, entry.site.line, entry.site.function) for entry in book.entries()}
    assert found == {
        ("forward", 3, "forecast"),
        ("evaluation", 6, "vali"),
        ("evaluation", 12, "alone"),
        ("evaluation", 3, "forecast"),
    }
