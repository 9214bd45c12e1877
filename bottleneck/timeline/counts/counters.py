"""Counting what a step does: kernels, launches, waits, copies, operators, from the trace's columns.

In: a `Trace` with its steps, run facts, compiler facts. Out: `StepCounters`. Counts are taken per
whole traced step and told as their median, so a step that logs or begins an epoch widens the range
beside a counter and leaves the counter alone.

Device work belongs to the step whose host part launched it, wherever it ran: the device lags the
host by a varying time, the launch call does not.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...model.counters import Counter, StepCounters
from ...model.run import CompileFacts, Run
from ...model.words import shorten
from ..steps.traced import Steps
from ..trace.dialect import DEVICE_KINDS, HOST_CALL_KINDS, TO_DEVICE, TO_HOST, Kind, is_launch
from ..trace.kernels import is_collective
from ..trace.operators import OpClass, classify
from ..trace.table import NONE, Trace
from .run import count_run
from .syncs import debugged_sites, sync_rows, sync_sites

_COLLECTIVE_OP = re.compile(
    r"^c10d::(?!barrier|monitored_barrier|send|recv)|^_c10d_functional::(?!wait_tensor|_wrap)"
)
_COMPILED_CALL = "## Call CompiledFxGraph"
_NO_DEVICE = "no device in this run"
_NO_STEPS = "no trace with whole steps"
_TRACED = (
    "syncs", "copies", "copied_bytes", "kernels", "launches", "operators", "collectives",
    "collective_bytes",
)  # fmt: skip
_MOST_NAMES = 300
_NAME_WIDTH = 160
"""Templated kernel names run to thousands of characters, and a baseline must stay small."""


class _Steps:
    """Which step each row of the trace belongs to, and sums over them."""

    def __init__(self, trace: Trace, steps: Steps) -> None:
        self.count = len(steps)
        self._trace, self._steps = trace, steps
        call = trace.launched_by
        if len(trace.launches):
            self.of_device = np.where(call != NONE, self.of(call), NONE)
        else:
            self.of_device = self.of(trace.activities)

    def of(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.intp]:
        """Return the step of each row, NONE outside all."""
        return self._steps.which(self._trace.ts_ns[rows])

    def total(self, step: NDArray[np.int64], weights: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Return the number (or the sum of weights) in each step, float64[steps], whole numbers."""
        inside = step >= 0
        chosen = None if weights is None else weights[inside].astype(np.float64)
        return np.bincount(step[inside], weights=chosen, minlength=self.count).astype(np.float64)


def _counter(per_step: NDArray[np.float64]) -> Counter:
    """The lower median, a count that really occurred; and the range where the steps disagree."""
    value = float(np.sort(per_step)[(len(per_step) - 1) // 2])
    low, high = float(per_step.min()), float(per_step.max())
    return Counter(value=value) if low == high else Counter(value=value, low=low, high=high)


def _is_operator(name: str) -> bool:
    if not (("::" in name and not name.startswith("profiler::")) or name.startswith(_COMPILED_CALL)):
        return False
    return classify(name) not in (OpClass.AUTOGRAD, OpClass.SEAM, OpClass.COMPILING)


def _operators(trace: Trace, steps: Steps) -> NDArray[np.intp]:
    """Return operators on the threads that do the step's work; a pinning thread keeps its own time."""
    rows = trace.rows(Kind.OP, named=_is_operator)
    return np.sort(np.concatenate([trace.on(rows, thread) for thread in {steps.thread, *steps.threads}]))


def _by_name(trace: Trace, rows: NDArray[np.intp], step: NDArray[np.int64], count: int) -> dict[str, float]:
    """Count per step by name, of what lies in whole steps; the most frequent names come first."""
    inside = step >= 0
    values, counts = np.unique(trace.name[rows[inside]], return_counts=True)
    out: dict[str, float] = {}
    for code, n in zip(values.tolist(), counts.tolist(), strict=True):
        # The hash behind it is another one after every change of the source.
        name = trace.names[code]
        name = _COMPILED_CALL if name.startswith(_COMPILED_CALL) else shorten(name, _NAME_WIDTH)
        out[name] = out.get(name, 0.0) + n
    ordered = sorted(out.items(), key=lambda item: (-item[1], item[0]))
    return {name: round(n / count, 4) for name, n in ordered}


def _on_device(trace: Trace, place: _Steps) -> dict[str, Counter]:
    rows, step = trace.activities, place.of_device
    device_kind = trace.kind[rows]
    copy = (device_kind == Kind.MEMCPY) & (trace.named(TO_DEVICE, rows) | trace.named(TO_HOST, rows))
    sent = (device_kind == Kind.KERNEL) & trace.named(is_collective, rows)
    calls = trace.rows(*HOST_CALL_KINDS, named=is_launch)
    values = {
        "kernels": _counter(place.total(step[device_kind == Kind.KERNEL])),
        "launches": _counter(place.total(place.of(calls))),
        "copies": _counter(place.total(step[copy])),
        "collectives": _counter(place.total(step[sent])),
    }
    if not (trace.bytes[rows[copy]] == NONE).any():
        values["copied_bytes"] = _counter(place.total(step[copy], trace.bytes[rows[copy]]))
    if not (trace.bytes[rows[sent]] == NONE).any():
        values["collective_bytes"] = _counter(place.total(step[sent], trace.bytes[rows[sent]]))
    return values


def _from_trace(trace: Trace, steps: Steps, run: Run | None, missing: int) -> StepCounters:
    place = _Steps(trace, steps)
    gpu = trace.has(*DEVICE_KINDS)
    operators = _operators(trace, steps)
    waits = sync_rows(trace, run, gpu=gpu)
    values = {
        "syncs": _counter(place.total(place.of(waits))),
        "operators": _counter(place.total(place.of(operators))),
    }
    absent: dict[str, str] = {}
    if gpu:
        values |= _on_device(trace, place)
        for name in ("copied_bytes", "collective_bytes"):
            if name not in values:
                absent[name] = "the trace does not say how large"
        if missing:
            # What was dropped differs from run to run.
            reason = f"{missing} launches left no record of their kernels"
            absent["kernels"] = reason
            values.pop("kernels", None)
        rows, step = trace.activities, place.of_device
        kernel = trace.kind[rows] == Kind.KERNEL
        names = _by_name(trace, rows[kernel], step[kernel], place.count)
    else:
        sent = operators[trace.named(_COLLECTIVE_OP, operators)]
        values["collectives"] = _counter(place.total(place.of(sent)))
        absent |= dict.fromkeys(("kernels", "launches", "copies", "copied_bytes"), _NO_DEVICE)
        absent["collective_bytes"] = "without a device the trace does not say how large"
        names = _by_name(trace, operators, place.of(operators), place.count)
    listed = dict(list(names.items())[:_MOST_NAMES])
    return StepCounters(
        device="gpu" if gpu else "cpu",
        traced_steps=place.count,
        values=values,
        absent=absent,
        names=listed,
        other_names=len(names) - len(listed),
        syncs=sync_sites(trace, waits, place.of(waits), place.count),
    )


def count_steps(
    trace: Trace | None,
    steps: Steps | None,
    *,
    run: Run | None = None,
    compile_facts: CompileFacts | None = None,
    missing: int = 0,
) -> StepCounters:
    """Count one rank.

    `missing` launches have no recorded kernel, by the capture's quality check.
    """
    on_gpu = run is not None and any(device.kind != "cpu" for device in run.devices)
    if trace is None or steps is None or not len(steps) or steps.how == "window":
        traced = StepCounters(device="gpu" if on_gpu else "cpu", absent=dict.fromkeys(_TRACED, _NO_STEPS))
    else:
        traced = _from_trace(trace, steps, run, missing)
    whole = count_run(run, compile_facts, gpu=traced.device == "gpu")
    syncs = traced.syncs
    if not any(item.site for item in syncs):
        syncs = debugged_sites(run) or syncs
    return msgspec.structs.replace(
        whole,
        traced_steps=traced.traced_steps,
        values=traced.values | whole.values,
        absent=traced.absent | whole.absent,
        names=traced.names,
        other_names=traced.other_names,
        syncs=syncs,
    )
