"""What each block of memory is: parameter, gradient, optimizer state, activation, input, temporary.

In: lives, clock, stacks, and the harness' notes where there are any. Out: `Roles`, a category per row of
`Lives` and whether it is known by address.

By address: the harness noted where parameters, gradients and optimizer state lay, and when. For the rest
the life itself tells:

    asked for in      given back in                        is
    forward           the same forward                     temporary
    forward           backward, or not yet                 activation
    backward          the same backward                    temporary
    backward          zero_grad, the update, a later step  gradient
    optimizer         the same update                      temporary
    optimizer         a step later, or never               optimizer state
    before forward    later than that                      input
    elsewhere         the same gap between phases          temporary

Between forward and backward lies the loss, which counts as forward. Of what was there before the history
began, and nobody noted, as many bytes per size are parameters as gradients of that size come each step;
what is left in those sizes is optimizer state. Everything else is unknown, and its share is stated.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.memory import MemoryCategory
from ...model.snapshot import MemoryNotes
from ..trace.intervals import before, latest
from .clock import PHASES, MemoryClock
from .lives import Lives
from .stacks import StackFacts

CATEGORIES: tuple[MemoryCategory, ...] = tuple(MemoryCategory)
_CODE = {category: code for code, category in enumerate(CATEGORIES)}
_UNKNOWN = _CODE[MemoryCategory.UNKNOWN]
_OWNER = {
    "parameters": _CODE[MemoryCategory.PARAMETERS],
    "gradients": _CODE[MemoryCategory.GRADIENTS],
    "optimizer state": _CODE[MemoryCategory.OPTIMIZER],
}
_STATES_PER_PARAMETER = 2
"""Adam and its kin keep two; more than that of one size stays unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Columns parallel to `Lives`."""

    category: NDArray[np.int8]
    """Code into CATEGORIES."""
    by_address: NDArray[np.bool_]

    def is_a(self, *categories: MemoryCategory) -> NDArray[np.bool_]:
        """Return which rows have one of these categories."""
        return np.isin(self.category, [_CODE[category] for category in categories])


def find_roles(
    lives: Lives,
    clock: MemoryClock,
    stacks: tuple[StackFacts, ...],
    notes: MemoryNotes | None,
    *,
    device: int,
    first_us: int,
) -> Roles:
    """Tell what every block is.

    `first_us`: time of the first event, since the epoch; 0 without times.
    """
    category = np.full(len(lives.size), _UNKNOWN, np.int8)
    owned = _by_address(lives, clock, notes, device=device, first_us=first_us)
    if lives.events:
        _by_life(category, lives, clock)
    _by_stack(category, lives, stacks)
    if notes is None or not notes.owners:
        _by_size(category, lives, clock)
    elif not lives.events and notes.failure is not None and notes.failure.phase != "optimizer":
        # No history, but everything that stays is accounted for by address.
        category[:] = _CODE[MemoryCategory.ACTIVATIONS]
    by_address = owned >= 0
    category[by_address] = owned[by_address]
    return Roles(category=category, by_address=by_address)


def _by_address(
    lives: Lives, clock: MemoryClock, notes: MemoryNotes | None, *, device: int, first_us: int
) -> NDArray[np.int8]:
    """Return the noted owner of each row, -1 where there is none."""
    owned = np.full(len(lives.size), -1, np.int8)
    if notes is None:
        return owned
    # Rows by address, then by begin: of those at an address the last that had begun is the one noted.
    known, rank = np.unique(lives.address, return_inverse=True)
    span = lives.events + 2
    key = rank.astype(np.int64) * span + lives.begin + 1
    order = np.argsort(key, kind="stable")
    for noted in notes.owners:
        here = np.array(noted.device) == device
        if not here.any() or not len(known):
            continue
        address = np.array(noted.address, np.uint64)[here]
        # After which event it was noted; without times only the end of the history is known.
        event = lives.events
        if lives.events and clock.unit == "ms":
            event = int(latest(clock.at, (noted.at_us - first_us) / 1e3))
        place = np.minimum(before(known, address), len(known) - 1)
        row = order[np.maximum(latest(key[order], place * span + event + 1), 0)]
        alive = lives.end[row] > event if event < lives.events else lives.end[row] >= lives.events
        fits = (lives.address[row] == address) & (lives.begin[row] <= event) & alive
        owned[row[fits]] = _OWNER[noted.owner]
    return owned


def _by_life(category: NDArray[np.int8], lives: Lives, clock: MemoryClock) -> None:
    """Tell from where a block was asked for and given back; nothing where no phase is known."""
    if not clock.phases:
        return
    stretch_of = _stretch_numbers(clock)
    after_forward = _after_forward(clock)
    begun = lives.begin >= 0
    begin = np.maximum(lives.begin, 0)
    end = np.minimum(lives.end, lives.events - 1)
    ended = lives.end < lives.events
    phase = clock.phase[begin]
    same = ended & (stretch_of[begin] == stretch_of[end])
    step_begin, step_end = clock.step_of[begin], clock.step_of[end]
    # Given back later than in the step after its own, or never though that is long ago.
    last = int(clock.step_of.max()) if len(clock.step_of) else -1
    lasting = np.where(ended, step_end > step_begin + 1, (step_begin >= 0) & (step_begin < last - 1))
    code = {name: number for number, name in enumerate(PHASES)}
    loss = (phase == code[""]) & after_forward[begin]
    in_forward = np.isin(phase, (code["forward"], code["evaluation"])) | loss
    in_backward = phase == code["backward"]
    in_update = phase == code["optimizer"]
    early = np.isin(phase, (code["data"], code["h2d"])) | ((phase == code[""]) & ~after_forward[begin])

    def put(rows: NDArray[np.bool_], what: MemoryCategory) -> None:
        category[begun & rows & (category == _UNKNOWN)] = _CODE[what]

    # What was there before the history and goes in zero_grad is the last step's gradients.
    category[~begun & ended & (clock.phase[end] == code["zero_grad"])] = _CODE[MemoryCategory.GRADIENTS]
    put(same, MemoryCategory.TEMPORARY)
    put(in_forward & ~lasting, MemoryCategory.ACTIVATIONS)
    put(in_backward & ~lasting, MemoryCategory.GRADIENTS)
    put(in_update, MemoryCategory.OPTIMIZER)
    put(early & ~lasting, MemoryCategory.INPUTS)


def _stretch_numbers(clock: MemoryClock) -> NDArray[np.int64]:
    """Number the runs of events of one phase, gaps between phases included."""
    changes = np.flatnonzero(np.diff(clock.phase)) + 1
    number = np.zeros(len(clock.phase), np.int64)
    number[changes] = 1
    return np.cumsum(number)


def _after_forward(clock: MemoryClock) -> NDArray[np.bool_]:
    """Return which events lie between a forward and the end of its backward."""
    state = np.zeros(len(clock.phase), np.int8)
    code = {name: number for number, name in enumerate(PHASES)}
    state[clock.phase == code["forward"]] = 1
    for name in ("optimizer", "zero_grad", "data", "h2d"):
        state[clock.phase == code[name]] = -1
    # The last of these phases that was met decides.
    met = np.where(state != 0, np.arange(len(state)), 0)
    np.maximum.accumulate(met, out=met)
    inside = state[met] == 1
    for step in clock.steps:
        first = clock.first("forward", step)
        if first is not None:
            inside[step.begin : first] = False
    done = np.isin(clock.phase, (code["backward"],))
    last_backward = np.where(done, np.arange(len(state)), -1)
    np.maximum.accumulate(last_backward, out=last_backward)
    # Behind a backward and before the next forward nothing is a loss.
    last_forward = np.where(state == 1, np.arange(len(state)), -1)
    np.maximum.accumulate(last_forward, out=last_forward)
    between: NDArray[np.bool_] = inside & (last_forward > last_backward)
    return between


def _by_stack(category: NDArray[np.int8], lives: Lives, stacks: tuple[StackFacts, ...]) -> None:
    """Tell from the stack alone, where the life does not."""
    if not stacks:
        return
    known = lives.stack >= 0
    codes = np.full(len(stacks) + 1, _UNKNOWN, np.int8)
    for number, facts in enumerate(stacks):
        if facts.accumulates:
            codes[number] = _CODE[MemoryCategory.GRADIENTS]
        elif facts.phase == "optimizer":
            codes[number] = _CODE[MemoryCategory.OPTIMIZER]
        elif facts.makes_parameters:
            codes[number] = _CODE[MemoryCategory.PARAMETERS]
    told = codes[lives.stack]
    rows = known & (category == _UNKNOWN) & (told != _UNKNOWN)
    category[rows] = told[rows]
    # A gradient by its own stack, whatever became of it.
    certain = known & (told == _CODE[MemoryCategory.GRADIENTS]) & (category != _UNKNOWN)
    category[certain] = told[certain]


def _by_size(category: NDArray[np.int8], lives: Lives, clock: MemoryClock) -> None:
    """Share out what was there all along: a parameter per gradient of its size, then its states."""
    gradients = category == _CODE[MemoryCategory.GRADIENTS]
    if not clock.steps or not gradients.any():
        return
    step_of = clock.step_of[np.maximum(lives.begin, 0)]
    per_step = [
        Counter(lives.size[gradients & (lives.begin >= 0) & (step_of == number)].tolist())
        for number in range(len(clock.steps))
    ]
    usual = {
        size: int(np.median([counts[size] for counts in per_step]))
        for size in {size for counts in per_step for size in counts}
    }
    taken: Counter[int] = Counter()
    lasting = np.flatnonzero((lives.begin < 0) & (lives.end >= lives.events) & (category == _UNKNOWN))
    for row in lasting.tolist():
        size = int(lives.size[row])
        count = usual.get(size, 0)
        if taken[size] < count:
            category[row] = _CODE[MemoryCategory.PARAMETERS]
        elif taken[size] < (1 + _STATES_PER_PARAMETER) * count:
            category[row] = _CODE[MemoryCategory.OPTIMIZER]
        taken[size] += 1
