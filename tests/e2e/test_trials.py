"""Fixes tried in the running script: measured, put back, and never the script's problem."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from e2e.running import Result, diagnose

TRAIN = """
import os, signal, sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 1)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
print("starts")
for i in range(int(os.environ.get("STEPS", "100000"))):
    optimizer.zero_grad(set_to_none=False)
    loss = model(torch.randn(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    BODY
print("ends", i)
"""


def script(folder: Path, body: str = "pass") -> None:
    (folder / "train.py").write_text(TRAIN.replace("BODY", textwrap.indent(body, " " * 4).strip()))


def trials(got: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((got.folder / "trials.json").read_text())
    return found


def diagnosis(got: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((got.folder / "diagnosis.json").read_text())
    return found


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("tried")
    script(folder)
    return diagnose(folder, "--trial-seconds", "20", "train.py")


def test_suggestions_are_measured_and_shown(tried: Result) -> None:
    assert tried.code == 0, tried.err
    rows = {row["fix"]: row for row in trials(tried)["rows"]}
    assert rows["FX311"]["state"] == "measured", rows
    assert len(rows["FX311"]["with_ms"]) == len(rows["FX311"]["without_ms"]) >= 3
    suggested = {s["fix"]: s.get("measured") for s in diagnosis(tried)["suggestions"]}
    assert suggested["FX311"]["verdict"] in ("faster", "slower", "no-difference", "undecided")
    assert suggested["FX311"]["loss"] == "same", "the fused optimizer computes the same"
    assert "in this run" in tried.out
    assert "FX311" in (tried.folder / "report.md").read_text()


def test_losses_repeat_from_the_state_that_was_kept(tried: Result) -> None:
    found = trials(tried)
    assert found["losses"] == found["losses_again"] != []
    assert not found["no_losses"]


def test_the_script_printed_what_it_prints_and_was_stopped(tried: Result) -> None:
    assert tried.out.startswith("starts\n")
    assert "ends" not in tried.out
    run = json.loads((tried.folder / "run.json").read_text())
    assert run["outcome"]["how"] == "stopped"
    assert run["artefacts"]["trials"]["status"] == "ok"


def test_the_capture_says_nothing_of_what_was_tried(tried: Result) -> None:
    """Compile facts and loaders are those of the script, not of the fixes."""
    assert diagnosis(tried)["compile"] in (None, {}) or not diagnosis(tried)["compile"].get("graphs")
    assert [window["name"] for window in diagnosis(tried)["windows"]][-1] != "trials"


def test_none_are_made_when_none_are_wanted(tmp_path: Path) -> None:
    script(tmp_path)
    got = diagnose(tmp_path, "--trial-seconds", "0", "train.py")
    assert got.code == 0
    assert not (got.folder / "trials.json").exists()


def test_with_run_to_end_the_script_is_left_alone(tmp_path: Path) -> None:
    script(tmp_path)
    got = diagnose(tmp_path, "--trial-seconds", "20", "--run-to-end", "train.py", STEPS="400")
    assert got.code == 0 and "ends 399" in got.out
    assert not (got.folder / "trials.json").exists()


def test_a_script_that_is_over_first_gets_its_report(tmp_path: Path) -> None:
    script(tmp_path)
    got = diagnose(tmp_path, "--trial-seconds", "20", "train.py", STEPS="150")
    assert got.code == 0 and "ends 149" in got.out
    states = {row["state"] for row in trials(got)["rows"]} if (got.folder / "trials.json").exists() else set()
    assert states <= {"not tried"}


DEATHS = {
    "raises": 'raise RuntimeError("out of luck")',
    "exits": "sys.exit(7)",
    "leaves": "os._exit(9)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("name", list(DEATHS))
def test_whatever_ends_the_script_during_trials_costs_the_report_nothing(tmp_path: Path, name: str) -> None:
    """The steps of the capture are some 150; the death comes with the first trial's steps at the latest."""
    script(tmp_path, f"if i > 150 and any(p.endswith('trials.json') for p in glob()):\n    {DEATHS[name]}")
    source = (tmp_path / "train.py").read_text()
    helper = (
        "import glob as _glob\n"
        "def glob():\n"
        f"    return _glob.glob({os.fspath(tmp_path)!r} + '/.run.partial/.main.partial/*')\n"
    )
    (tmp_path / "train.py").write_text(helper + source)
    got = diagnose(tmp_path, "--trial-seconds", "20", "train.py")
    assert got.code == 0, got.err
    assert diagnosis(got)["verdict"]["class"]
    run = json.loads((got.folder / "run.json").read_text())
    assert run["outcome"]["how"] == "stopped"
    assert {row["state"] for row in trials(got)["rows"]} <= {"not tried", "under way", "failed", "measured"}
