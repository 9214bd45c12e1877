"""Ranks at an address: fetched one at a time, and compared as those that lie here."""

from __future__ import annotations

import gzip
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from benchmarks.fleet_make import Job, make
from recorded.cases import CASES

from torch_bottleneck.cli.options.values import PlaceOrAddress
from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.diagnose.all_ranks import read_job
from torch_bottleneck.diagnose.ranks import other_versions
from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.ingest.bundle import load
from torch_bottleneck.ingest.remote import RemoteFiles, fetch, find, is_address
from torch_bottleneck.model.diagnosis import RankRow

fsspec = pytest.importorskip("fsspec")
LATE = 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make(folder, Job(ranks=4, steps=3, late=(LATE,), cause="input"))
    return folder


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """An empty store, and a folder for what is fetched."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "fetched"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "fetched").mkdir()
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def put(system: Any, folder: Path, place: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            system.pipe(f"{place}/{path.relative_to(folder)}", path.read_bytes())


def elsewhere(rows: tuple[RankRow, ...]) -> list[RankRow]:
    """What is said of ranks wherever they lie."""
    return [msgspec.structs.replace(row, source="") for row in rows]


@pytest.mark.parametrize("address", ["memory://bucket/job", "memory://bucket/*/rank*.gz"])
def test_traces_at_an_address_say_what_they_say_here(
    traces: Path, bucket: Any, address: str, tmp_path: Path
) -> None:
    put(bucket, traces, "/bucket/job")
    here, there = diagnose_paths([traces]), diagnose_paths([address])
    assert there.fleet == here.fleet
    assert elsewhere(there.ranks) == elsewhere(here.ranks)
    assert [diagnose_paths([row.source]).rank for row in there.ranks] == [0, 1, 2, 3]
    assert there.rank == here.rank == LATE
    assert there.causes == here.causes
    assert not list((tmp_path / "fetched").iterdir()), "what was fetched is gone"


def test_a_rank_is_fetched_again_only_if_it_has_changed(
    traces: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, traces, "/bucket/job")
    fetched: list[str] = []

    def noted(rank: RemoteFiles, into: Path) -> Path:
        fetched.append(rank.name)
        return fetch(rank, into)

    monkeypatch.setattr("torch_bottleneck.diagnose.all_ranks.fetch", noted)
    ranks = load("memory://bucket/job").ranks
    first = read_job(ranks)
    assert len(fetched) == 4
    assert read_job(ranks).summaries == first.summaries
    assert len(fetched) == 4
    bucket.pipe(f"/bucket/job/{ranks[1].name}", bucket.cat(f"/bucket/job/{ranks[2].name}"))
    again = read_job(ranks)
    assert fetched[4:] == [ranks[1].name]
    assert "given before" in again.unread[0].reason


def test_a_run_folder_at_an_address(bucket: Any) -> None:
    folder = CASES["fsdp-h200"].folder
    put(bucket, folder, "/bucket/runs/one")
    bucket.pipe("/bucket/runs/one/tensorboard/rank_0.pt.trace.json", b"a copy")
    here, there = diagnose_paths([folder]), diagnose_paths(["memory://bucket/runs/one"])
    assert (there.verdict, there.step) == (here.verdict, here.step)
    assert elsewhere(there.ranks) == elsewhere(here.ranks)
    assert [diagnose_paths([row.source]).rank for row in there.ranks] == [0, 1]


def test_one_trace_at_an_address(traces: Path, bucket: Any) -> None:
    put(bucket, traces, "/bucket/job")
    (name,) = (path.name for path in traces.glob("rank0003*"))
    found = diagnose_paths([f"memory://bucket/job/{name}"])
    assert (found.rank, found.ranks) == (3, ())


def test_what_cannot_be_used_is_told_and_the_rest_goes_on(traces: Path, bucket: Any) -> None:
    put(bucket, traces, "/bucket/job")
    first, second, _, fourth = sorted(traces.glob("rank*.gz"))
    bucket.pipe("/bucket/job/again.json.gz", first.read_bytes())
    bucket.pipe("/bucket/job/rank0009.json", b"no trace")
    foreign = gzip.decompress(second.read_bytes()).replace(b'"world_size": 4', b'"world_size": 16')
    bucket.pipe("/bucket/job/other.json.gz", gzip.compress(foreign, 1))
    text = gzip.decompress(fourth.read_bytes())
    bucket.pipe(f"/bucket/job/{fourth.name}", gzip.compress(text[: len(text) // 2], 1))
    bucket.rm(f"/bucket/job/{second.name}")
    found = diagnose_paths(["memory://bucket/job"])
    assert found.fleet is not None
    told = {(each.path.partition(".")[0], each.rank): each.reason for each in found.fleet.unread}
    assert "this rank was given before, as again" in told["rank0000", 0]
    assert "of a job of 16 ranks" in told["other", 1]
    assert told["rank0009", 9].startswith("memory:///bucket/job/rank0009.json is not a Kineto trace")
    assert "cut off" in told["rank0003", 3]
    assert found.fleet.compared == 2
    assert found.fleet.stragglers[0].ranks == (LATE,)


@pytest.mark.parametrize(("enough", "seconds"), [("_FIRST", 0.0), ("_FIRST_FEW", 5.0)])
def test_the_first_words_come_after_16_ranks_or_of_large_ones_after_fewer(
    enough: str, seconds: float, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, seconds)
    monkeypatch.setattr(f"torch_bottleneck.diagnose.all_ranks.{enough}", 2)
    monkeypatch.setattr("torch_bottleneck.diagnose.all_ranks.monotonic", lambda: next(clock))
    order: list[Any] = []
    read_job(
        load(traces).ranks,
        progress=lambda done, total: order.append(done),
        preview=lambda fleet: order.append(fleet.compared),
    )
    assert order == [1, 2, 2, 3, 4]


def test_ranks_of_different_torch_versions_are_told(traces: Path) -> None:
    found = read_job(load(traces).ranks).summaries
    assert other_versions(found) == ()
    summaries = [msgspec.structs.replace(each, torch="2.13.0") for each in found]
    assert other_versions(summaries) == ()
    summaries[1] = msgspec.structs.replace(summaries[1], torch="2.6.0")
    (told,) = other_versions(summaries)
    assert "2.6.0 (rank 1)" in told


def test_addresses_that_lead_nowhere(bucket: Any, tmp_path: Path) -> None:
    bucket.pipe("/bucket/notes.txt", b"text")
    with pytest.raises(InputError, match="neither a run nor a trace"):
        find("memory://bucket")
    with pytest.raises(UsageError, match="cannot be read"):
        find("nosuchprotocol://bucket")
    with pytest.raises(InputError, match="together"):
        load("memory://bucket", tmp_path)
    with pytest.raises(InputError, match="leads elsewhere"):
        fetch(RemoteFiles(base="memory://bucket", name="rank0", files=("../../run.json",)), tmp_path / "in")
    for name in ("one", "two"):
        put(bucket, CASES["fsdp-h200"].folder, f"/bucket/runs/{name}")
    with pytest.raises(InputError, match="2 runs"):
        find("memory://bucket/runs")


def test_without_fsspec_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match="fsspec") as error:
        diagnose_paths(["s3://bucket/job"])
    assert "torch-bottleneck[cluster]" in str(error.value)


def test_what_is_an_address() -> None:
    assert all(map(is_address, ["s3://b", "gs://b/c", "simplecache::s3://b", "memory://x"]))
    assert not any(map(is_address, ["C:/x", "runs/one", "a b://c", "://", Path("s3://b")]))
    assert PlaceOrAddress().convert("s3://bucket/job", None, None) == "s3://bucket/job"
    assert PlaceOrAddress().convert("runs/one", None, None) == Path("runs/one")


def test_a_pattern_that_no_shell_has_expanded_is_expanded_in_order(tmp_path: Path) -> None:
    from torch_bottleneck.cli.analyze import command
    from torch_bottleneck.cli.options.values import expand_patterns

    for rank in (2, 0, 1):
        (tmp_path / f"rank{rank}").mkdir()
    (tmp_path / "odd[1]").mkdir()
    given: tuple[Path | str, ...] = (
        tmp_path / "rank*", "s3://bucket/rank*", tmp_path / "odd[1]", tmp_path / "no*", tmp_path / "a**b"
    )  # fmt: skip
    context, (places, *_) = click.Context(command), command.params
    found = expand_patterns(context, places, given)
    assert found == (*(tmp_path / f"rank{rank}" for rank in range(3)), *given[1:])
