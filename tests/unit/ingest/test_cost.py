"""What keeps reading fast and small, told by counts: no clocks here."""

from __future__ import annotations

import gc
import gzip
import importlib
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from unit.ingest.layouts import LAYOUTS

from torch_bottleneck.ingest import read_trace, reader, sources

if TYPE_CHECKING:
    from pathlib import Path


def operators(count: int) -> list[dict[str, Any]]:
    padding = {"Input Dims": [[4, 128, 1024], [1024, 1024], [], []] * 4}
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"aten::op{i % 50}",
            "pid": 1,
            "tid": 2,
            "ts": 1.5 * i,
            "dur": 1.0,
        }
        | {"args": {"External id": i} | padding}
        for i in range(count)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_end_of_a_file_is_read_event_by_event(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json").write_bytes(LAYOUTS[layout](operators(4000)))
    one_by_one = []
    scan = reader.scan

    def counting(data: bytes, *args: Any, **kwargs: Any) -> Any:
        found = scan(data, *args, **kwargs)
        one_by_one.append(len(found.events))
        return found

    monkeypatch.setattr(reader, "scan", counting)
    assert len(read_trace(tmp_path / "t.json", window_bytes=64 * 1024)) == 4000
    assert sum(one_by_one) < 400


def test_memory_is_that_of_the_columns_not_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "t.json.gz"
    data = LAYOUTS["kineto_from_2_13"](operators(30_000))
    file.write_bytes(gzip.compress(data, 1))
    read_trace(file, window_bytes=64 * 1024)
    tracemalloc.start()
    try:
        trace = read_trace(file, window_bytes=64 * 1024)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(trace) == 30_000
    assert peak < 30_000 * 120 + 3_000_000
    assert peak < len(data) / 2


def test_columns_that_the_file_does_not_have_take_no_memory(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(LAYOUTS["compact"](operators(1000)))
    trace = read_trace(tmp_path / "t.json")
    assert trace.bytes.strides == (0,)
    assert trace.bytes.tolist() == [-1] * 1000


def test_columns_are_no_wider_than_their_values(tmp_path: Path) -> None:
    events = operators(1000)
    events[3]["args"] = {"correlation": 200, "bytes": 2**40}
    (tmp_path / "t.json").write_bytes(LAYOUTS["compact"](events))
    trace = read_trace(tmp_path / "t.json")
    assert (trace.tid.itemsize, trace.correlation.itemsize, trace.bytes.itemsize) == (1, 2, 8)
    assert trace.correlation.max() == 200
    assert trace.bytes.max() == 2**40


@pytest.mark.parametrize("was_on", [True, False])
def test_the_garbage_collector_is_left_as_it_was(tmp_path: Path, was_on: bool) -> None:
    (tmp_path / "t.json").write_bytes(LAYOUTS["compact"](operators(3)))
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        read_trace(tmp_path / "t.json")
        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("library", ["isal.isal_zlib", "zlib_ng.zlib_ng", "zlib"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_every_inflater_reads_the_same(
    tmp_path: Path, library: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library.partition(".")[0])
    monkeypatch.setattr(sources, "_INFLATERS", (library,))
    packed = gzip.compress(LAYOUTS["kineto_from_2_13"](operators(2000)))
    (tmp_path / "t.json.gz").write_bytes(packed[: int(len(packed) * share)])
    trace = read_trace(tmp_path / "t.json.gz")
    assert trace.meta.truncated is (share < 1)
    assert 500 < len(trace) <= 2000
    assert (trace.ts_ns == [round(1500 * i) for i in range(len(trace))]).all()


def test_without_fast_inflaters_the_standard_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = importlib.import_module

    def missing(name: str) -> Any:
        if name.startswith(("isal", "zlib_ng")):
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert sources._inflating().__name__ == "zlib"
