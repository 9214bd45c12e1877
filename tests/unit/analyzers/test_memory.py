"""Findings of memory: each where its truth holds, none where it does not; and what is done about them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from unit.snapshots import MB, Training

from torch_bottleneck.analyzers import find_all
from torch_bottleneck.analyzers.findings.memory_failure import ResidentGrowth
from torch_bottleneck.analyzers.sections.context import build_context
from torch_bottleneck.analyzers.sections.memory_context import memory_context
from torch_bottleneck.catalog.match import match
from torch_bottleneck.cli.group import cli
from torch_bottleneck.cli.main import run
from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.codes import BottleneckClass, WhatIf
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.finding import Finding
from torch_bottleneck.model.memory import MemorySummary
from torch_bottleneck.model.run import Counters, HostFacts, JsonValue, Run, StepTable, Window
from torch_bottleneck.model.snapshot import NotedFailure
from torch_bottleneck.reporters.markdown import render as markdown
from torch_bottleneck.reporters.terminal import render as terminal
from torch_bottleneck.timeline.result import Timeline

from .facts import facts


def diagnosed(folder: Path, *, steps: int = 6, capacity: int = 2000 * MB, **kinds: Any) -> Diagnosis:
    """Diagnose a snapshot with its notes, and nothing else."""
    training = Training()
    for _ in range(steps):
        training.step(**kinds)
    notes = msgspec.structs.replace(training.notes, capacity_bytes=capacity)
    path = training.write(folder / "host_1.snapshot.pickle")
    (folder / "host_1.notes.json").write_bytes(msgspec.json.encode(notes))
    return diagnose_paths([path])


def codes(diagnosis: Diagnosis, *, notes: bool | None = None) -> set[str]:
    return {f.code for f in diagnosis.findings if f.code.startswith("BN2") and notes in (None, f.note)}


def fixes(diagnosis: Diagnosis) -> set[str]:
    return {suggestion.fix for suggestion in diagnosis.suggestions}


def test_a_healthy_training_has_room_and_no_complaint(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path)
    assert codes(diagnosis, notes=False) == set()
    assert "BN210" in codes(diagnosis, notes=True)
    assert "FX213" not in fixes(diagnosis), "nothing is to be bought where memory is plentiful"
    assert "FX221" in fixes(diagnosis)


@pytest.mark.parametrize(
    ("kinds", "code", "fix"),
    [
        ({"leak_bytes": 5 * MB}, "BN205", "FX211"),
        ({"keep_gradients": True}, "BN204", "FX210"),
        ({"spike_bytes": 900 * MB}, "BN206", "FX212"),
        ({}, "BN208", "FX213"),
        ({}, "BN209", "FX217"),
    ],
)
def test_where_memory_is_short_the_cause_is_named_with_its_fix(
    tmp_path: Path, kinds: dict[str, Any], code: str, fix: str
) -> None:
    calm = diagnosed(tmp_path)
    peak = diagnosed(tmp_path, **kinds).memory[0].peak_bytes
    short = diagnosed(tmp_path, capacity=int(peak * 1.2), **kinds)
    assert code in codes(short, notes=False)
    assert fix in fixes(short)
    if kinds:
        assert code not in codes(calm)


def test_states_that_fill_the_memory(tmp_path: Path) -> None:
    training = Training(layers=4, parameter_bytes=200 * MB)
    for _ in range(4):
        training.step()
    notes = msgspec.structs.replace(training.notes, capacity_bytes=4000 * MB)
    path = training.write(tmp_path / "h.snapshot.pickle")
    (tmp_path / "h.notes.json").write_bytes(msgspec.json.encode(notes))
    diagnosis = diagnose_paths([path])
    assert "BN207" in codes(diagnosis, notes=False)
    assert "FX216" in fixes(diagnosis)
    assert "FX213" not in fixes(diagnosis)


def test_a_leak_says_when_memory_is_full(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, leak_bytes=5 * MB)
    leak = next(f for f in diagnosis.findings if f.code == "BN205")
    assert f"full in {(2000 * MB - diagnosis.memory[0].peak_bytes) // (5 * MB)} steps" in leak.title
    assert leak.sites[0].line == 31
    assert "BN210" not in codes(diagnosis), "no larger batch into a memory that leaks"


def test_running_out_is_told_before_any_step_is(tmp_path: Path) -> None:
    training = Training()
    failure = NotedFailure(
        at_us=training.memory.now_us, device=0, requested_bytes=64 * MB, limit_bytes=100 * MB,
        device_free_bytes=MB, phase="forward", step=0, window="warm-up",
    )  # fmt: skip
    notes = msgspec.structs.replace(training.notes, failure=failure, capacity_bytes=100 * MB)
    path = training.write(tmp_path / "h.oom.snapshot.pickle")
    (tmp_path / "h.oom.notes.json").write_bytes(msgspec.json.encode(notes))
    diagnosis = diagnose_paths([path])
    found = next(f for f in diagnosis.findings if f.code == "BN213")
    assert "forward of step 1" in found.title and "optimizer state" in found.title
    assert {"FX216", "FX220"} <= fixes(diagnosis)
    assert not found.note


# ----------------------------------------------------------------------------- a snapshot and nothing else


def test_a_snapshot_alone_says_nothing_of_time(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path)
    verdict = diagnosis.verdict
    assert verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    assert "nothing about time" in verdict.reason
    assert diagnosis.step.true_ms is None
    assert diagnosis.budget == ()
    assert "No training step" not in markdown(diagnosis), "five were found, in the memory history"


def test_traffic_with_the_driver_is_told_without_a_price(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, empty_cache=True)
    found = next(f for f in diagnosis.findings if f.code == "BN201")
    assert found.cost_ms is None and "only a trace can tell" in found.title
    assert {10, 40} <= {site.line for site in found.sites}
    assert "BN201" not in codes(diagnosed(tmp_path))


def test_analyze_prints_what_a_snapshot_tells(tmp_path: Path) -> None:
    diagnosed(tmp_path, leak_bytes=5 * MB)
    ended = CliRunner().invoke(cli, ["analyze", str(tmp_path / "host_1.snapshot.pickle")])
    assert ended.exit_code == 3
    for text in ("peak 2", "optimizer state", "train.py:30", "BN205", "step time not measured"):
        assert text in ended.output


def test_both_reports_have_the_section_and_markdown_nothing_that_acts(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path)
    assert "Memory\n" in terminal(diagnosis)
    assert "## Memory" in markdown(diagnosis)
    hostile = msgspec.structs.replace(
        diagnosis.memory[0],
        peak_when="<script>\x1b[31m",
        holders=tuple(
            msgspec.structs.replace(h, site=None, where="`rm` <img src=x>")
            for h in diagnosis.memory[0].holders
        ),
    )
    text = markdown(msgspec.structs.replace(diagnosis, memory=(hostile,)))
    assert "<script>" not in text and "<img" not in text and "\x1b" not in text


def test_several_devices_are_all_told_when_asked(tmp_path: Path) -> None:
    first, second = Training(), Training(device=1, layers=2)
    for training in (first, second):
        training.step()
    both = first.memory.snapshot()
    both["segments"] += second.memory.segments()
    both["device_traces"] = [first.memory.events, second.memory.events]
    import pickle

    path = tmp_path / "two.pickle"
    path.write_bytes(pickle.dumps(both))
    diagnosis = diagnose_paths([path])
    assert [m.device for m in diagnosis.memory] == [0, 1], "the fullest first"
    assert "device 1" in terminal(diagnosis, verbose=True)
    assert "1 more with --verbose" in terminal(diagnosis)


def test_of_several_ranks_the_fullest_is_told(tmp_path: Path) -> None:
    for rank, layers in ((0, 2), (1, 5), (2, 3)):
        training = Training(layers=layers)
        training.step()
        training.write(tmp_path / f"rank{rank}.snapshot.pickle")
    diagnosis = diagnose_paths([tmp_path])
    assert len(diagnosis.ranks) == 3
    assert any("rank 1" in note for note in diagnosis.notes)
    assert diagnosis.memory[0].source == "rank1.snapshot.pickle"


# ------------------------------------------------------------------------------------------ without a GPU


def _grown(bytes_per_step: float, *, steps: int = 20, gap: bool = False, start: int = 4_000_000_000) -> Run:
    index = list(range(steps)) if not gap else [*range(steps // 2), *range(steps, steps + steps // 2)]
    return Run(
        host=HostFacts(memory_bytes=16_000_000_000),
        windows=[
            Window(
                name="baseline",
                status="ok",
                steps=StepTable(index=index, wall_ms=[100.0] * steps),
                before=Counters(rss_bytes=start),
                after=Counters(rss_bytes=start + int(bytes_per_step * steps)),
            )
        ],
    )


def _growth(run: Run) -> list[Finding]:
    return list(ResidentGrowth().find(facts("cpu", run=run, context=memory_context(run, ()))))


def test_a_process_that_grows_says_when_the_machine_is_full() -> None:
    (found,) = _growth(_grown(30e6))
    assert found.title.startswith(
        "Resident memory grows by 28.6 MiB per step: memory is full in about 380 steps"
    )


@pytest.mark.parametrize(
    "run",
    [_grown(0), _grown(-5e6), _grown(0.4e6), _grown(1.05e5), _grown(10e6), _grown(2e6, start=400_000_000)],
)
def test_caches_that_fill_a_little_are_no_finding(run: Run) -> None:
    assert _growth(run) == []


def test_a_baseline_completed_after_the_captures_leaves_the_steps_behind_them() -> None:
    """As of every script whose end is not known: the baseline has a gap, the steps after it have none."""
    run = _grown(30e6, gap=True)
    behind = _grown(8e6, steps=15, start=500_000_000).windows[0]
    later = StepTable(index=list(range(20, 35)), wall_ms=[100.0] * 15)
    run.windows.append(msgspec.structs.replace(behind, name="after", steps=later))
    (found,) = _growth(run)
    assert found.title.startswith("Resident memory grows by 7.63 MiB per step")
    assert found.evidence[0].text == "7.63 MiB per step over 15 unprofiled steps"
    assert found.evidence[0].source == "after window"


def test_growth_is_not_told_of_few_steps_or_across_the_captures() -> None:
    assert memory_context(_grown(30e6, steps=5), ())["memory.resident_growth"] is None
    assert memory_context(_grown(30e6, gap=True), ())["memory.resident_growth"] is None
    assert memory_context(None, ())["memory.resident_growth"] is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"segments": [{"address": 10**6000}]}, "whole number"),
        ({"segments": [], "device_traces": []}, "is empty"),
        ({"segments": [1]}, "list of dicts"),
        ("text", "not a memory snapshot"),
    ],
)
def test_what_cannot_be_read_ends_in_an_error_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: object, says: str
) -> None:
    path = tmp_path / "x.snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    assert run(["analyze", str(path)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert says in told and "x.snapshot.pickle" in told and "Traceback" not in told


# --------------------------------------------------------------------------------------- the allocator


def test_retries_without_a_call_in_the_trace_are_not_counted_as_calls() -> None:
    """As after a failure that the script caught: the retry is the baseline's, the trace is quiet."""
    known = facts(context={"allocator.retries_per_step": 0.05})
    (finding,) = (f for f in find_all(known) if f.code == "BN201")
    assert finding.title.startswith("0.05 times per step the allocator freed all")


def test_a_limit_on_splitting_is_told_and_rules_out_what_it_defeats(tmp_path: Path) -> None:
    """max_split_size_mb keeps large blocks from smaller requests: the largest batch first is no use."""
    saves, varying = {WhatIf.ALLOCATOR_FREE: 20.0}, {"step.varying_shapes": True, "device.kind": "cuda"}
    for limit in (True, False):
        known = facts(saves=saves, context={**varying, "allocator.max_split": limit})
        (finding,) = (f for f in find_all(known) if f.code == "BN201")
        assert any("max_split_size_mb" in e.text for e in finding.evidence) is limit
        suggested = {s.fix for s in match([finding], known.context, known.timeline.what_ifs, 100.0)}
        assert ("FX203" in suggested) is not limit and "FX202" in suggested
    training = Training()
    training.step()
    content = training.memory.snapshot()
    content["allocator_settings"] = {"max_split_size": 32 * MB, "expandable_segments": True}
    path = tmp_path / "x.snapshot.pickle"
    path.write_bytes(pickle.dumps(content))
    told = memory_context(None, diagnose_paths([path]).memory)
    assert (told["allocator.max_split"], told["allocator.expandable_segments"]) == (True, True)


def _sharded(missing: int, *, world: int = 2) -> Run:
    run = _grown(0)
    used = Counters(rss_bytes=2_000_000_000, rusage={"ru_maxrss": 2_000_000})
    window = msgspec.structs.replace(run.windows[0], after=used)
    settings: dict[str, JsonValue] = {"distributed.replica_bytes": missing}
    return msgspec.structs.replace(run, windows=[window], world_size=world, settings=settings)


def test_whether_the_whole_model_fits_on_each_rank_counts_all_ranks_of_a_machine() -> None:
    key = "memory.replica_share"
    assert memory_context(_sharded(1_600_000_000), ())[key] == pytest.approx(2 * (2.048 + 1.6) / 16)
    assert memory_context(_sharded(1_600_000_000, world=4), ())[key] == pytest.approx(4 * (2.048 + 1.6) / 16)
    assert memory_context(_grown(0), ())[key] is None, "nothing is sharded"
    summary = MemorySummary(peak_bytes=30, reserved_peak_bytes=40, capacity_bytes=100, composition=[])
    assert memory_context(_sharded(20), (summary,))[key] == pytest.approx(0.6)


@pytest.mark.parametrize(("moved", "fits"), [(4 << 30, True), (6 << 30, False), (None, None)])
def test_activations_on_the_host_fit_where_the_peak_leaves_as_much_free(
    moved: int | None, fits: bool | None
) -> None:
    context: dict[str, JsonValue] = {"allocator.headroom_share": 0.5, "device.total_bytes": 10 << 30}
    context |= {} if moved is None else {"copies.offloaded_bytes": float(moved)}
    timeline = Timeline(
        kind="gpu", true_ms=100.0, profiled_ms=110.0, steps=8, budget=(), what_ifs={}, context=context
    )
    step = facts().step
    built = build_context(timeline=timeline, step=step, run=None, loaders=None, compile_facts=None)
    assert built.get("copies.offloaded_fits") is fits
