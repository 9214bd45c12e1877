"""A folder of ranks made from recorded ones: who is late is found, and what cannot be read costs nothing
else."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import pytest
from benchmarks.fleet_make import Job, make

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.diagnose.all_ranks import read_job
from torch_bottleneck.errors import InputError
from torch_bottleneck.ingest.bundle import load
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.reporters import markdown, terminal

LATE = 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make(folder, Job(ranks=4, steps=3, late=(LATE,), cause="input"))
    return folder


@pytest.fixture(scope="module")
def diagnosis(traces: Path) -> Diagnosis:
    return diagnose_paths([traces])


def test_the_rank_that_slept_is_named_with_its_input_and_its_20_ms(diagnosis: Diagnosis) -> None:
    assert diagnosis.fleet is not None
    (late,) = diagnosis.fleet.stragglers
    assert (late.ranks, late.kind, late.cause) == ((LATE,), "persistent", "input")
    assert late.late_ms == pytest.approx(20.0, rel=0.2)
    assert diagnosis.rank == LATE
    assert diagnosis.fleet.clock_error_us is not None
    assert diagnosis.fleet.clock_error_us < 10.0, "though the clocks differ by milliseconds"
    for row in diagnosis.ranks:
        assert row.step_ms is not None
        parts = (row.own_ms, row.waits_for_others_ms, row.transfer_ms)
        assert sum(part or 0.0 for part in parts) == pytest.approx(row.step_ms)
        assert row.waits_for == (None if row.rank == LATE else LATE)


def test_the_reports_name_it_and_the_rank_whose_figures_they_show(diagnosis: Diagnosis) -> None:
    for text in (terminal.render(diagnosis), markdown.render(diagnosis)):
        assert f"rank {LATE}: late by" in text
        assert "waiting for input" in text
        assert f"4 ranks, rank {LATE} shown" in text


def test_without_a_late_rank_none_is_named(tmp_path: Path) -> None:
    make(tmp_path, Job(ranks=4, steps=3))
    found = diagnose_paths([tmp_path]).fleet
    assert found is not None
    assert found.stragglers == ()
    assert found.step_without_late_ranks_ms == found.step_ms


@pytest.mark.slow
def test_two_processes_read_the_same_and_keep_it(traces: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(traces, folder)
    ranks = load(folder).ranks
    here, seen = read_job(ranks), []
    apart = read_job(ranks, jobs=2, progress=lambda done, total: seen.append((done, total)))
    assert apart.summaries == here.summaries
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert len(list(folder.glob(".*.rank-summary"))) == 4


def test_ranks_that_cannot_be_used_are_told_and_the_others_go_on(traces: Path, tmp_path: Path) -> None:
    for path in sorted(traces.glob("rank*.gz")):
        shutil.copy(path, tmp_path)
    first, second, _, fourth = sorted(tmp_path.glob("rank*.gz"))
    shutil.copy(first, tmp_path / "again.1.pt.trace.json.gz")
    (tmp_path / "rank0009.1.pt.trace.json.gz").write_bytes(b"no trace")
    foreign = gzip.decompress(second.read_bytes()).replace(b'"world_size": 4', b'"world_size": 16')
    (tmp_path / "other.1.pt.trace.json.gz").write_bytes(gzip.compress(foreign, 1))
    text = gzip.decompress(fourth.read_bytes())
    fourth.write_bytes(gzip.compress(text[: len(text) // 2], 1))
    second.unlink()
    found = diagnose_paths([tmp_path])
    assert found.fleet is not None
    told = {(each.path.partition(".")[0], each.rank): each.reason for each in found.fleet.unread}
    assert "this rank was given before, as again.1.pt.trace.json.gz" in told["rank0000", 0]
    assert "of a job of 16 ranks" in told["other", 1]
    assert "is not a Kineto trace" in told["rank0009", 9]
    assert "cut off" in told["rank0003", 3]
    assert len(told) == 4
    assert found.fleet.compared == 2
    assert found.fleet.stragglers[0].ranks == (LATE,)
    assert "cut off" in terminal.render(found, verbose=True)


def test_missing_ranks_share_a_line(traces: Path, tmp_path: Path) -> None:
    for rank in (0, LATE):
        shutil.copy(traces / f"rank{rank:04d}.1.pt.trace.json.gz", tmp_path)
    found = diagnose_paths([tmp_path])
    assert found.fleet is not None
    assert [(each.rank, each.reason) for each in found.fleet.unread] == [
        (1, "it was not given"),
        (3, "it was not given"),
    ]
    assert "Ranks 1, 3: it was not given" in terminal.render(found, verbose=True)


def test_of_one_rank_alone_nobody_asks_for_the_others(traces: Path) -> None:
    found = diagnose_paths([traces / "rank0000.1.pt.trace.json.gz"])
    assert found.fleet is None
    assert found.ranks == ()


def test_where_nothing_can_be_read_the_error_says_why(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"rank{rank}.1.pt.trace.json").write_text("no trace")
    with pytest.raises(InputError):
        diagnose_paths([tmp_path])
