"""Which rows of a trace make the host wait, and where in the user's program they come from.

In: a `Trace` and its kinds. Out: a mask over its rows, and `SyncSite` rows.

On a GPU these are the calls that return only when device work has ended. Without one, reading a
tensor's value (`aten::_local_scalar_dense`) stands for them: it costs next to nothing there and
stops the host on a GPU.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ...model.counters import SyncSite
from ...model.run import SourceSite
from ..trace.dialect import HOST_CALL_KINDS, Kind
from ..trace.stacks import UserFrames

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.run import Run
    from ...model.trace import Trace

__all__ = ["READ", "debugged_sites", "sync_rows", "sync_sites"]

READ = "aten::_local_scalar_dense"
_WAIT = re.compile(r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy(?!.*(Async|Batch))")
_OPTIMIZER = re.compile(r"^Optimizer\.step#(?P<cls>.+)\.step$")
_READ_AT = re.compile(r"^read at (?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
"""As harness/lines/read_lines.py names its ranges."""
_MOST = 100


def _inside(trace: Trace, ranges: NDArray[np.intp], rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which rows lie inside one of the ranges of their own thread."""
    out = np.zeros(len(rows), dtype=bool)
    for tid in np.unique(trace.tid[ranges]).tolist():
        mine = ranges[trace.tid[ranges] == tid]
        start, reach = trace.ts_ns[mine], np.maximum.accumulate(trace.end_ns[mine])
        on = np.flatnonzero(trace.tid[rows] == tid)
        at = np.searchsorted(start, trace.ts_ns[rows[on]], side="right") - 1
        out[on] = (at >= 0) & (trace.ts_ns[rows[on]] < reach[np.maximum(at, 0)])
    return out


def _torch_optimizers(run: Run | None) -> frozenset[str]:
    if run is None:
        return frozenset()
    return frozenset(
        item.cls
        for item in run.optimizers
        if item.module == "torch.optim" or item.module.startswith("torch.optim.")
    )


def sync_rows(trace: Trace, kind: NDArray[np.int8], run: Run | None, *, gpu: bool) -> NDArray[np.bool_]:
    """Mark the rows that wait (GPU), or that read a value (CPU).

    torch's own optimizers read their step counters, which are CPU tensors on any device: on a GPU
    those reads wait for nothing, so without one they are not counted.
    """
    if gpu:
        waits = np.fromiter((_WAIT.search(n) is not None for n in trace.names), bool, len(trace.names))
        return np.asarray(np.isin(kind, HOST_CALL_KINDS) & waits[trace.name], dtype=bool)
    read = np.fromiter((n == READ for n in trace.names), bool, len(trace.names))
    mask = np.asarray((kind == Kind.OP) & read[trace.name], dtype=bool)
    own = _torch_optimizers(run)
    if own and mask.any():
        found = [_OPTIMIZER.match(n) for n in trace.names]
        theirs = np.fromiter((m is not None and m["cls"] in own for m in found), bool, len(found))
        ranges = np.flatnonzero(np.isin(kind, (Kind.ANNOTATION, Kind.OP)) & theirs[trace.name])
        rows = np.flatnonzero(mask)
        mask[rows[_inside(trace, ranges, rows)]] = False
    return mask


def _line_of(label: str) -> SourceSite | None:
    match = _READ_AT.match(label)
    if match is None:
        return None
    return SourceSite(file=match["file"], line=int(match["line"]), function=match["function"])


class _Labels:
    """The ranges around a moment: the phase it is in, and the line that reads a value in it.

    Asked in order of time. Ranges of one thread nest, so a stack of the open ones is enough.
    """

    def __init__(self, trace: Trace, kind: NDArray[np.int8]) -> None:
        self._trace = trace
        self._lines = {name: site for name in trace.names if (site := _line_of(name)) is not None}
        told = np.fromiter((not n.startswith("ProfilerStep#") for n in trace.names), bool, len(trace.names))
        rows = np.flatnonzero((kind == Kind.ANNOTATION) & told[trace.name])
        self._coming = {
            int(tid): rows[trace.tid[rows] == tid].tolist()[::-1] for tid in np.unique(trace.tid[rows])
        }
        self._open: dict[int, list[int]] = {tid: [] for tid in self._coming}

    def around(self, when_ns: int, tid: int) -> tuple[str, SourceSite | None]:
        """Return the innermost phase and the innermost reading line."""
        trace = self._trace
        coming, stack = self._coming.get(tid, []), self._open.get(tid, [])
        while coming and trace.ts_ns[coming[-1]] <= when_ns:
            row = coming.pop()
            while stack and trace.ts_ns[stack[-1]] + trace.dur_ns[stack[-1]] <= trace.ts_ns[row]:
                stack.pop()
            stack.append(row)
        while stack and trace.ts_ns[stack[-1]] + trace.dur_ns[stack[-1]] <= when_ns:
            stack.pop()
        phase, site = "", None
        for row in stack:
            name = trace.names[trace.name[row]]
            if name in self._lines:
                site = self._lines[name]
            else:
                phase = name
        return phase, site


def sync_sites(
    trace: Trace,
    kind: NDArray[np.int8],
    rows: NDArray[np.intp],
    step_of_row: NDArray[np.int64],
    count: int,
) -> tuple[SyncSite, ...]:
    """Sum the waiting rows by what and where, per step.

    Args:
        trace: the trace.
        kind: its kinds.
        rows: the rows that wait.
        step_of_row: the step of every row of the trace, negative outside all.
        count: number of steps.
    """
    rows = rows[step_of_row[rows] >= 0]
    labels = _Labels(trace, kind)
    frames = UserFrames(trace, kind)
    found: dict[tuple[str, str, SourceSite | None], int] = {}
    for row in rows.tolist():
        when, tid = int(trace.ts_ns[row]), int(trace.tid[row])
        phase, line = labels.around(when, tid)
        key = (trace.names[trace.name[row]], phase, line or frames.at(when, tid))
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
