"""The loader that feeds the training: which one it is, what a batch costs, and whether supply keeps up.

In: loader.json. Out: one loader, and figures of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ...model.run import LoaderFacts

__all__ = [
    "InputSupply",
    "batches_per_iterator",
    "burst_share",
    "input_supply",
    "is_bursty",
    "production_ms",
    "training_loader",
]

_FEWEST_FETCHES = 10
"""Of fewer, a tenth is not one."""
_KEEPS_UP = 0.9
"""Of the step without its wait: production that takes less per worker keeps up with it."""
_BURST = 0.7
"""Share of the wait in the slowest tenth of the fetches from which the supply is called bursty."""

_START_SHARE = 0.25
"""A fetch that waits so much of a start-up is the first of its iterator: the rest of the start-up lies in
making the iterator."""


def training_loader(loaders: Sequence[LoaderFacts]) -> LoaderFacts | None:
    """Return the loader that feeds the training, if one was seen; never one of an evaluation."""
    able = [item for item in loaders if item.role == "train"] or [
        item for item in loaders if item.role != "eval"
    ]
    return max(able, key=lambda item: item.fetches, default=None)


def production_ms(loader: LoaderFacts) -> float | None:
    """Return the mean cost of one batch where it is produced, ms; None if not measured."""
    made = loader.production
    if made is None or not made.fetch_ms:
        return None
    total = statistics.fmean(made.fetch_ms)
    return total + (statistics.fmean(made.collate_ms) if made.collate_ms else 0.0)


def batches_per_iterator(loader: LoaderFacts) -> float:
    """Return how many batches one iterator yields: the length, or fewer where it is given up early."""
    seen = loader.fetches / loader.iterators if loader.iterators else float(loader.length or 1)
    # The last pass is still under way: a mean below the length says little unless passes are many.
    whole = loader.length is not None and (loader.iterators < 3 or seen > 0.5 * loader.length)
    return max(1.0, float(loader.length) if whole and loader.length is not None else seen)


def burst_share(loader: LoaderFacts) -> float:
    """Return the share of all waiting that the slowest tenth of the fetches hold, 0..1."""
    waits = sorted(loader.wait_ms)
    total = sum(waits)
    return sum(waits[int(0.9 * len(waits)) :]) / total if total > 0 else 0.0


def is_bursty(loader: LoaderFacts | None, *, rest_ms: float) -> bool | None:
    """Say whether supply keeps up on average and yet single fetches wait; None where it cannot be told.

    Args:
        loader: the training loader.
        rest_ms: the step without its wait for input.
    """
    if loader is None or not loader.num_workers or len(loader.wait_ms) < _FEWEST_FETCHES:
        return None
    made = production_ms(loader)
    if made is None:
        return None
    return made / loader.num_workers < _KEEPS_UP * rest_ms and burst_share(loader) > _BURST


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSupply:
    """What producing the input of one step costs, and who does it."""

    production_ms: float
    """Serial time to produce the batches of one step."""
    batches_per_step: float
    workers: int
    where: str
    wait_ms: float
    """Of the step: waiting in the loader."""
    needed_workers: int | None = None
    """Workers whose supply keeps up with the step without its wait."""
    startup_ms: float = 0.0
    """Of the wait, per step: workers being started anew for another epoch."""
    alone_ms: float | None = None
    """What producing would take in the training process; None where no worker was timed."""


def input_supply(
    loaders: Sequence[LoaderFacts], *, wait_ms: float, true_ms: float, cores: int | None = None
) -> InputSupply | None:
    """Join the training loader's production cost with the step."""
    loader = training_loader(loaders)
    if loader is None:
        return None
    steps = len(set(loader.wait_step))
    per_step = len(loader.wait_ms) / steps if steps else 1.0
    made = loader.production
    one = production_ms(loader)
    if one is not None:
        production = one * per_step
    elif loader.num_workers == 0:
        production = wait_ms
    else:
        return None
    rest = max(true_ms - wait_ms, 1e-6)
    alone = None
    if loader.num_workers and made is not None and made.fetch_ms:
        # More workers than cores keep each other waiting: their median batch is nearer to one made alone.
        typical = statistics.median if cores is not None and loader.num_workers > cores else statistics.fmean
        alone = per_step * (typical(made.fetch_ms) + (typical(made.collate_ms) if made.collate_ms else 0.0))
    return InputSupply(
        production_ms=production,
        batches_per_step=per_step,
        workers=loader.num_workers,
        where="workers" if loader.num_workers else "main",
        wait_ms=wait_ms,
        needed_workers=max(1, math.ceil(production / rest)),
        startup_ms=_startup_ms(loader, steps=steps),
        alone_ms=alone,
    )


def _startup_ms(loader: LoaderFacts, *, steps: int) -> float:
    """Start-up per step, as far as the baseline's own fetches hold any; 0 where a step never goes without."""
    starts = [value for value in loader.startup_ms if value > 0]
    if not loader.num_workers or loader.persistent_workers or len(starts) < 2 or not steps:
        return 0.0
    if loader.fetches < 2 * loader.iterators:
        return 0.0  # next(iter(loader)) in each step: keeping the workers is not what it lacks
    start = statistics.median(starts)
    held = sum(wait > _START_SHARE * start for wait in loader.wait_ms)
    return start * held / steps
