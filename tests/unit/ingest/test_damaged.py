"""Files that are not valid JSON, that end early, or that are no traces at all."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from unit.ingest.layouts import LAYOUTS, document, kineto_from_2_13

from torch_bottleneck.errors import InputError, NotATraceError
from torch_bottleneck.ingest import read_trace
from torch_bottleneck.timeline.trace.table import NONE

if TYPE_CHECKING:
    from pathlib import Path

    from torch_bottleneck.timeline.trace.table import Trace

KINETO = ("kineto_until_2_12", "kineto_from_2_13")


def operators(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"aten::op{i}",
            "pid": 1,
            "tid": 2,
            "ts": 100.0 + i,
            "dur": 0.5,
            "args": {"External id": i, "Ev Idx": i},
        }
        | changes
        for i in range(count)
    ]


def read(folder: Path, data: bytes, *, window_bytes: int = 4096) -> Trace:
    file = folder / "t.json"
    file.write_bytes(data)
    return read_trace(file, window_bytes=window_bytes)


def names(trace: Trace) -> list[str]:
    return [trace.names[i] for i in trace.name]


# ------------------------------------------------------------------------------ invalid, but legible


@pytest.mark.parametrize("layout", KINETO)
@pytest.mark.parametrize("name", ['a "q"', '"', 'say "{" and "}"', 'x", "y', 'a "q" } , {"ph": "X"'])
def test_unescaped_quotes_in_names_as_torch_2_13_writes_them(tmp_path: Path, layout: str, name: str) -> None:
    events = operators(200)
    events[77]["name"] = "MARK"
    data = LAYOUTS[layout](events).replace(b"MARK", name.encode())
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(data)

    trace = read(tmp_path, data)

    assert len(trace) == 200
    assert names(trace)[77] == name
    assert names(trace)[78] == "aten::op78"
    assert "not valid JSON" in " ".join(trace.meta.warnings)
    assert not trace.meta.truncated


@pytest.mark.parametrize("number", ["NaN", "nan", "-inf", "Infinity", "N/A"])
def test_bare_words_instead_of_numbers(tmp_path: Path, number: str) -> None:
    events = operators(3, args={"est. achieved occupancy %": 123.5, "correlation": 9})
    trace = read(tmp_path, kineto_from_2_13(events).replace(b"123.5", number.encode()))
    assert trace.correlation.tolist() == [9, 9, 9]


def test_the_words_stay_in_names(tmp_path: Path) -> None:
    events = operators(2, args={"x": 123.5})
    events[0]["name"] = "[nan, inf]: NaN"
    trace = read(tmp_path, kineto_from_2_13(events).replace(b"123.5", b"nan"))
    assert names(trace)[0] == "[nan, inf]: NaN"


def test_an_event_without_a_time_is_left_out_and_counted(tmp_path: Path) -> None:
    events = operators(3)
    events[1]["ts"] = "MARK"
    trace = read(tmp_path, kineto_from_2_13(events).replace(b'"MARK"', b"NaN"))
    assert names(trace) == ["aten::op0", "aten::op2"]
    assert "1 events" in trace.meta.warnings[0]


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    events = operators(3)
    events[1]["name"] = "MARK"
    trace = read(tmp_path, kineto_from_2_13(events).replace(b"MARK", b"caf\xe9\x01"))
    assert names(trace)[0] == "aten::op0"
    assert names(trace)[1].startswith("caf")
    assert len(trace) == 3


@pytest.mark.parametrize(
    "header",
    [b'"k": "v /"q/"",', b'"x": NaN,', b'"schemaVersion": 1, "schemaVersion": 1,'],
)
def test_a_header_that_is_not_json(tmp_path: Path, header: bytes) -> None:
    data = LAYOUTS["kineto_from_2_13"](operators(3)).replace(b"{", b"{" + header, 1)
    trace = read(tmp_path, data)
    assert len(trace) == 3
    assert trace.meta.distributed == {"backend": "nccl", "rank": 3, "world_size": 8}


# ----------------------------------------------------------------------------- values of other types


@pytest.mark.parametrize(
    ("value", "read_as"),
    [
        ("0x2a", 42),
        ("17", 17),
        (17.0, 17),
        (2**64, NONE),
        (4294967295, 4294967295),
        ("a", NONE),
        (None, NONE),
    ],
)
def test_numbers_written_in_odd_ways(tmp_path: Path, value: object, read_as: int) -> None:
    events = operators(2, args={"stream": value, "correlation": 5})
    trace = read(tmp_path, json.dumps(document(events)).encode())
    assert trace.stream.tolist() == [read_as, read_as]
    assert trace.correlation.tolist() == [5, 5]


def test_a_device_number_beyond_32_bits(tmp_path: Path) -> None:
    trace = read(tmp_path, kineto_from_2_13(operators(1, args={"device": 2**40})))
    assert trace.device.tolist() == [NONE]


@pytest.mark.parametrize(
    "changes", [{"ph": "Q"}, {"ph": "X", "ts": "12.5"}, {"ph": "X", "ts": 12.5, "cat": 7}]
)
def test_an_event_of_an_unknown_form_costs_no_other(tmp_path: Path, changes: dict[str, Any]) -> None:
    events = operators(50)
    events.insert(20, {"name": "odd", "pid": 1, "tid": 2} | changes)
    trace = read(tmp_path, kineto_from_2_13(events))
    ours = [n for n in names(trace) if n != "odd"]
    assert ours == [f"aten::op{i}" for i in range(50)]
    assert ("odd" in names(trace)) == (changes["ph"] == "X")


def test_pids_and_tids_are_the_same_as_number_and_as_text(tmp_path: Path) -> None:
    events = operators(2)
    events[1]["pid"] = "1"
    trace = read(tmp_path, kineto_from_2_13(events))
    assert trace.pid.tolist() == [0, 0]
    assert list(trace.pids) == ["1"]


# --------------------------------------------------------------------------------------------- clocks


def test_times_are_exact_to_the_nanosecond_fifty_days_from_the_base(tmp_path: Path) -> None:
    ns = [4_400_000_000_000_000 + k * 1001 for k in range(1000)]
    events = [{"ph": "X", "cat": "c", "name": "n", "ts": t / 1000, "dur": 0.001} for t in ns]
    trace = read(tmp_path, kineto_from_2_13(events))
    assert trace.ts_ns.tolist() == ns
    assert trace.meta.clock_resolution_ns == 1


def test_absolute_times_keep_their_digits(tmp_path: Path) -> None:
    events = operators(3)
    data = kineto_from_2_13(events)
    for i in range(3):
        data = data.replace(f'"ts": {100.0 + i},'.encode(), f'"ts": 1713888888888888.62{i},'.encode())
    trace = read(tmp_path, data)
    assert trace.ts_ns.tolist() == [1713888888888888620 + i for i in range(3)]


def test_whole_microseconds_are_stated_as_the_resolution(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "Operator", "name": "n", "ts": 1640000000000000 + i, "dur": 1} for i in range(3)
    ]
    trace = read(tmp_path, json.dumps(document(events)).encode())
    assert trace.meta.clock_resolution_ns == 1000
    assert np_diff(trace) == [1000, 1000]


def np_diff(trace: Trace) -> list[int]:
    return [int(b - a) for a, b in zip(trace.ts_ns, trace.ts_ns[1:], strict=False)]


# ------------------------------------------------------------------------------------------ truncated


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "header_last"])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.77, 0.99])
def test_a_file_cut_off_keeps_every_whole_event(tmp_path: Path, layout: str, share: float) -> None:
    data = LAYOUTS[layout](operators(300))
    cut = data[: int(len(data) * share)]
    whole = cut.count(b"Ev Idx") - 1  # the one in which the cut lies may or may not be whole

    trace = read(tmp_path, cut)

    assert trace.meta.truncated
    assert whole <= len(trace) <= whole + 1
    assert names(trace) == [f"aten::op{i}" for i in range(len(trace))]
    assert "cut off" in trace.meta.warnings[0]


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_compressed_file_cut_off(tmp_path: Path, share: float) -> None:
    packed = gzip.compress(kineto_from_2_13(operators(3000)))
    trace = read(tmp_path, packed[: int(len(packed) * share)])
    assert trace.meta.truncated
    assert 0 < len(trace) < 3000
    assert names(trace) == [f"aten::op{i}" for i in range(len(trace))]


def test_a_compressed_file_damaged_in_the_middle(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(kineto_from_2_13(operators(3000))))
    middle = len(packed) // 2
    packed[middle : middle + 64] = bytes(64)
    trace = read(tmp_path, bytes(packed))
    assert trace.meta.truncated or trace.meta.warnings
    assert names(trace)[:100] == [f"aten::op{i}" for i in range(100)]


def test_several_compressed_members_are_one_file(tmp_path: Path) -> None:
    data = kineto_from_2_13(operators(100))
    trace = read(tmp_path, gzip.compress(data[:3000]) + gzip.compress(data[3000:]))
    assert len(trace) == 100
    assert not trace.meta.truncated


def test_a_trace_without_events_is_a_trace(tmp_path: Path) -> None:
    trace = read(tmp_path, kineto_from_2_13([]))
    assert len(trace) == 0
    assert "no complete events" in trace.meta.warnings[0]


# -------------------------------------------------------------------------------------- not a trace


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"import torch\n", "not a Kineto trace"),
        (b"   \n", "not a Kineto trace"),
        (b'{"a": 1}', "no list of trace events"),
        (b'{"traceEvents": {}}', "no list of trace events"),
        (b"[1, 2, 3]", "not a Kineto trace"),
        (b'[{"a": 1}, {"b": 2}]', "None of the 2 entries"),
        (b'"text"', "not a Kineto trace"),
        (gzip.compress(b"hello", mtime=0), "not a Kineto trace"),
        (gzip.compress(b"hello", mtime=0)[:12], "not a Kineto trace"),
        (pickle.dumps({"segments": []}), "pickle"),
        (b"PK\x03\x04rest of the archive", "zip archive"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"\n\x1e\x50\x01\xc2\x3e", "Perfetto"),
    ],
)
def test_what_is_not_a_trace_is_refused_with_what_it_is(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(NotATraceError, match=says) as caught:
        read(tmp_path, data)
    assert "t.json" in str(caught.value)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="folder"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_trace(tmp_path / "nowhere.json")


def test_a_large_object_that_is_no_trace_is_refused_before_it_is_all_read(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    file.write_bytes(b'{"a": [' + b"1.25," * 20_000_000 + b"1]}")
    with pytest.raises(NotATraceError, match="near its start"):
        read_trace(file)
