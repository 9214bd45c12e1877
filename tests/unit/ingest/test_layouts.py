"""Whatever the text looks like, and however little of it is held at a time, the columns are equal."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.ingest.layouts import BASE_NS, LAYOUTS

from torch_bottleneck.ingest import read_trace
from torch_bottleneck.timeline.trace.table import NONE, Trace

if TYPE_CHECKING:
    from pathlib import Path

COLUMN_OF_ARG = {
    "correlation": "correlation",
    "stream": "stream",
    "device": "device",
    "bytes": "bytes",
    "Sequence number": "sequence",
}

# Names that look like the seams between events are the hard ones.
tricky = st.sampled_from(["},{", '}, {"ph": "X"', "\\", 'a "q" b', "]", 'traceEvents": [', "\n", "名", ""])
names = tricky | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ids = st.integers(0, 2**31) | st.sampled_from(["Spans", "0", ""])
nested = st.lists(st.fixed_dictionaries({"name": names, "x": st.integers(0, 9)}), max_size=3)
arguments = st.fixed_dictionaries(
    {},
    optional={
        **{key: st.integers(-1, 2**40) for key in COLUMN_OF_ARG if key != "device"},
        "device": st.integers(-1, 2**31 - 1),
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3),
        "stack": nested,
        "ph": names,
    },
)
microseconds = st.integers(0, 10**15).map(lambda ns: ns / 1000)
complete = st.fixed_dictionaries(
    {"ph": st.just("X"), "ts": microseconds, "name": names, "cat": st.sampled_from(["cpu_op", "kernel", ""])},
    optional={"dur": microseconds, "pid": ids, "tid": ids, "args": arguments},
)
other = st.fixed_dictionaries(
    {"ph": st.sampled_from(["f", "s", "i", "C", "Q"]), "name": names, "ts": microseconds},
    optional={"id": st.integers(0, 9), "cat": names, "args": nested.map(lambda x: {"list": x})},
)
metadata = st.fixed_dictionaries(
    {
        "ph": st.just("M"),
        "name": st.just("thread_name"),
        "pid": ids,
        "tid": ids,
        "args": st.just({"name": "w"}),
    }
)
event_lists = st.lists(complete | complete | other | metadata, max_size=25)


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Every column, decoded, as one tuple per row."""
    return [
        (
            int(trace.ts_ns[i]),
            int(trace.dur_ns[i]),
            trace.names[trace.name[i]],
            trace.cats[trace.cat[i]],
            trace.pids[trace.pid[i]],
            trace.tids[trace.tid[i]],
            *(int(getattr(trace, column)[i]) for column in COLUMN_OF_ARG.values()),
        )
        for i in range(len(trace))
    ]


def expected(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    out = [
        (
            round(e["ts"] * 1000),
            round(e.get("dur", 0) * 1000),
            e["name"],
            e["cat"],
            str(e.get("pid", "")),
            str(e.get("tid", "")),
            *(e.get("args", {}).get(key, NONE) for key in COLUMN_OF_ARG),
        )
        for e in events
        if e["ph"] == "X"
    ]
    return sorted(out, key=lambda row: (row[0], -row[1]))


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=event_lists, window=st.sampled_from([16, 100, 1000, 1 << 19]), compressed=st.booleans())
def test_any_layout_gives_the_same_rows(
    tmp_path: Path, layout: str, events: list[dict[str, Any]], window: int, compressed: bool
) -> None:
    data = LAYOUTS[layout](events)
    file = tmp_path / "t.json"
    file.write_bytes(gzip.compress(data, 1) if compressed else data)

    trace = read_trace(file, window_bytes=window)

    assert rows(trace) == expected(events)
    assert not trace.meta.truncated
    assert not [w for w in trace.meta.warnings if "no complete events" not in w]
    named = {(str(e["pid"]), str(e["tid"])): "w" for e in events if e["ph"] == "M"}
    assert trace.meta.thread_names == named
    if layout != "bare_list":
        assert trace.meta.base_ns == BASE_NS
        assert trace.meta.distributed == {"backend": "nccl", "rank": 3, "world_size": 8}
        assert [d["name"] for d in trace.meta.device_properties] == ["A", "B"]
