"""Which rows of a trace make the host wait, and where in the user's program they come from.

In: a `Trace`. Out: a mask over its rows, and `SyncSite` rows.

On a GPU these are the calls that return only when device work has ended. Without one, reading a
tensor's value (`aten::_local_scalar_dense`) stands for them: it costs next to nothing there and
stops the host on a GPU.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...model.counters import SyncSite
from ...model.run import Run, SourceSite
from ..trace.dialect import HOST_CALL_KINDS, PROFILER_STEP, WAIT_CALL, Kind
from ..trace.stacks import UserFrames
from ..trace.table import Trace

READ = "aten::_local_scalar_dense"
_BLOCKING_COPY = re.compile(r"^(cuda|hip)Memcpy(?!.*(Async|Batch))")
_OPTIMIZER = re.compile(r"^Optimizer\.step#(?P<cls>.+)\.step$")
_READ_AT = re.compile(r"^read at (?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
"""As harness/lines/read_lines.py names its ranges."""
_MOST = 100


def _torch_optimizers(run: Run | None) -> frozenset[str]:
    if run is None:
        return frozenset()
    return frozenset(
        item.cls
        for item in run.optimizers
        if item.module == "torch.optim" or item.module.startswith("torch.optim.")
    )


def sync_rows(trace: Trace, run: Run | None, *, gpu: bool) -> NDArray[np.intp]:
    """Return the rows that wait (GPU), or that read a value (CPU).

    torch's own optimizers read their step counters, which are CPU tensors on any device: on a GPU
    those reads wait for nothing, so without one they are not counted.
    """
    if gpu:
        return trace.rows(
            *HOST_CALL_KINDS, named=lambda name: bool(WAIT_CALL.search(name) or _BLOCKING_COPY.search(name))
        )
    rows = trace.rows(Kind.OP, named=READ)
    own = _torch_optimizers(run)
    theirs = trace.rows(
        Kind.ANNOTATION,
        Kind.OP,
        named=lambda name: (m := _OPTIMIZER.match(name)) is not None and m["cls"] in own,
    )
    return rows[~trace.inside(rows, theirs)]


def _line_of(label: str) -> SourceSite | None:
    match = _READ_AT.match(label)
    if match is None:
        return None
    return SourceSite(file=match["file"], line=int(match["line"]), function=match["function"])


def _around(trace: Trace, rows: NDArray[np.intp]) -> tuple[list[str], list[SourceSite | None]]:
    """Return per row the innermost phase around it, and the innermost line that reads a value around it."""
    reads = trace.rows(Kind.ANNOTATION, named=_READ_AT)
    phases = trace.rows(
        Kind.ANNOTATION, named=lambda name: not PROFILER_STEP.match(name) and not _READ_AT.match(name)
    )
    names = []
    for ranges in (phases, reads):
        at = trace.ranges(ranges).innermost(trace.ts_ns[rows], trace.tid[rows])
        names.append([trace.name_of(ranges[k]) if k >= 0 else "" for k in at.tolist()])
    return names[0], [_line_of(name) for name in names[1]]


def sync_sites(
    trace: Trace,
    rows: NDArray[np.intp],
    step: NDArray[np.integer[Any]],
    count: int,
) -> tuple[SyncSite, ...]:
    """Sum the waiting rows by what and where, per step.

    `step` is that of each row, negative outside all.
    """
    rows = rows[step >= 0]
    frames = UserFrames(trace)
    found: dict[tuple[str, str, SourceSite | None], int] = {}
    for row, phase, line in zip(rows.tolist(), *_around(trace, rows), strict=True):
        site = line or frames.at(int(trace.ts_ns[row]), int(trace.tid[row]))
        key = (trace.name_of(row), phase, site)
        found[key] = found.get(key, 0) + 1
    ordered = sorted(found.items(), key=lambda item: (-item[1], str(item[0])))
    return tuple(
        SyncSite(what=what, phase=phase, site=site, count=round(n / count, 4))
        for (what, phase, site), n in ordered[:_MOST]
    )


def debugged_sites(run: Run | None) -> tuple[SyncSite, ...]:
    """Return the waiting lines that torch's sync debug mode saw in the memory window (GPU runs)."""
    window = run.window("memory") if run is not None else None
    if run is None or window is None or not window.steps.index:
        return ()
    steps = len(window.steps.index)
    seen = [item for item in run.sites if item.phase == "synchronisation"]
    ordered = sorted(seen, key=lambda item: (-item.count, str(item.site)))
    return tuple(
        SyncSite(what="synchronisation", site=item.site, count=round(item.count / steps, 4))
        for item in ordered[:_MOST]
    )
