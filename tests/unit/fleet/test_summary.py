"""A summary stays small, is kept beside its trace, and is made again when anything behind it changes."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import msgspec
import pytest
from recorded.cases import CASES
from unit.fleet.jobs import collectives, summary

from torch_bottleneck.diagnose.all_ranks import read_job
from torch_bottleneck.fleet.collectives import pack
from torch_bottleneck.fleet.summary import RankSummary, content_hash, load, store
from torch_bottleneck.fleet.window import MOST_BYTES
from torch_bottleneck.ingest.bundle import load as gather


@pytest.mark.parametrize("case", ["ddp-h200", "fsdp-h200"])
def test_a_recorded_rank_takes_some_kilobytes(case: str) -> None:
    for each in read_job(gather(CASES[case].folder).ranks).summaries:
        assert len(msgspec.msgpack.encode(each)) < MOST_BYTES // 5


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "traces" / "rank0.pt.trace.json"
    path.parent.mkdir()
    path.write_text("{}")
    return path


def test_it_is_kept_beside_the_trace_and_found_by_content(trace: Path) -> None:
    made = summary(0, [1.0, 2.0])
    content = content_hash([trace], None)
    store(trace, content, made)
    assert load(trace, content) == made
    assert [path.name for path in trace.parent.glob(".*")] == [".rank0.pt.trace.json.rank-summary"]
    trace.write_text("{ }")
    assert load(trace, content_hash([trace], None)) is None
    assert content_hash([trace], None) != content_hash([trace], 12.5), "a given step changes it too"


def test_what_was_kept_by_other_code_is_not_used(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = content_hash([trace], None)
    store(trace, content, summary(0, [1.0]))
    monkeypatch.setattr("torch_bottleneck.fleet.summary._made_by", lambda: "another version")
    assert load(trace, content) is None


def test_damage_is_no_error(trace: Path) -> None:
    content = content_hash([trace], None)
    store(trace, content, summary(0, [1.0]))
    kept = trace.with_name(f".{trace.name}.rank-summary")
    kept.write_bytes(kept.read_bytes()[:-7])
    assert load(trace, content) is None


@pytest.mark.parametrize(
    "columns",
    [
        {"kind": zlib.compress(bytes(10**7))},  # more than there can be
        {"kind": b"no"},
        {"step": zlib.compress(bytes(24))},
        {"kind": pack(collectives([1, 2], [0.5] * 2, steps=[0, 0], sizes=[1, 2])).columns["kind"]},
    ],
)
def test_a_summary_that_does_not_hold_together_is_not_used(trace: Path, columns: dict[str, bytes]) -> None:
    made = summary(0, [1.0, 2.0])
    packed = msgspec.structs.replace(made.collectives, columns={**made.collectives.columns, **columns})
    content = content_hash([trace], None)
    store(trace, content, msgspec.structs.replace(made, collectives=packed))
    assert load(trace, content) is None


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_beside_a_folder_that_cannot_be_written_it_lies_in_the_cache(trace: Path, tmp_path: Path) -> None:
    made: RankSummary = summary(0, [1.0])
    content = content_hash([trace], None)
    trace.parent.chmod(0o500)
    try:
        store(trace, content, made)
        assert load(trace, content) == made
    finally:
        trace.parent.chmod(0o700)
    assert list((tmp_path / "cache" / "torch-bottleneck").iterdir())


def test_where_the_name_beside_the_trace_is_taken_it_lies_in_the_cache(trace: Path, tmp_path: Path) -> None:
    content = content_hash([trace], None)
    trace.with_name(f".{trace.name}.rank-summary").mkdir()
    store(trace, content, summary(0, [1.0]))
    assert load(trace, content) == summary(0, [1.0])
    assert list((tmp_path / "cache" / "torch-bottleneck").iterdir())
