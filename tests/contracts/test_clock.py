"""One rule says how long a step took: diagnose, gate, verify and compare ask the same function."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from torch_bottleneck.compare.join import join_runs
from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.run import DeviceFacts, HostFacts, Run, ScriptOutcome, StepTable, Window
from torch_bottleneck.verify.arms import timed_step

PACKAGE = Path(__file__).parents[2] / "bottleneck"


def write_rank(folder: Path, *, rank: int, host_ms: float, device_ms: float) -> None:
    """A rank whose host ran ahead of its device; of every tenth step the device time is unknown."""
    known = [None if k % 10 == 9 else device_ms + 0.01 * (k % 3) for k in range(40)]
    steps = StepTable(index=list(range(40)), wall_ms=[host_ms] * 40, device_ms=known)
    run = Run(
        command=["train.py"],
        host=HostFacts(cores=4, torch="2.13.0"),
        devices=[DeviceFacts(kind="cuda", name="GPU")],
        rank=rank,
        world_size=2,
        step_signal="optimizer",
        windows=[Window(name="baseline", status="ok", steps=steps)],
        outcome=ScriptOutcome(how="stopped"),
    )
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(msgspec.json.encode(run))


def test_two_ranks_with_device_times_for_nine_steps_of_ten_have_one_step_time(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0", rank=0, host_ms=44.0, device_ms=49.0)
    write_rank(tmp_path / "rank1", rank=1, host_ms=45.0, device_ms=50.0)
    diagnosis = diagnose_paths([tmp_path])
    (gate,) = join_runs([diagnosis]).runs
    verify = timed_step(tmp_path)
    assert verify is not None
    assert diagnosis.step.true_ms == pytest.approx(50.01, abs=0.002), "the device's clock, the slower rank's"
    assert gate.step_ms == pytest.approx(diagnosis.step.true_ms, rel=1e-5)
    assert verify.mean_ms == diagnosis.step.true_ms
    assert gate.count == verify.steps == diagnosis.step.count == 36
    ci = diagnosis.step.true_ci_ms
    assert ci is not None
    assert verify.standard_error_ms == pytest.approx((ci[1] - ci[0]) / 3.92)
    assert gate.error == pytest.approx((ci[1] - ci[0]) / 3.92 / gate.step_ms, rel=1e-4)


def test_device_times_known_for_too_few_steps_are_not_the_clock(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0", rank=0, host_ms=44.0, device_ms=49.0)
    path = tmp_path / "rank0" / "run.json"
    run = msgspec.json.decode(path.read_bytes(), type=Run)
    table = run.windows[0].steps
    half = msgspec.structs.replace(
        table, device_ms=[t if k % 2 else None for k, t in enumerate(table.device_ms)]
    )
    window = msgspec.structs.replace(run.windows[0], steps=half)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(run, windows=[window])))
    verify = timed_step(tmp_path)
    assert verify is not None
    assert verify.mean_ms == diagnose_paths([tmp_path]).step.true_ms == pytest.approx(44.0)


def readers(name: str) -> set[str]:
    """Files of the analysis that read an attribute or call a function of that name."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        text = path.read_text()
        if where.startswith(("harness/", "model/", "stats/")) or name not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if getattr(node, "attr", None) == name or (isinstance(node, ast.Name) and node.id == name):
                found.add(where)
    return found


def test_only_the_clock_reads_device_times_and_only_the_basis_makes_a_mean_of_them() -> None:
    assert readers("device_ms") == {"timeline/steps/clock.py"}
    assert readers("typical_step") == {"timeline/steps/basis.py"}
    assert readers("find_basis") == {"diagnose/reading.py", "verify/arms.py"}


LINES_HAVE_ONE = {
    "analyzers/base.py",
    "analyzers/findings/compute.py",
    "analyzers/findings/host.py",
    "analyzers/findings/calls.py",
    "analyzers/findings/communication.py",
    "analyzers/sections/context.py",
    "model/view.py",
    "timeline/cpu/program.py",
    "timeline/whose/branch.py",
    "timeline/whose/tree.py",
    "timeline/lanes/by_code.py",
    "timeline/cpu/reading.py",
    "timeline/gpu/reading.py",
    "reporters/rows/code.py",
    "reporters/terminal.py",
    "reporters/markdown.py",
    "reporters/brief.py",
}
"""Files that read the role of a line of code in the step, not that of a loader."""


def test_only_one_place_chooses_the_loader_that_feeds_the_training() -> None:
    assert (
        readers("role")
        <= {
            "timeline/steps/supply.py",
            "timeline/steps/workload.py",  # written down
            "analyzers/sections/view_rows.py",  # shown
            "reporters/html/tables.py",  # shown
            "verify/arms.py",  # how long an epoch is
            "compare/comparable.py",  # the same loader on both sides
        }
        | LINES_HAVE_ONE
    )
