"""Ranks worth a look get reports of their own beside that of all."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from benchmarks.fleet_make import Job, make
from click.testing import CliRunner
from recorded.cases import CASES

from torch_bottleneck.cli.group import cli
from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.diagnose.own_reports import linked, write_own_reports
from torch_bottleneck.model.documents import load_diagnosis

LATE = 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    make(folder, Job(ranks=4, steps=3, late=(LATE,), cause="input"))
    return folder


def test_analyze_writes_the_reports_of_ranks_worth_a_look_and_links_to_them(
    traces: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert CliRunner().invoke(cli, ["analyze", str(traces), "--out", str(out)]).exit_code == 0
    found = load_diagnosis(out)
    links = {row.rank: row.report for row in found.ranks if row.report}
    assert links[LATE] == f"rank{LATE}/report.html"
    assert len(links) < len(found.ranks)
    for rank, link in links.items():
        assert (out / link).is_file()
        own = load_diagnosis((out / link).parent)
        assert own.rank == rank
        assert own.ranks == (), "of this rank alone"
        assert f'<a href="{link}">{rank}</a>' in (out / "report.html").read_text()
    again = CliRunner().invoke(cli, ["report", str(out), "--verbose"])
    assert f"rank {LATE} in {links[LATE]}" in again.output
    shutil.rmtree(out / f"rank{LATE}")
    again = CliRunner().invoke(cli, ["report", str(out), "--verbose"])
    assert links[LATE] not in again.output, "a report that is gone is not linked"


def test_each_rank_says_what_shows_it_alone(traces: Path) -> None:
    for row in diagnose_paths([traces]).ranks:
        assert diagnose_paths([row.source]).rank == row.rank


def test_a_rank_that_cannot_be_read_again_is_told_and_the_others_are_written(
    traces: Path, tmp_path: Path
) -> None:
    found = diagnose_paths([traces])
    gone = tuple(
        msgspec.structs.replace(row, source=str(tmp_path / "gone") if row.rank == LATE else row.source)
        for row in found.ranks
    )
    told: list[str] = []
    found = write_own_reports(msgspec.structs.replace(found, ranks=gone), tmp_path / "out", tell=told.append)
    assert not found.ranks[LATE].report
    assert sum(bool(row.report) for row in found.ranks) > 0
    (line,) = told
    assert line.startswith(f"Rank {LATE} has no report of its own: ")


def test_a_report_in_a_ranks_run_folder_is_linked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(CASES["fsdp-h200"].folder, run)
    found = diagnose_paths([run])
    assert all(not row.report for row in linked(found, run).ranks)
    (run / "rank1" / "report.html").write_text("")
    assert [row.report for row in linked(found, run).ranks] == ["", "rank1/report.html"]
    assert all(not row.report for row in linked(found, tmp_path / "elsewhere").ranks)
