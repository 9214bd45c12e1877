"""The account of the step on each rank: own work, waiting for a late rank (which one), transfer, bubble.

In: matched collectives of all ranks. Out: `Account`.

The kernel of a collective runs from the arrival of its rank, and ends on all ranks together: the rank that
comes last has the shortest one, which is the transfer; what is longer is waiting for that rank. Only what the
device does nothing else in counts for the step. The rest of the step is the rank's own work.

The stages of a pipeline send each other messages. What the stage that waits least waits in them is the
bubble: the schedule has nothing for it, when a batch begins and when it ends. What another stage waits
longer, it waits for the stage with most work.

A device that waits may hide what its host does meanwhile: of two ranks whose hosts set the pace, the one
that is ahead waits on its device in every step, and would not be faster alone. So own work is at least the
step that the rank's replay gives without communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..timeline.steps.kinds import as_timed
from .collectives import BINS
from .match import Group, Lane, Matched

__all__ = ["Account", "account_of"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Of n ranks and their last `steps` steps; in ms without a profiler, unless it says otherwise."""

    own_ms: Floats
    """(n, steps)"""
    waits_ms: Floats
    """(n, steps): waiting for other ranks."""
    transfer_ms: Floats
    """(n, steps): exposed transfer."""
    bubble_ms: Floats
    """(n, steps): waiting for messages that even the stage with most work waits for; 0 without stages."""
    work_ms: Floats
    """(n, steps): own work if each step had the same length on all ranks, as it has where they make their
    steps together: what the hosts' marks differ by is not lateness. But what a rank does behind its last
    collective makes its own step longer, and the next one of the others."""
    kernel_waits_ms: Floats
    """(n,): waiting inside collectives per step as traced, exposed or not."""
    scale: Floats
    """(n,): from the traced to the unprofiled step."""
    length_ms: Floats
    """(steps,): the step of the job."""
    waited_for: NDArray[np.int64]
    """(n,): the lane that each one waits for longest; -1 for none."""


def account_of(
    lanes: Sequence[Lane],
    matched: Matched,
    *,
    unprofiled_ms: Sequence[float],
    timed_ms: Sequence[Sequence[float]],
    recorded_ms: Sequence[Sequence[float]],
    alone_ms: Sequence[Sequence[float]],
    messages_ms: Sequence[Sequence[tuple[float, float, int]]],
) -> Account | None:
    """Divide the steps of several ranks.

    Args:
        lanes: the ranks.
        matched: their collectives.
        unprofiled_ms: what these steps take on average without a profiler, on each rank.
        timed_ms: lengths of the steps that were timed without a profiler.
        recorded_ms: lengths of its last recorded steps.
        alone_ms: the same as replayed without communication, at their speed without a profiler.
        messages_ms: what the stages of a pipeline send each other: see `collectives.messages_ms`.

    Returns:
        The account; None without a collective in common or stages, or without a step.
    """
    n = len(lanes)
    steps = matched.steps
    stages = np.asarray([len(each) > 0 for each in messages_ms], dtype=bool)
    if not (matched.groups or stages.sum() > 1) or not steps:
        return None
    lasts, most, count = (
        np.stack([_last([row[of] for row in each], steps) for each in messages_ms]) for of in range(3)
    )
    # A stage may wait for each of its messages: how long one takes, the quickest stage tells.
    each = most.sum(axis=1)[stages] / count.sum(axis=1)[stages]
    sent = np.minimum(lasts, count * each.min()) if stages.any() else lasts
    idle = lasts - sent
    waits, transfer = idle * 1e6, sent * 1e6
    kernel_waits, waited_for = waits.sum(axis=1), np.zeros((n, n), dtype=np.float32)
    for group in matched.groups:
        wait_ns, exposed_wait, exposed_rest, last = _of_group(lanes, group)
        kernel_waits[group.members] += wait_ns.sum(axis=0)
        inside = group.inside(steps)
        at = steps + group.step[inside]
        for k, lane in enumerate(group.members.tolist()):
            np.add.at(waits[lane], at, exposed_wait[inside, k])
            np.add.at(transfer[lane], at, exposed_rest[inside, k])
            np.add.at(waited_for[lane], group.members[last[inside]], exposed_wait[inside, k])
    length = np.stack([_last(lengths, steps) for lengths in recorded_ms])
    traced = length.mean(axis=1)
    scale = np.divide(np.asarray(unprofiled_ms), traced, out=np.ones(n), where=traced > 0)[:, None]
    own = length - (waits + transfer) / 1e6
    ends = np.stack([own, own + transfer / 1e6, length], axis=1)
    for k in range(n):
        ends[k] = as_timed(length[k], timed_ms[k], pace=scale[k, 0]).each_ms(ends[k])
    length, transfer, waits = ends[:, 2], ends[:, 1] - ends[:, 0], ends[:, 2] - ends[:, 1]
    alone = np.stack([_last(lengths, steps) for lengths in alone_ms])
    own = _own(length, length, waits, transfer, alone)
    waits_ms = np.maximum(length - own - transfer, 0.0)
    patient = waits_ms * np.divide(idle * scale, waits, out=np.zeros_like(waits), where=waits > 0)
    patience = patient.mean(axis=1)
    bubble = np.zeros(n)
    if stages.any():
        busiest = np.flatnonzero(stages)[patience[stages].argmin()]
        bubble = np.where(patience > 0, patience[busiest] / np.maximum(patience, 1e-9), 0.0) * stages
        waited_for[:, busiest] += (patience - patience[busiest]).clip(min=0.0) * stages * steps * 1e6
    bubbles = patient * bubble[:, None]
    usual = np.median(length, axis=0)
    return Account(
        own_ms=own,
        waits_ms=waits_ms - bubbles,
        transfer_ms=transfer,
        bubble_ms=bubbles,
        work_ms=_own(np.minimum(length, usual), np.maximum(length, usual), waits, transfer, alone),
        kernel_waits_ms=kernel_waits / steps / 1e6,
        scale=scale[:, 0],
        length_ms=usual,
        waited_for=np.where(waited_for.any(axis=1), waited_for.argmax(axis=1), -1),
    )


def _own(shorter: Floats, longer: Floats, waits: Floats, transfer: Floats, alone: Floats) -> Floats:
    most = longer - transfer
    return np.clip(alone, np.minimum(shorter - waits - transfer, most), most)


def _of_group(lanes: Sequence[Lane], group: Group) -> tuple[Floats, Floats, Floats, NDArray[np.intp]]:
    """Return, (c, m) each in ns: waiting, of it exposed, exposed transfer; and who came last, (c,)."""
    shape = group.rows.shape
    duration = group.lengths_ns(lanes)
    exposed = np.empty((*shape, BINS))
    for k, lane in enumerate(group.members.tolist()):
        exposed[:, k] = lanes[lane].collectives.exposed[group.rows[:, k]]
    transfer = duration.min(axis=1, keepdims=True)
    wait = duration - transfer
    # Up to the arrival of the last rank: whole parts, and the one in which it falls in proportion.
    parts = np.divide(wait, duration, out=np.zeros(shape), where=duration > 0) * BINS
    weight = np.clip(parts[..., None] - np.arange(BINS), 0.0, 1.0)
    exposed_wait = (exposed * weight).sum(axis=2)
    return wait, exposed_wait, exposed.sum(axis=2) - exposed_wait, np.argmin(duration, axis=1)


def _last(lengths_ms: Sequence[float], steps: int) -> Floats:
    """Return the last lengths; a step that is missing before them has the length of the others."""
    found = np.asarray(lengths_ms, dtype=np.float64)[-steps:]
    typical = float(np.median(found)) if len(found) else 0.0
    return np.concatenate([np.full(steps - len(found), typical), found])
