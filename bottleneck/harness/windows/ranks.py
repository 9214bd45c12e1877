"""Several ranks: all of them must cut, trace and stop at the same step.

In: the schedule that rank 0 has made from its own step time. Out: the same schedule on every rank.
Ranks that decided by their own clocks would leave each other waiting in a collective. The exchange
goes through the process group's key-value store, not through a collective of ours, and happens
once, between the warm-up and the baseline.
"""

from __future__ import annotations

import datetime as dt

import msgspec

from .. import torch_private
from .lengths import FOREVER_MS, Enough, Schedule

__all__ = ["WARMUP_STEPS", "agree"]

WARMUP_STEPS = 8
KEY = "torch_bottleneck/schedule"
PATIENCE_SECONDS = 60
FIXED = Schedule(
    before=Enough(least=20, most=20, most_ms=FOREVER_MS),
    whole=Enough(least=25, most=25, most_ms=FOREVER_MS),
    after=5,
    traced=4,
    trace_warmup=1,
    memory=0,
)
"""Where ranks cannot talk: numbers that need no clock."""


def agree(own: Schedule, *, rank: int) -> Schedule:
    """Return rank 0's schedule on every rank."""
    store = torch_private.default_store()
    if store is None:
        return FIXED
    try:
        if rank == 0:
            store.set(KEY, msgspec.json.encode(own))
        else:
            store.wait([KEY], dt.timedelta(seconds=PATIENCE_SECONDS))
        return msgspec.json.decode(store.get(KEY), type=Schedule)
    except (RuntimeError, msgspec.DecodeError):
        return FIXED
