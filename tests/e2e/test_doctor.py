"""`bottleneck doctor` on this machine: it ends, says what it looked at, and changes nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from recorded.cases import CASES

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_it_looks_at_everything_and_this_environment_passes(bottleneck: Run, tmp_path: Path) -> None:
    done = bottleneck("doctor", "--format", "json")
    found = json.loads(done.stdout)
    assert done.returncode == 0, [check for check in found if check["level"] == "problem"]
    areas = {check["area"] for check in found}
    assert areas == {"versions", "TensorBoard", "profiler", "processors", "space and permissions"}
    (profile,) = [check for check in found if check["area"] == "profiler"]
    assert "records operators" in profile["text"]
    assert list(tmp_path.iterdir()) == []


def test_traces_are_looked_at_where_given(bottleneck: Run) -> None:
    done = bottleneck("doctor", "--quick", CASES["ddp-h200"].folder)
    assert done.returncode == 0
    assert "as torch wrote them" in done.stdout and "To do: bottleneck review" in done.stdout
    assert "profiler:" not in done.stdout.replace("TensorBoard's profiler", ""), (
        "--quick leaves the profile out"
    )


@pytest.mark.parametrize("name", ["nope", "empty.json"])
def test_a_problem_is_exit_code_2_without_a_traceback(bottleneck: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.json").touch()
    done = bottleneck("doctor", "--quick", name)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert name in done.stdout + done.stderr
