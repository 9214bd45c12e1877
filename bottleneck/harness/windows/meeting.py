"""Where the ranks of a job meet: what they agree on through the key-value store of their process group.

In: what this rank knows. Out: the schedule of rank 0, the ranks that are traced, the folder in which all
put their files, and what every rank says of one thing. A rank that cannot talk to the others goes on by fixed
numbers, in its own folder.

All of them come here at the same step, and whoever is traced, all take the same steps afterwards.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from ...runs.layout import announce
from ...runs.plan import Plan
from ...runs.store import Store
from ...runs.tasks import ALL_TRACED, is_traced, this_task
from .. import torch_private
from .lengths import FOREVER_MS, Enough, Schedule
from .table import Row

PATIENCE_SECONDS = 60
FIXED = Schedule(
    before=Enough(least=20, most=20, most_ms=FOREVER_MS),
    whole=Enough(least=25, most=25, most_ms=FOREVER_MS),
    after=5,
    traced=4,
    trace_warmup=1,
    memory=0,
    stacks=10,
)
"""For ranks that cannot talk: numbers that need no clock."""
_LATE = 0.05
"""Of the step: a rank that works so much longer than the median before it waits for others is traced..."""
_MOST_LATE = 4
"""...but no more than so many of them, the latest."""


class _Said(msgspec.Struct, frozen=True):
    """What rank 0 tells."""

    schedule: Schedule
    meet: str


def agree(own: Schedule, *, rank: int, plan: Plan, store: Store) -> Schedule:
    """Return rank 0's schedule on every rank; those that see its folder will put theirs into it."""
    said: _Said | None = _exchange("schedule", rank=rank, say=lambda: _first_word(own, plan), kind=_Said)
    if said is None:
        return FIXED
    _meet(said.meet, rank=rank, plan=plan, store=store)
    return said.schedule


def _first_word(own: Schedule, plan: Plan) -> _Said:
    if plan.meet:
        # A task that may be alone begins in a folder of its own.
        with contextlib.suppress(OSError):
            Path(plan.meet).mkdir(parents=True, exist_ok=True)
    return _Said(own, plan.meet)


def _meet(folder: str, *, rank: int, plan: Plan, store: Store) -> None:
    """Take note that this rank's files belong to rank 0's folder, where it is another one and can be seen."""
    if not folder or folder == plan.meet:
        return
    with contextlib.suppress(OSError):
        announce(Path(folder), rank)
        store.update(meet=folder)


def compares_devices(plan: Plan) -> bool:
    """Return whether ranks compare their devices' times up to the backward pass: not all are traced."""
    return _chosen_by_time(plan) and torch_private.device_kind() != "cpu"


def _chosen_by_time(plan: Plan) -> bool:
    """Return whether ranks have to compare times to know which of them are traced."""
    _, count = torch_private.world()
    return count > ALL_TRACED and not plan.ranks


def traced_here(
    plan: Plan, rows: list[Row], *, step_ms: float, before_backward_ms: float | None = None
) -> bool:
    """Return whether this rank is traced: by its place, or because the others wait for it.

    Args:
        plan: names the ranks, or leaves it to us.
        rows: steps of the baseline.
        step_ms: a typical one.
        before_backward_ms: see `before_waiting_ms`.
    """
    rank, count = torch_private.world()
    by_place = is_traced(plan.ranks, rank=rank, size=count, task=this_task())
    if not _chosen_by_time(plan):
        return by_place
    # Each of them has to ask, as the others wait for its answer.
    own = gather("own", before_waiting_ms(rows, before_backward_ms), kind=float)
    return rank in _late(own or [], step_ms=step_ms) or by_place


def before_waiting_ms(rows: list[Row], before_backward_ms: float | None = None) -> float:
    """Return the part of a step in which a rank does not wait for others.

    Gradients are exchanged in the backward pass and before the update. A GPU is not waited for up to there:
    its own time tells of a slower device, of more to compute, and of a host that keeps it waiting. Without
    it only the host's phases count, which wait for the device anywhere else.

    Args:
        rows: steps of the baseline.
        before_backward_ms: the device's time from a step's begin to its backward pass; None: not taken.
    """
    on_host = torch_private.device_kind() == "cpu"
    times = []
    for row in rows:
        phases = {name: ns / 1e6 for name, ns in row.phases_ns.items()}
        own = sum(phases.get(name, 0.0) for name in ("data", "h2d", "forward", "zero_grad"))
        times.append(own + (row.wall_ms - sum(phases.values()) if on_host else 0.0))
    return max(median(times) if times else 0.0, before_backward_ms or 0.0)


def _late(own: list[float], *, step_ms: float) -> list[int]:
    """Return the latest ranks, of what each takes before it waits; none where they cannot talk."""
    least = median(own) + _LATE * step_ms if own else 0.0
    late = sorted((k for k in range(len(own)) if own[k] > least), key=lambda k: -own[k])
    return late[:_MOST_LATE]


def gather(name: str, own: Any, *, kind: Any, patience_s: float = PATIENCE_SECONDS) -> list[Any] | None:
    """Return what every rank says of one thing, in their order, on each of them; None where they cannot talk.

    Args:
        name: of the thing, another one each time.
        own: what this rank says.
        kind: its type.
        patience_s: how long to wait for the others.
    """
    rank, count = torch_private.world()
    store = torch_private.default_store()
    if store is None:
        return None
    # A rank says its word on "trials" under another key than all say what they think of "trials/1".
    keys = [_key(f"{name} of rank {k}") for k in range(count)]

    def said() -> list[Any]:
        store.wait(keys, dt.timedelta(seconds=patience_s))
        return [msgspec.json.decode(store.get(key), type=kind) for key in keys]

    with contextlib.suppress(RuntimeError):
        store.set(keys[rank], msgspec.json.encode(own))
    return _exchange(name, rank=rank, say=said, kind=list[kind], patience_s=patience_s)  # type: ignore[no-any-return]


def _exchange(name: str, *, rank: int, say: Any, kind: Any, patience_s: float = PATIENCE_SECONDS) -> Any:
    """Return what rank 0 says, on every rank; None where they cannot talk."""
    store = torch_private.default_store()
    if store is None:
        return None
    try:
        if rank == 0:
            store.set(_key(name), msgspec.json.encode(say()))
        else:
            store.wait([_key(name)], dt.timedelta(seconds=patience_s))
        return msgspec.json.decode(store.get(_key(name)), type=kind)
    except (RuntimeError, msgspec.DecodeError):
        return None


def _key(name: str) -> str:
    return f"torch_bottleneck/{name}"
