"""What reports draw besides findings: step times over the run, and loaders.

In: a run with its windows, loader.json, the traced steps. Out: the structs of
model/view.py, bounded.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...model.run import LoaderFacts, Run, Window
from ...model.view import LoaderRow, WindowSteps
from ...timeline.steps.clock import step_times
from ...timeline.steps.supply import production_ms
from ...timeline.steps.traced import Steps

_MOST_STEPS = 400
"""Per window; a longer one shows the slowest of each run of neighbouring steps."""
_MOST_LOADERS = 6
_MOST_TENSORS = 4


def window_steps(
    run: Run | None, steps: Steps | None, *, kept: NDArray[np.bool_] | None
) -> tuple[WindowSteps, ...]:
    """Return the step times of every window, in the order of the run.

    `kept` marks the steps of the baseline window that count for the step time.
    """
    if run is None:
        return (_traced(steps),) if steps is not None and len(steps) else ()
    return tuple(_window(window, kept if window.name == "baseline" else None) for window in run.windows)


def _traced(steps: Steps) -> WindowSteps:
    ms = ((steps.end_ns - steps.start_ns) / 1e6).tolist()
    number, ms = _slowest([int(n) for n in steps.numbers], ms)
    return WindowSteps(name="trace", clock="trace", index=number, ms=ms, of_steps=len(steps))


def _slowest(
    index: Sequence[int], ms: Sequence[float | None]
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Keep at most _MOST_STEPS steps: of each run of neighbours the slowest."""
    run = -(-len(ms) // _MOST_STEPS)
    if run <= 1:
        return tuple(index), tuple(_rounded(t) for t in ms)
    known = [-1.0 if t is None else t for t in ms]
    best = [max(range(k, min(k + run, len(ms))), key=known.__getitem__) for k in range(0, len(ms), run)]
    return tuple(index[i] for i in best), tuple(_rounded(ms[i]) for i in best)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _window(window: Window, kept: NDArray[np.bool_] | None) -> WindowSteps:
    table = window.steps
    times, clock = step_times(table)
    index = list(table.index) if len(table.index) == len(times) else list(range(len(times)))
    shown, ms = _slowest(index, times)
    known = set(shown)
    dropped = [] if kept is None or len(kept) != len(index) else np.flatnonzero(~kept).tolist()
    compiled = [i for i, flag in zip(index, table.compiled, strict=False) if flag]
    return WindowSteps(
        name=window.name,
        status=window.status,
        reason=window.reason or "",
        clock=clock,
        index=shown,
        ms=ms,
        left_out=tuple(index[i] for i in dropped if index[i] in known),
        compiled=tuple(i for i in compiled if i in known),
        of_steps=len(times),
    )


def loader_rows(loaders: Sequence[LoaderFacts]) -> tuple[LoaderRow, ...]:
    """Return the loaders that were used most, the training loader first."""
    ranked = sorted(loaders, key=lambda loader: (loader.role != "train", -loader.fetches))
    return tuple(_loader(loader) for loader in ranked[:_MOST_LOADERS])


def _loader(loader: LoaderFacts) -> LoaderRow:
    made, batch = loader.production, loader.batch
    tensors = list(batch.tensors) if batch is not None else []
    more = f", {len(tensors) - _MOST_TENSORS} more" if len(tensors) > _MOST_TENSORS else ""
    return LoaderRow(
        cls=loader.cls,
        role=loader.role,
        dataset=loader.dataset,
        site=loader.site,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        start_method=loader.start_method,
        wait_ms=statistics.fmean(loader.wait_ms) if loader.wait_ms else None,
        production_ms=production_ms(loader),
        produced_in=made.where if made is not None else "",
        startup_ms=statistics.median(loader.startup_ms) if loader.startup_ms else None,
        batch=", ".join(tensors[:_MOST_TENSORS]) + more,
        batch_bytes=batch.bytes if batch is not None else None,
    )
