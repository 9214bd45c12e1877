"""Every kind of training script: our steps are its steps, and a capture comes of it.

Each script in `kinds/` notes the moments at which its own steps begin. Once the step rule has
learned the cycle (that is, in every window after the warm-up), each step of ours must hold exactly
one such moment: never none (a cut too many), never two (a cut too few).
"""

from __future__ import annotations

import bisect
import gzip
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import forked
import msgspec
import pytest

from torch_bottleneck.model.run import Run
from torch_bottleneck.runs.plan import Plan, encode_plan

KINDS = Path(__file__).parent / "kinds"

# name -> (signal, period, backward passes per step)
EXPECTED = {
    "plain": ("optimizer+fetch", 1, 1),
    "accumulation": ("optimizer+fetch", 1, 4),
    "engine": ("optimizer+fetch", 1, 2),
    "gan": ("optimizer+fetch", 1, 2),
    "gan_without_loader": ("optimizer", 2, 2),
    "wgan": ("optimizer+fetch", 1, None),
    "lbfgs": ("optimizer+fetch", 1, None),
    "all_in_a_closure": ("optimizer", 1, None),
    "solver": ("closure", 1, 1),
    "solver_in_steps": ("closure", 1, 1),
    "scaler_skips": ("optimizer+fetch", 1, 1),
    "several_loaders": ("optimizer+fetch", 1, 1),
    "validation": ("optimizer+fetch", 1, 1),
    "iterable_worker": ("optimizer+fetch", 1, 1),
    "memmap": ("optimizer", 1, 3),
    "manual_update": ("backward", 1, 1),
    "optimizer_in_backward": ("optimizer+fetch", 1, 1),
    "optimizer_pair": ("optimizer", 1, 1),
    "cached_batches": ("optimizer+fetch", 1, 1),
    "in_a_thread": ("optimizer", 1, 1),
    "compiled_model": ("optimizer+fetch", 1, 1),
    "compiled_step": (None, 1, 1),
    # Python 3.13 under torch 2.13: the compiled step breaks, and its eager part calls the hooks.
    "compiled_optimizer": ("zero_grad" if sys.version_info < (3, 13) else None, 1, 1),
}
LIBRARIES = {
    "lightning_fit": ("optimizer+fetch", 1, 1),
    "hf_trainer": ("optimizer+fetch", 1, 2),
}


def capture(
    kind: str, folder: Path, *, environment: dict[str, str] | None = None, **wishes: object
) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run a kind of script under the harness; return the process and the true step beginnings."""
    truth = folder / "truth"
    plan = Plan(script=str(KINDS / f"{kind}.py"), out=str(folder / "run"), quiet=True, **wishes)  # type: ignore[arg-type]
    done = forked.run(
        [sys.executable, "-m", "torch_bottleneck.harness", encode_plan(plan)],
        env={
            **os.environ,
            "TRUTH_FILE": str(truth),
            "OMP_NUM_THREADS": "1",
            **(environment or {}),
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done, [int(line) for line in truth.read_text().split()] if truth.exists() else []


def load(folder: Path) -> Run:
    return msgspec.json.decode((folder / "run.json").read_bytes(), type=Run)


def moments_per_step(run: Run, truth: list[int]) -> list[int]:
    """Count the true beginnings inside each step of the windows after the warm-up."""
    counts = []
    for window in run.windows:
        if window.name == "warm-up":
            continue
        for start, ms in zip(window.steps.start_ns, window.steps.wall_ms, strict=True):
            # A script notes its beginning just before the event that we cut at, so the moment
            # that belongs to a step is the one near its end: count the half-open (start, end].
            end = start + int(ms * 1e6)
            counts.append(bisect.bisect_right(truth, end) - bisect.bisect_right(truth, start))
    return counts


def check(kind: str, folder: Path, expected: tuple[str | None, int, int | None]) -> Run:
    done, truth = capture(kind, folder)
    assert done.returncode == 0, done.stderr
    run = load(folder / "run" / "main")
    signal, period, micro_steps = expected
    if signal is not None:
        assert run.step_signal == signal
    assert run.step_period == period
    counts = moments_per_step(run, truth)
    if run.outcome.how == "finished" and counts[-1] == 0:
        # Its last step is followed by none whose beginning could be noted.
        counts.pop()
    assert set(counts) == {1}, counts
    states = {window.name: window.status for window in run.windows}
    # These scripts end while their steps are timed; by then all else is there.
    assert states.pop("after", "short") in ("ok", "short")
    assert states == dict.fromkeys(("warm-up", "baseline", "trace"), "ok")
    assert run.artefacts["flops"].status == "ok"
    assert run.dispatch_ns is not None
    baseline = run.window("baseline")
    assert baseline is not None
    assert len(baseline.steps.wall_ms) >= 10
    if micro_steps is not None:
        assert set(baseline.steps.micro_steps) == {micro_steps}
    check_trace(folder / "run" / "main", run, steps=8)
    assert run.outcome.how in ("stopped", "finished")
    return run


def test_a_thread_that_ends_while_it_is_recorded_costs_only_that_recording(tmp_path: Path) -> None:
    """torch lets no other thread end a recording: to try it anyway was a segmentation fault."""
    # No size is too large, so that no shorter recording is made first.
    wishes = {"warmup": 4, "baseline_steps": 12, "steps": 10_000, "trace_bytes_cap": 10**12}
    done, truth = capture("in_a_thread", tmp_path, **wishes)
    assert done.returncode == 0, done.stderr
    assert len(truth) == 700, "the script came to its end"
    run = load(tmp_path / "run" / "main")
    assert run.outcome.how == "finished"
    assert run.artefacts["trace"].status == "failed"
    assert "another thread" in (run.artefacts["trace"].reason or "")
    baseline = run.window("baseline")
    assert baseline is not None
    assert baseline.status == "ok"


def check_trace(folder: Path, run: Run, *, steps: int) -> dict[str, int]:
    """The trace holds one ProfilerStep per step and phases that nest in them; return label counts."""
    artefact = run.artefacts["trace"]
    assert artefact.status == "ok", artefact.reason
    assert artefact.path is not None
    with gzip.open(folder / artefact.path) as file:
        events = json.load(file)["traceEvents"]
    labels: dict[str, int] = {}
    for event in events:
        if event.get("cat") == "user_annotation":
            name = event["name"].split("#")[0]
            labels[name] = labels.get(name, 0) + 1
    assert labels["ProfilerStep"] == steps
    return labels


@pytest.mark.parametrize("kind", EXPECTED)
def test_each_step_is_one_step_of_the_script(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, EXPECTED[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIBRARIES)
def test_libraries_that_own_the_loop(kind: str, tmp_path: Path) -> None:
    check(kind, tmp_path, LIBRARIES[kind])


def test_validation_is_marked_and_does_not_count(tmp_path: Path) -> None:
    _done, truth = capture("validation", tmp_path, baseline_steps=20)
    run = load(tmp_path / "run" / "main")
    assert run.outcome.how in ("stopped", "finished")
    baseline = run.window("baseline")
    assert baseline is not None
    marked = [i for i, v in zip(baseline.steps.index, baseline.steps.validation, strict=True) if v]
    # Every tenth step of the script evaluates before it fetches, at the end of a step of ours.
    assert marked
    assert all(step % 10 == marked[0] % 10 for step in marked)
    assert truth


def test_what_a_solver_does_between_two_evaluations_is_the_optimizer_s(tmp_path: Path) -> None:
    _done, _truth = capture("solver", tmp_path)
    folder = tmp_path / "run" / "main"
    run = load(folder)
    baseline = run.window("baseline")
    assert baseline is not None
    assert all(min(baseline.steps.phases_ms[name]) > 0 for name in ("forward", "backward", "optimizer"))
    labels = check_trace(folder, run, steps=8)
    # What lies behind the last of them belongs to the step after the trace.
    assert labels["forward"] == 2 * labels["backward"] == 16
    assert labels["optimizer"] == 8


def test_phases_are_measured_and_labelled(tmp_path: Path) -> None:
    _done, _truth = capture("plain", tmp_path)
    folder = tmp_path / "run" / "main"
    run = load(folder)
    baseline = run.window("baseline")
    assert baseline is not None
    phases = {"data", "forward", "backward", "optimizer", "zero_grad"}
    assert set(baseline.steps.phases_ms) == phases
    for i, wall in enumerate(baseline.steps.wall_ms):
        assert 0 < sum(column[i] for column in baseline.steps.phases_ms.values()) <= wall
    labels = check_trace(folder, run, steps=8)
    assert {name: labels[name] for name in phases} == {
        "data": 8,
        "forward": 16,
        "backward": 8,
        "optimizer": 8,
        "zero_grad": 8,
    }
    # The most frequent line of each phase comes first.
    lines = {site.phase: site.site.line for site in reversed(run.sites)}
    source = (KINDS / "plain.py").read_text().splitlines()
    assert "next(batches)" in source[lines["data"] - 1]
    assert "backward()" in source[lines["backward"] - 1]
    assert "optimizer.step()" in source[lines["optimizer"] - 1]
    assert run.optimizers[0].cls == "AdamW"
    assert run.dispatch_ns is not None
    assert run.dispatch_ns > 0


@pytest.mark.slow
def test_ranks_stop_at_the_same_step(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    plan = Plan(script=str(KINDS / "ddp.py"), out=str(tmp_path / "run"), quiet=True)
    processes = [
        forked.Popen(
            [sys.executable, "-m", "torch_bottleneck.harness", encode_plan(plan)],
            env={
                **os.environ,
                "TRUTH_FILE": str(tmp_path / "truth"),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "WORLD_SIZE": "2",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        _out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
    runs = [load(tmp_path / "run" / f"rank{rank}") for rank in range(2)]
    steps = [[(w.name, w.steps.index) for w in run.windows] for run in runs]
    assert steps[0] == steps[1]
    for rank, run in enumerate(runs):
        truth = [int(t) for t in (tmp_path / f"truth{rank}").read_text().split()]
        assert set(moments_per_step(run, truth)) == {1}
        assert run.artefacts["trace"].status == "ok"
        assert (run.rank, run.world_size) == (rank, 2)
