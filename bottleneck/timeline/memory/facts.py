"""Single facts of a memory history: churn, leaks, the peak's width, headroom, fragmentation.

In: the `Reading` of one device. Out: the structs of `model.memory`, or None where the
history does not tell.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ...model.memory import (
    MAX_ROWS,
    Churn,
    Headroom,
    Leak,
    MemoryCategory,
    Spike,
)
from ...model.run import SourceSite
from ...model.snapshot import Action
from ...model.words import percent
from ..trace.intervals import before, latest
from .clock import PHASES, MemoryClock, Stretch
from .reading import Reading

WATCHED = 2
"""A step's allocations are judged that many steps later: what the next step replaces is no leak."""
LEAK_BYTES = 64 * 1024
"""Per step, from one stack; counters and logged scalars stay below."""
_FEWEST_STEPS = 3
_FEW_OTHERS = 0.2
LOGITS_BYTES = 16 * 2**20
"""Smaller logits are no concern."""
JUST_BEFORE = 24
"""Events between the output layer and the loss that are still "right before"."""
HIGH = 0.95
"""Share of the time that the level below a spike covers."""
KEPT_FREE = 0.1
"""Share of the device left free when a larger batch is judged: fragmentation, libraries, other sizes."""
_GROWS = (MemoryCategory.ACTIVATIONS, MemoryCategory.INPUTS, MemoryCategory.TEMPORARY)


def floor(reading: Reading) -> int | None:
    """Least that was live where one step ends and the next begins; None without steps."""
    ends = {step.begin - 1 for step in reading.clock.steps if step.begin > 0}
    ends |= {step.end - 1 for step in reading.clock.steps}
    return int(min(reading.live[event] for event in ends)) if ends else None


def churn(reading: Reading) -> Churn | None:
    """Return traffic with the driver per whole step; None without one."""
    memory, clock, stacks = reading.memory, reading.clock, reading.stacks
    inside = clock.step_of >= 0
    steps = len(clock.steps)
    if not steps:
        return None

    def per_step(action: Action) -> float:
        return int((inside & (memory.action == int(action))).sum()) / steps

    asked = inside & np.isin(memory.action, (int(Action.SEGMENT_ALLOC), int(Action.SEGMENT_MAP)))
    sites = Counter(
        site for site in (stacks[s].site for s in memory.stack[asked].tolist() if s >= 0) if site is not None
    )
    first = sites.most_common(1)
    return Churn(
        allocs=per_step(Action.SEGMENT_ALLOC),
        frees=per_step(Action.SEGMENT_FREE),
        maps=per_step(Action.SEGMENT_MAP),
        unmaps=per_step(Action.SEGMENT_UNMAP),
        bytes=int(memory.size[asked].sum()) // steps,
        sites=tuple((site, count / steps) for site, count in sites.most_common(MAX_ROWS)),
        distinct_sizes=_sizes_of(reading, first[0][0]) if first else None,
    )


def _sizes_of(reading: Reading, site: SourceSite) -> int:
    """Count the sizes that a line asked for."""
    lives = reading.lives
    theirs = np.array([s >= 0 and reading.stacks[s].site == site for s in lives.stack.tolist()], np.bool_)
    return len(np.unique(lives.size[theirs & (lives.begin >= 0)]))


def varying_sizes(reading: Reading) -> bool | None:
    """Whether more than a fifth of the steps ask for other sizes in forward than most do.

    None with fewer than three steps: one that differs may be the last of an epoch.
    """
    lives, clock = reading.lives, reading.clock
    if len(clock.steps) < _FEWEST_STEPS:
        return None
    begin = np.maximum(lives.begin, 0)
    mine = (lives.begin >= 0) & (clock.phase[begin] == PHASES.index("forward"))
    asked = Counter(
        tuple(np.sort(lives.size[mine & (clock.step_of[begin] == number)]).tolist())
        for number in range(len(clock.steps))
    )
    usual = asked.most_common(1)[0][1]
    return len(clock.steps) - usual > _FEW_OTHERS * len(clock.steps)


def empty_cache(reading: Reading) -> tuple[float, tuple[SourceSite, ...]] | None:
    """Count the times per step that clearing the cache gave something back, and name the lines.

    None without whole steps, or where nothing says so and what is given back has no stack.
    """
    memory, clock, stacks = reading.memory, reading.clock, reading.stacks
    if not clock.steps:
        return None
    freed = np.isin(memory.action, (int(Action.SEGMENT_FREE), int(Action.SEGMENT_UNMAP)))
    given = freed & (clock.step_of >= 0)
    rows = np.flatnonzero(given & (memory.stack >= 0))
    calls, last = 0, -2
    sites: Counter[SourceSite] = Counter()
    for row in rows.tolist():
        facts = stacks[int(memory.stack[row])]
        if not facts.empties_cache:
            continue
        # One call frees many segments in one go.
        if row != last + 1:
            calls += 1
            if facts.site is not None:
                sites[facts.site] += 1
        last = row
    if not calls and bool((memory.stack[given] < 0).any()):
        return None
    return calls / len(clock.steps), tuple(site for site, _ in sites.most_common(MAX_ROWS))


def find_leaks(reading: Reading, *, capacity: int | None) -> tuple[Leak, ...]:
    """Return stacks whose allocations of every watched step are alive at the end of the history.

    Asked for in each of the steps that end at least `WATCHED` steps before the history does, and never
    given back; a buffer that keeps the last few gives the oldest back, and is none. What the harness
    knows as parameter, gradient or optimizer state is none either.
    """
    lives, clock, roles = reading.lives, reading.clock, reading.roles
    peak = int(reading.live[reading.peak])
    watched = len(clock.steps) - WATCHED
    if watched < 2:
        return ()
    kept = (lives.begin >= 0) & (lives.end >= lives.events)
    owned = roles.by_address | roles.is_a(MemoryCategory.PARAMETERS, MemoryCategory.OPTIMIZER)
    step = np.where(lives.begin >= 0, clock.step_of[np.maximum(lives.begin, 0)], -1)
    returned: dict[tuple[SourceSite | None, str], bool] = {}
    found: dict[tuple[SourceSite | None, str], list[tuple[int, int]]] = {}
    for row in np.flatnonzero(kept & ~owned & (step >= 0) & (step < watched)).tolist():
        found.setdefault(reading.origin(row), []).append((int(step[row]), int(lives.size[row])))
    # Given back only after the step behind its own: the mark of a buffer of the last few.
    late = (lives.begin >= 0) & ~kept & (step >= 0)
    late &= clock.step_of[np.minimum(lives.end, lives.events - 1)] > step + 1
    for row in np.flatnonzero(late).tolist():
        returned[reading.origin(row)] = True
    leaks = []
    for origin, blocks in found.items():
        per_step = [sum(size for s, size in blocks if s == number) for number in range(watched)]
        if min(per_step) < LEAK_BYTES or returned.get(origin):
            continue
        rate = int(np.median(per_step))
        leaks.append(
            Leak(
                bytes_per_step=rate,
                blocks_per_step=len(blocks) / watched,
                steps_seen=watched,
                site=origin[0],
                where=origin[1],
                steps_left=max(0, (capacity - peak) // rate) if capacity is not None else None,
            )
        )
    return tuple(sorted(leaks, key=lambda leak: -leak.bytes_per_step)[:MAX_ROWS])


def peak_without_leaks(reading: Reading, leaks: tuple[Leak, ...]) -> int | None:
    """Return the peak of the history had nothing outlived its step that did; None without a leak.

    What the steps before the history left is taken to be what has the size of leaked blocks, was there
    already, stays, and is nothing known.
    """
    if not leaks:
        return None
    lives, roles = reading.lives, reading.roles
    origins = {(leak.site, leak.where) for leak in leaks}
    stays = (lives.end >= lives.events) & ~roles.by_address
    rows = np.flatnonzero(stays & (lives.begin >= 0)).tolist()
    left = np.zeros(len(lives.size), np.bool_)
    left[[row for row in rows if reading.origin(row) in origins]] = True
    earlier = stays & (lives.begin < 0) & roles.is_a(MemoryCategory.UNKNOWN)
    left |= earlier & np.isin(lives.size, np.unique(lives.size[left]))
    return _peak_within_steps(reading, left)


def find_spike(reading: Reading) -> Spike | None:
    """Return how far the peak stands out of what its step stays below for 95 % of its time.

    Only that step is looked at: others may be of another size. None without whole steps, or times: by
    events, the moments without any would not count.
    """
    clock, live = reading.clock, reading.live
    if not clock.steps or clock.unit != "ms":
        return None
    step = max(clock.steps, key=lambda s: int(live[s.begin : s.end].max()))
    inside, at = live[step.begin : step.end], clock.at[step.begin : step.end]
    width = np.diff(at, append=clock.at[min(step.end, len(clock.at) - 1)])
    total = float(width.sum())
    if total <= 0:
        return None
    order = np.argsort(inside)
    reached = np.cumsum(width[order]) / total
    level = int(inside[order][min(int(before(reached, HIGH)), len(order) - 1)])
    peak = step.begin + int(inside.argmax())
    above = int(live[peak]) - level
    if above <= 0:
        return None
    # What was asked for since the level was last crossed makes the spike.
    below = np.flatnonzero(live[: peak + 1] <= level)
    since = int(below[-1]) if len(below) else -1
    rows = reading.lives.live_at(peak) & (reading.lives.begin > since)
    return Spike(
        above_bytes=above,
        width_share=float(width[inside > level].sum()) / total,
        holders=reading.holders(rows, most=5),
        peak_without_bytes=_without(reading, rows),
    )


def _without(reading: Reading, rows: NDArray[np.bool_]) -> int:
    """Return the peak of the history if the lines that asked for these blocks asked for nothing."""
    lives = reading.lives
    origins = {reading.origin(row) for row in np.flatnonzero(rows).tolist()}
    theirs = np.array([reading.origin(row) in origins for row in range(len(lives.size))], np.bool_)
    return int((reading.live - lives.live_after(theirs)).max())


def headroom(reading: Reading, capacity: int | None) -> Headroom | None:
    """Return how many times the batch would fit, every moment of the history considered.

    Activations, inputs and temporaries are taken to grow with the batch. Temporaries of the weights'
    own gradients do not, so the factor errs to the low side.
    """
    lives, live = reading.lives, reading.live
    if capacity is None or not lives.events:
        return None
    growing = reading.roles.is_a(*_GROWS)
    batch = lives.live_after(growing)
    fixed = live - batch
    usable = (1.0 - KEPT_FREE) * capacity
    moments = batch > 0.01 * max(1, int(batch.max()))
    if not moments.any() or int(batch.max()) < 0.01 * int(live.max()):
        return None
    factors = (usable - fixed[moments]) / batch[moments]
    decides = int(np.flatnonzero(moments)[int(factors.argmin())])
    return Headroom(
        factor=max(0.0, float(factors.min())),
        per_batch_bytes=int(batch[decides]),
        fixed_bytes=int(fixed[decides]),
        basis="activations, inputs and temporaries grow with the batch; "
        f"{percent(KEPT_FREE)} of the device kept free",
    )


def _updates_told(clock: MemoryClock) -> bool:
    """Whether each step is known to end in an update: steps found by backwards alone may accumulate."""
    if clock.steps_from != "stacks":
        return True
    return all(
        clock.first("zero_grad", step) is not None or clock.first("optimizer", step) is not None
        for step in clock.steps
    )


def gradients_in_forward(reading: Reading) -> int | None:
    """Return the gradients of the step before that are still there when a step's forward ends.

    The median over the steps; None where no step shows both a forward and a backward, or where steps may
    be micro-steps, whose gradients are needed.
    """
    lives, clock = reading.lives, reading.clock
    if not _updates_told(clock):
        return None
    mine = reading.roles.is_a(MemoryCategory.GRADIENTS)
    gradients = lives.live_after(mine) if lives.events else None
    found = []
    for step in clock.steps:
        first = clock.first("forward", step)
        if gradients is None or first is None:
            continue
        backward = clock.first("backward", step)
        # Up to the first backward: further micro-steps need the gradients of those before.
        until = step.end if backward is None or backward < first else backward
        last = clock.last("forward", Stretch(step.name, first, until))
        assert last is not None
        found.append(int(gradients[first : last + 1].min()))
    return int(np.median(found)) if found else None


def stale_gradients(reading: Reading) -> int | None:
    """Return by how much the peak falls if no gradient outlives its step; None without steps.

    None also where steps may be micro-steps, whose gradients are needed.
    """
    clock = reading.clock
    if not clock.steps or not _updates_told(clock):
        return None
    mine = reading.roles.is_a(MemoryCategory.GRADIENTS)
    return int(reading.live.max()) - _peak_within_steps(reading, mine)


def _peak_within_steps(reading: Reading, rows: NDArray[np.bool_]) -> int:
    """Return the peak of the history if none of some blocks outlived the step that asked for it."""
    lives = reading.lives
    starts = np.array([step.begin for step in reading.clock.steps], np.int64)
    following = latest(starts, lives.begin) + 1
    bounds = np.append(starts, lives.events)
    end = np.where(rows, np.minimum(lives.end, bounds[following]), lives.end)
    return int(dataclasses.replace(lives, end=end).live_after().max())


def loss_bytes(reading: Reading, rows: NDArray[np.bool_]) -> int:
    """Return what cross-entropies and their likes hold among some blocks, and the logits themselves.

    Logits and their gradients have the size of what the loss makes of them, or half of it where the loss
    computes in float32 and the model in 16 bits. Large blocks of these sizes are counted that came right
    before the loss, or after it, in backward.
    """
    lives, stacks = reading.lives, reading.stacks
    large = rows & (lives.size >= LOGITS_BYTES)
    of_loss = large & np.array([s >= 0 and stacks[s].loss for s in lives.stack.tolist()], np.bool_)
    if not of_loss.any():
        return 0
    largest = int(lives.size[of_loss].max())
    alike = large & np.isin(lives.size, (largest, largest // 2)) & ~of_loss
    first = int(lives.begin[of_loss].min())
    after = alike & (lives.begin > first)
    before = np.flatnonzero(alike & (lives.begin < first) & (lives.begin >= max(0, first - JUST_BEFORE)))
    counted = of_loss | after
    # The layer's output, and its copy in another type.
    counted[before[np.argsort(lives.begin[before])[-2:]]] = True
    return int(lives.size[counted].sum())
