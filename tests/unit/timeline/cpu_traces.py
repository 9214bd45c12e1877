"""Small traces of one CPU thread, built from rows written down in microseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_bottleneck.timeline.steps.traced import Steps
from torch_bottleneck.timeline.trace.table import NONE, Trace, TraceMeta

Row = tuple[str, str, float, float]
"""(name, "op" or "label", start in us, duration in us)"""

CATEGORIES = {"op": "cpu_op", "label": "user_annotation"}


def make_trace(rows: Sequence[Row]) -> Trace:
    rows = sorted(rows, key=lambda row: (row[2], -row[3]))
    names = list(dict.fromkeys(row[0] for row in rows))
    cats = list(CATEGORIES.values())
    n = len(rows)

    def absent(dtype: type) -> np.ndarray:
        return np.full(n, NONE, dtype=dtype)

    return Trace(
        ts_ns=np.asarray([row[2] * 1000 for row in rows], dtype=np.int64),
        dur_ns=np.asarray([row[3] * 1000 for row in rows], dtype=np.int64),
        name=np.asarray([names.index(row[0]) for row in rows], dtype=np.int32),
        cat=np.asarray([cats.index(CATEGORIES[row[1]]) for row in rows], dtype=np.int16),
        pid=np.zeros(n, dtype=np.int16),
        tid=np.zeros(n, dtype=np.int32),
        correlation=absent(np.int64),
        stream=absent(np.int64),
        device=absent(np.int32),
        bytes=absent(np.int64),
        sequence=absent(np.int64),
        message=absent(np.int64),
        group_sequence=absent(np.int64),
        filled=absent(np.int16),
        names=names,
        cats=cats,
        pids=["1"],
        tids=["1"],
        messages=[],
        meta=TraceMeta(),
    )


def make_steps(bounds_us: Sequence[tuple[float, float]]) -> Steps:
    return Steps(
        start_ns=np.asarray([a * 1000 for a, _ in bounds_us], dtype=np.int64),
        end_ns=np.asarray([b * 1000 for _, b in bounds_us], dtype=np.int64),
        numbers=np.arange(len(bounds_us), dtype=np.int64),
        how="ProfilerStep",
        thread=(0, 0),
    )


def training_step(
    at: float,
    *,
    data: float = 0.0,
    math: float = 1000.0,
    small_ops: int = 0,
    optimizer: float = 100.0,
    after: float = 0.0,
) -> tuple[list[Row], float]:
    """Rows of one step that begins at `at` us, and its end: data, forward, backward, optimizer."""
    rows: list[Row] = []
    now = at
    if data:
        rows.append(("data", "label", now, data))
        now += data
    rows += [("forward", "label", now, math + 10.0 * small_ops), ("aten::mm", "op", now, math)]
    now += math
    for _ in range(small_ops):
        rows.append(("aten::add", "op", now, 4.0))
        now += 10.0  # six of them Python
    rows += [("backward", "label", now, math), ("aten::mm", "op", now, math)]
    now += math
    rows += [("optimizer", "label", now, optimizer), ("aten::add_", "op", now, optimizer)]
    now += optimizer + after
    return rows, now


def training(count: int, **kwargs: float) -> tuple[Trace, Steps]:
    rows: list[Row] = []
    bounds, now = [], 0.0
    for _ in range(count):
        step, end = training_step(now, **kwargs)  # type: ignore[arg-type]
        rows += step
        bounds.append((now, end))
        now = end
    return make_trace(rows), make_steps(bounds)
