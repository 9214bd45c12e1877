"""What a run worked on: batches, loaders, optimizers, and the sample of its step times.

In: run.json and loader.json. Out: `Workload`, by which two runs are judged comparable.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...model.run import LoaderFacts, Run, StepTable
from ...model.work import LoaderArguments, OptimizerArguments, Workload
from .clock import step_times
from .supply import training_loader

_MOST_STEPS = 200
_MOST_LOADERS = 20


def _times(table: StepTable, kept: NDArray[np.bool_] | None) -> tuple[float, ...]:
    times, _ = step_times(table)
    if kept is not None and len(kept) == len(times):
        times = [time for time, keep in zip(times, kept.tolist(), strict=True) if keep]
    return tuple(round(time, 4) for time in times[-_MOST_STEPS:] if time is not None)


def read_workload(
    run: Run | None, loaders: Sequence[LoaderFacts] | None, kept: NDArray[np.bool_] | None = None
) -> Workload | None:
    """Describe the work of one rank; None for a bare trace, which does not contain it."""
    if run is None:
        return None
    window = run.window("baseline")
    table = window.steps if window is not None else None
    training = training_loader(loaders or ())
    sizes = [size for size in table.batch_elements if size > 0] if table is not None else []
    return Workload(
        world_size=run.world_size,
        step_signal=run.step_signal,
        micro_steps=statistics.fmean(table.micro_steps) if table is not None and table.micro_steps else None,
        batch=tuple(training.batch.tensors) if training is not None and training.batch is not None else (),
        distinct_shapes=training.batch.distinct_shapes if training is not None and training.batch else None,
        batch_elements=int(statistics.median_low(sizes)) if sizes else None,
        loaders=tuple(
            msgspec.convert(item, LoaderArguments, from_attributes=True)
            for item in (loaders or ())[:_MOST_LOADERS]
        ),
        optimizers=tuple(
            msgspec.convert(item, OptimizerArguments, from_attributes=True) for item in run.optimizers
        ),
        step_ms=_times(table, kept) if table is not None else (),
    )
