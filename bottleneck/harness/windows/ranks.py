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
from .lengths import Schedule

__all__ = ["WARMUP_STEPS", "agree"]

WARMUP_STEPS = 8
KEY = "torch_bottleneck/schedule"
PATIENCE_SECONDS = 60
FIXED = Schedule(
    baseline_min=20,
    baseline_max=20,
    baseline_ms=1e12,
    traced=4,
    trace_warmup=1,
    memory=0,
    after=3,
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
