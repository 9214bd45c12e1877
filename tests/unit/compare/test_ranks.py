"""Jobs of several ranks, compared: the step of the job counts, and its ranks say why it changed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from recorded.cases import CASES
from unit.compare.sides import baseline, workload

from torch_bottleneck.compare.baseline_file import MOST_BYTES, baseline_text, read_baseline, write_baseline
from torch_bottleneck.compare.decide import compare_sides
from torch_bottleneck.compare.join import join_runs
from torch_bottleneck.compare.sides import Side
from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.baseline import RankTimes, RunTime
from torch_bottleneck.model.compare import Comparison
from torch_bottleneck.reporters.compare.output import COMPARE_FORMATS
from torch_bottleneck.reporters.output import render_for

NOISE = (1.0, 1.01, 0.99, 1.005)


def job(*, late_ms: float = 0.0, ranks: int = 4, runs: int = 4) -> Side:
    """A job in which rank 2 may be late, and the others wait for it."""
    times = []
    for noise in NOISE[:runs]:
        own = {str(rank): noise * (18.0 + (late_ms if rank == 2 else 0.0)) for rank in range(ranks)}
        times.append(
            RunTime(
                step_ms=noise * (20.0 + late_ms),
                count=100,
                error=0.01,
                ranks=RankTimes(
                    size=ranks,
                    shown=2 if late_ms else 0,
                    waits_ms=noise * late_ms * (ranks - 1) / ranks,
                    transfer_ms=2.0 * noise,
                    own_ms=own,
                    late={"2": "input"} if late_ms else {},
                ),
            )
        )
    return Side(label="job", baseline=baseline(runs=tuple(times), workload=workload(world_size=ranks)))


def slower() -> Comparison:
    return compare_sides(job(), job(late_ms=10.0), interleaved=True)


def test_the_step_of_the_job_counts_and_the_late_rank_explains_it() -> None:
    found = slower()
    assert found.outcome == "regression"
    waits, transfer, late = found.ranks
    assert (waits.what, waits.rank) == ("waiting for late ranks", None)
    assert waits.time.base_ms == pytest.approx(0.001)
    assert waits.time.head_ms == pytest.approx(7.52, abs=0.1)
    assert transfer.time.decision == "no change"
    assert (late.what, late.rank, late.late, late.time.decision) == ("own work", 2, "input", "slower")
    assert not any(row.time.gated for row in found.ranks), "a rank that nobody waits for costs nothing"
    assert "own work of rank 2: 18.0 → 28.1 ms (late: input)" in found.reasons[0]
    assert any("rank 0 in base, rank 2 in head" in note for note in found.notes)


@pytest.mark.parametrize("format_", COMPARE_FORMATS)
def test_each_report_names_the_rank(format_: str) -> None:
    text = render_for(slower(), format_)
    assert "rank 2" in text or '"rank":2' in text.replace(" ", "")


def test_jobs_alike_name_no_rank() -> None:
    found = compare_sides(job(), job(), interleaved=True)
    assert found.outcome == "ok"
    assert [row.rank for row in found.ranks] == [None, None]


def test_another_number_of_ranks_is_refused_unless_allowed() -> None:
    found = compare_sides(job(), job(ranks=8))
    assert found.outcome == "incomparable"
    assert "other number of ranks" in found.headline
    bare = [
        Side(label="traces", baseline=msgspec.structs.replace(job(ranks=n).baseline, workload=None))
        for n in (4, 8)
    ]
    assert compare_sides(*bare).outcome == "incomparable", "bare traces tell it, too"


def test_a_rank_that_only_one_side_has_is_told() -> None:
    base, head = job(), job()
    fewer = [
        msgspec.structs.replace(
            run, ranks=msgspec.structs.replace(run.ranks, own_ms={"0": 18.0, "1": 18.0, "2": 18.0})
        )
        for run in head.baseline.runs
    ]
    head = Side(label="job", baseline=msgspec.structs.replace(head.baseline, runs=tuple(fewer)))
    assert "Only one side has these ranks: 3." in compare_sides(base, head).notes
    assert any(
        "Only one side" in note
        for note in compare_sides(
            base,
            Side(label="", baseline=baseline(runs=(RunTime(step_ms=20.0),), workload=workload(world_size=4))),
        ).notes
    )


def test_a_baseline_of_many_ranks_stays_small_and_comes_back(tmp_path: Path) -> None:
    made = job(ranks=1024, runs=3).baseline
    assert len(baseline_text(made).encode()) <= MOST_BYTES
    write_baseline(made, tmp_path / "base.json")
    assert read_baseline(tmp_path / "base.json") == made
    many = msgspec.structs.replace(made, runs=made.runs * 6)
    write_baseline(many, tmp_path / "many.json")
    kept = read_baseline(tmp_path / "many.json")
    assert len((tmp_path / "many.json").read_bytes()) <= MOST_BYTES
    assert [ranks.own_ms for ranks in kept.ranks] == [{}] * 18
    assert compare_sides(Side(label="", baseline=kept), Side(label="", baseline=kept)).ranks[0].rank is None


def test_two_recorded_jobs_differ_by_their_late_rank() -> None:
    base, head = (
        Side(label=name, baseline=join_runs([diagnose_paths([CASES[name].folder], true_step_ms=ms)]))
        for name, ms in (("ddp-h200", 27.8), ("ddp-straggler-h200", 50.0))
    )
    assert [ranks.size for ranks in (*base.baseline.ranks, *head.baseline.ranks)] == [2, 2]
    found = compare_sides(base, head)
    waits = found.ranks[0].time
    assert waits.base_ms is not None and waits.head_ms is not None
    assert waits.head_ms > 5 * waits.base_ms
    late = [row for row in found.ranks if row.late]
    assert [row.rank for row in late] == [1]
