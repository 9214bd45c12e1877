"""Watched jobs, compared: the whole and its parts, growth, and what counts for the outcome."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from recorded.watched_job import RUN
from unit.compare.sides import baseline, site

from torch_bottleneck.compare.baseline_file import baseline_text, read_baseline
from torch_bottleneck.compare.decide import compare_sides
from torch_bottleneck.compare.gate import Gate
from torch_bottleneck.compare.job import WHOLE
from torch_bottleneck.compare.sides import Side, read_side
from torch_bottleneck.errors import UsageError
from torch_bottleneck.model.baseline import GrowthKey, JobTimes, RunTime
from torch_bottleneck.model.compare import Comparison
from torch_bottleneck.model.gate import GateSettings
from torch_bottleneck.reporters.compare.output import COMPARE_FORMATS
from torch_bottleneck.reporters.output import render_for
from torch_bottleneck.runs.target import Target

GROWTH = GrowthKey(ms_per_1000_steps=3.1, low=2.9, high=3.3, what="self.outputs", site=site(48))


def job(scale: float = 1.0, *, validation_s: float = 100.0, growth: GrowthKey | None = None) -> RunTime:
    steps_s = 500.0 * scale
    seconds = {"set-up": 10.0, "training steps": steps_s, "validation": validation_s}
    return RunTime(
        step_ms=steps_s / 5,
        count=5000,
        error=0.01,
        job=JobTimes(
            wall_s=sum(seconds.values()),
            steps=5000,
            seconds=seconds,
            counts={"training steps": 5000, "validation": 10},
            growth=growth,
        ),
    )


def watched(*runs: RunTime) -> Side:
    return Side(label="run", baseline=baseline(counters=None, runs=runs))


def compared(base: Side, head: Side, *, interleaved: bool = False) -> Comparison:
    return compare_sides(base, head, settings=GateSettings(), interleaved=interleaved)


def several(scale: float = 1.0, **changes: float) -> Side:
    return watched(*(job(scale * noise, **changes) for noise in (1.0, 1.01, 0.99, 1.005)))


def test_the_part_that_takes_longer_is_named_with_its_interval_and_the_whole_job_counts() -> None:
    found = compared(several(), several(validation_s=200.0), interleaved=True)
    rows = {row.part: row for row in found.job}
    assert [row.part for row in found.job][:2] == [WHOLE, "validation"]
    validation = rows["validation"]
    assert (validation.base_count, validation.head_count) == (10, 10)
    assert (validation.time.base_ms, validation.time.head_ms) == (10_000.0, 20_000.0)
    assert validation.time.decision == "slower"
    assert validation.time.interval is not None
    assert not validation.time.gated
    assert rows[WHOLE].time.gated and rows[WHOLE].time.decision == "slower"
    assert rows["training steps"].time.decision == "no change"
    assert found.outcome == "regression"
    assert "whole job" in found.headline


def test_jobs_alike_are_no_regression_and_one_job_a_side_decides_nothing() -> None:
    assert compared(several(), several(), interleaved=True).outcome == "ok"
    once = compared(watched(job()), watched(job()))
    assert {row.time.decision for row in once.job} == {"undecided"}
    assert once.outcome == "ok"


def test_a_whole_job_of_which_nothing_can_be_told_stops_nothing() -> None:
    noisy = [watched(*(job(validation_s=s) for s in times)) for times in ((90, 700, 200), (600, 80, 210))]
    found = compared(*noisy, interleaved=True)
    assert found.job[0].time.gated and found.job[0].time.decision == "undecided"
    assert found.outcome == "ok"


def test_steps_that_begin_to_grow_are_a_regression_of_one_job_alone() -> None:
    found = compared(watched(job()), watched(job(growth=GROWTH)))
    assert found.outcome == "regression"
    assert found.growth is not None and found.growth.status == "worse"
    assert "the steps grow by 3.10 ms per 1000 steps (95 %: 2.90 to 3.30)" in found.headline
    note = next(note for note in found.annotations if note.key == "growth")
    assert note.site is not None and note.site.line == 48
    back = compared(watched(job(growth=GROWTH)), watched(job()))
    assert back.growth is not None and back.growth.status == "better"
    assert back.outcome == "ok"
    # A growth whose interval overlaps is the same one.
    little = msgspec.structs.replace(GROWTH, ms_per_1000_steps=3.3, low=3.1, high=3.5)
    same = compared(watched(job(growth=GROWTH)), watched(job(growth=little)))
    assert same.growth is not None and same.growth.status == "same"


def test_a_side_that_was_not_watched_is_said() -> None:
    found = compared(Side(label="run", baseline=baseline()), watched(job()))
    assert not found.job and found.growth is None
    assert any("Only one side was watched" in note for note in found.notes)


@pytest.mark.parametrize("name", COMPARE_FORMATS)
def test_every_format_shows_jobs(name: str) -> None:
    found = compared(several(), several(validation_s=200.0), interleaved=True)
    text = render_for(found, name)
    assert "validation" in text
    if name == "junit":
        failed = [
            case.get("name")
            for case in ET.fromstring(text).iter("testcase")
            if case.find("failure") is not None
        ]
        assert failed == [f"job: {WHOLE}"]
    elif name == "text":
        assert max(map(len, text.splitlines())) <= 80


def test_recorded_folders_and_a_baseline_of_them(tmp_path: Path) -> None:
    side = read_side([RUN])
    (time,) = side.baseline.runs
    assert time.job is not None and time.job.growth is not None
    assert time.job.counts["validation"] == 4
    assert time.step_ms == pytest.approx(5.5026, rel=1e-3)
    assert time.error is not None and time.error > 0
    (tmp_path / "base.json").write_text(baseline_text(side.baseline))
    again = read_baseline(tmp_path / "base.json")
    assert again.jobs == side.baseline.jobs
    found = compared(Side(label="base", baseline=again), side)
    assert found.outcome == "ok"
    assert found.growth is not None and found.growth.status == "same"
    assert json.loads(render_for(found, "json"))["job"][0]["part"] == WHOLE


def test_a_gate_of_watched_jobs_needs_their_times() -> None:
    gate = Gate(
        target=Target(script="train.py"),
        baseline=Path("base.json"),
        base_folder=None,
        update=True,
        watch=True,
    )
    with pytest.raises(UsageError, match="compares times"):
        gate.check(GateSettings(times="off"))
    gate.check(GateSettings())
