"""Hand-made programs for the replay: small, explicit, without a trace."""

from __future__ import annotations

import numpy as np

from torch_bottleneck.timeline.lanes.host_work import HostWork
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import NO_WAIT, PARTS, EventKind, Program


def make_program(
    events: list[dict],
    *,
    latency: float = 0.0,
    spacing: float = 0.0,
    steps: list[int] | None = None,
) -> Program:
    """Build a program from events.

    Each event: kind, work {Work: ns}, after, wait, acts [(lane, duration, part, depends)].
    Marks are events of kind MARK; `steps` lists their indices if given.
    """
    n = len(events)
    work = np.zeros((n, len(Work)))
    acts: list[tuple[int, int, float, int, int]] = []
    first = [0]
    for e, event in enumerate(events):
        for key, ns in event.get("work", {}).items():
            work[e, key] = ns
        for lane, duration, part, depends in event.get("acts", []):
            acts.append((e, lane, duration, part, depends))
        first.append(len(acts))
    kind = np.asarray([e["kind"] for e in events], dtype=np.int8)
    marks = np.flatnonzero(kind == EventKind.MARK) if steps is None else np.asarray(steps)
    a = np.asarray(acts, dtype=np.float64).reshape(-1, 5)
    lanes = int(a[:, 1].max()) + 1 if len(a) else 1
    m = len(a)
    return Program(
        kind=kind,
        work=work,
        seam_work=np.zeros((n, 0)),
        after=np.asarray([e.get("after", 0.0) for e in events], dtype=np.float64),
        after_work=np.asarray([e.get("after_work", Work.DISPATCH) for e in events], dtype=np.int8),
        wait=np.asarray([e.get("wait", NO_WAIT) for e in events], dtype=np.int64),
        row=np.full(n, -1, dtype=np.int64),
        first_activity=np.asarray(first, dtype=np.int64),
        event=a[:, 0].astype(np.int64),
        lane=a[:, 1].astype(np.int64),
        duration=a[:, 2],
        delay=np.zeros(m),
        held=np.zeros(m),
        depends=a[:, 4].astype(np.int64),
        activity_row=np.arange(m, dtype=np.int64),
        part=a[:, 3].astype(np.int8),
        observed_start=np.zeros(m),
        observed_end=np.zeros(m),
        launch_work=np.zeros(m, dtype=np.int8),
        broadcast=np.zeros(m, dtype=bool),
        marks=marks.astype(np.int64),
        mark_ns=np.zeros(len(marks)),
        latency=latency,
        spacing=spacing,
        lanes=tuple((0, k) for k in range(lanes)),
        parts=PARTS,
        host_work=HostWork(
            edges=np.asarray([0, 1]), work=np.zeros(1, dtype=np.int8), group=np.full(1, -1, dtype=np.int16)
        ),
        recorded=np.zeros(len(Work), dtype=np.int64),
        origin_ns=0,
        launch_calls=m,
        missing_activities=0,
        orphan_activities=0,
    )
