"""What a trace answers: rows by kind, name and thread; what lies in what; who launched what."""

from __future__ import annotations

import re

import numpy as np
import pytest

from torch_bottleneck.timeline.trace import intervals
from torch_bottleneck.timeline.trace.dialect import DEVICE_KINDS, Kind
from torch_bottleneck.timeline.trace.table import NONE, Trace

from .traces import BACKWARD, MAIN, TraceWriter


def small() -> Trace:
    writer = TraceWriter()
    writer.row("forward", "user_annotation", 0, 100)
    writer.row("aten::linear", "cpu_op", 10, 50)
    writer.row("aten::addmm", "cpu_op", 20, 30)
    writer.launch(25, 5, start=40, length=20)
    writer.row("aten::add", "cpu_op", 70, 10)
    writer.row("aten::mul", "cpu_op", 30, 10, BACKWARD)
    writer.launch(110, 5, start=120, length=20)
    writer.row("lost kernel", "kernel", 150, 5, "7", correlation=99, stream=7)
    return writer.build()


def names(trace: Trace, rows: np.ndarray) -> list[str]:
    return [trace.name_of(row) for row in rows.tolist()]


@pytest.mark.parametrize(
    ("meant", "found"),
    [
        ("aten::add", ["aten::add"]),
        (("aten::add", "aten::mul"), ["aten::mul", "aten::add"]),
        (re.compile("^aten::add"), ["aten::addmm", "aten::add"]),
        (lambda name: name.endswith("l"), ["aten::mul"]),
        ("nothing", []),
    ],
    ids=["one", "several", "pattern", "test", "none"],
)
def test_names_are_meant_in_four_ways(meant: object, found: list[str]) -> None:
    trace = small()
    rows = trace.rows(Kind.OP, named=meant)  # type: ignore[arg-type]
    assert names(trace, rows) == found
    assert trace.knows(meant) == bool(found)  # type: ignore[arg-type]
    assert trace.named(meant, rows).all()  # type: ignore[arg-type]


def test_rows_may_be_restricted_to_a_thread_and_to_marked_ones() -> None:
    trace = small()
    tid = trace.tids.index(MAIN)
    assert names(trace, trace.rows(Kind.OP, tid=tid)) == ["aten::linear", "aten::addmm", "aten::add"]
    late = trace.ts_ns >= 20_000
    assert names(trace, trace.rows(Kind.OP, tid=tid, among=late)) == ["aten::addmm", "aten::add"]
    assert trace.has(*DEVICE_KINDS)
    assert not trace.has(Kind.PYTHON)


def test_by_name_asks_once_per_name_and_not_for_names_elsewhere() -> None:
    trace = small()
    asked: list[str] = []

    def length(name: str) -> int:
        asked.append(name)
        return len(name)

    rows = trace.activities
    assert trace.by_name(rows, length, np.int64).tolist() == [len(name) for name in names(trace, rows)]
    assert sorted(asked) == sorted(set(names(trace, rows)))


def test_inside_is_a_matter_of_the_own_thread() -> None:
    trace = small()
    forward = trace.rows(Kind.ANNOTATION, named="forward")
    ops = trace.rows(Kind.OP)
    assert names(trace, ops[~trace.inside(ops, forward)]) == ["aten::mul"]


def test_the_outermost_of_each_thread() -> None:
    trace = small()
    assert names(trace, trace.outermost(trace.rows(Kind.OP))) == ["aten::linear", "aten::mul", "aten::add"]


def test_each_activity_knows_its_call_and_one_without_says_so() -> None:
    trace = small()
    calls = trace.launched_by
    assert len(calls) == len(trace.activities) == 3
    assert (trace.correlation[calls[:2]] == trace.correlation[trace.activities[:2]]).all()
    assert calls[2] == NONE
    assert trace.launches.tolist() == calls[:2].tolist()


def test_of_nested_intervals_the_one_around_counts_where_the_inner_has_ended() -> None:
    start, end = np.asarray([0, 10, 50]), np.asarray([40, 20, 60])
    when = np.asarray([-1, 5, 15, 30, 40, 55, 60])
    assert intervals.innermost(start, end, when).tolist() == [-1, 0, 1, 0, -1, 2, -1]
    assert (intervals.which(start, end, when) >= 0).tolist() == [False, True, True, True, False, True, False]
    none = np.zeros(0, dtype=np.int64)
    assert intervals.innermost(none, none, when).tolist() == [-1] * len(when)
    assert intervals.which(none, none, when).tolist() == [-1] * len(when)
