"""The hooks are invisible to torch.compile: dynamo counts the same with and without them.

Graphs, captured calls, breaks, recompiles and losses must be equal, also while our profiler runs
in between (the run goes on to its end). Compiled frames may differ by the few that a profiler
adds or a compiled optimizer loses, which is known from torch itself.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import forked
import msgspec
import pytest
from session import once

from torch_bottleneck.model.run import Run
from torch_bottleneck.runs.plan import Plan, encode_plan

SCRIPT = Path(__file__).parent / "kinds" / "neutral.py"
CASES = ("model", "in_place", "blocks", "loss", "step", "optimizer", "breaks", "nothing")


def counted(command: list[str]) -> dict[str, Any]:
    done = forked.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return counts


def counted_alone(case: str) -> dict[str, Any]:
    """Return what dynamo counts without us, which every process of this session runs once."""
    made = once(f"alone-{case}.json", lambda: json.dumps(counted([str(SCRIPT), case])).encode())
    counts: dict[str, Any] = json.loads(made)
    return counts


def check_counts(alone: dict[str, Any], watched: dict[str, Any], case: str, *, frames: int) -> None:
    """Hold a run with us to one without; `frames`: how many more or fewer a compiled update may have."""
    totals = [counts.pop("frames").get("total", 0) for counts in (alone, watched)]
    allowed = frames if case in ("step", "optimizer") else 0
    if sys.version_info >= (3, 13) and allowed:
        # Seen with 3.13.0: torch's own wrapper of a step that has hooks breaks once instead of twice,
        # and its resumed frames count for themselves. Graphs, calls and recompiles are the same.
        assert 0 <= alone.pop("breaks") - watched.pop("breaks") <= 1
        allowed = 20
    assert watched == alone
    assert (alone["stats"].get("unique_graphs", 0) >= 1) == (case != "nothing")
    assert abs(totals[0] - totals[1]) <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_dynamo_counts_the_same(case: str, tmp_path: Path) -> None:
    alone = counted_alone(case)
    plan = Plan(script=str(SCRIPT), out=str(tmp_path / "run"), quiet=True, run_to_end=True)
    watched = counted(["-m", "torch_bottleneck.harness", encode_plan(plan), case])
    # One for each profile of ours that steps follow: the trace, and the step whose FLOPs are counted.
    check_counts(alone, watched, case, frames=2)
    run = msgspec.json.decode((tmp_path / "run" / "main" / "run.json").read_bytes(), type=Run)
    assert run.artefacts["trace"].status == "ok"
