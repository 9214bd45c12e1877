"""One table of exit codes: README, `--help` and the code say the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from torch_bottleneck import errors
from torch_bottleneck.cli import main
from torch_bottleneck.cli.group import cli
from torch_bottleneck.harness.process.outcome import exit_code
from torch_bottleneck.model.run import ScriptOutcome
from torch_bottleneck.runs.launch import Ended
from torch_bottleneck.runs.run_script import RunFolder

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
TABLE = README.partition("| exit code | |\n|---|---|\n")[2].partition("\n\n")[0]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \|$", TABLE, re.MULTILINE)
CODES = {int(code): meaning for code, meaning in ROWS if code.isdigit()}


def test_readme_has_the_codes_of_the_errors() -> None:
    raised = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.BottleneckError)
    }
    assert raised | {0, 1, 130} == set(CODES)
    assert [code for code, _ in ROWS].count("the script's own") == 2


def test_the_command_line_documents_the_same() -> None:
    assert {int(code) for code in re.findall(r"^    (\d+)  ", str(main.__doc__), re.MULTILINE)} == set(CODES)
    assert "any other: that of a script" in str(main.__doc__)


def test_the_help_of_diagnose_says_the_same() -> None:
    command = cli.get_command(click.Context(cli), "diagnose")
    assert command is not None
    said = " ".join(command.get_help(click.Context(command)).split())
    listed = said.partition("Exit codes: ")[2].partition(".")[0]
    assert {int(code) for code in re.findall(r"\b\d+\b", listed)} == set(CODES) - {1}
    assert "exits by itself with another code than 0 hands it on" in said
    assert "with --run-to-end also after an exception (1) or a signal (128 + its number)" in said


@pytest.mark.parametrize(
    ("how", "returncode", "to_its_end", "stopped_early"),
    [
        ("finished", 0, 0, 0),
        ("stopped", 0, 0, 0),
        ("exited", 5, 5, 5),
        ("raised", 1, 1, 4),
        ("killed", -9, 137, 4),
        ("killed", 143, 143, 4),
    ],
)
def test_a_script_s_end_becomes_this_code(
    how: str, returncode: int, to_its_end: int, stopped_early: int
) -> None:
    run = RunFolder(
        folder=None,
        outcome=ScriptOutcome(how=how),  # type: ignore[arg-type]
        ended=Ended(returncode=returncode, began_ns=0, seconds=0.0),
        missing=(),
        world_size=1,
    )
    assert run.exit_code(run_to_end=True) == to_its_end
    assert run.exit_code(run_to_end=False) == stopped_early


def test_what_a_script_hands_to_exit_becomes_python_s_code() -> None:
    for value in (
        None,
        "text",
        True,
        5,
        256 + 7,
        -1,
        2**62 + 3,
        2**63 - 1,
        2**63,
        -(2**63),
        -(2**63) - 1,
        2**70,
    ):
        done = subprocess.run(
            [sys.executable, "-S", "-c", f"raise SystemExit({value!r})"], capture_output=True
        )
        assert exit_code(SystemExit(value)) == done.returncode, value
