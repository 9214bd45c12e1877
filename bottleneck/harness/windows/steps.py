"""The step rule: where one training step ends and the next begins.

In: the events of the training thread (batch fetches, optimizer steps, their closures, scaler steps,
backward passes, zero_grad, root forwards), one method each. Out: from the events that are safe points, True
when a cut is to be made right there, before the event itself.

The rule in one sentence: an update arms a cut; the cut is made at the next batch fetch, or, where
updates happen without fetches, at the first safe point after the last update of the learned cycle.
An *update* is the end of an outermost `Optimizer.step` or `GradScaler.step` (a scaler that skips
has no optimizer step); optimizer steps inside one backward, or with no backward between them, are
one update. An optimizer that calls its closure far more often than a step of one does by default is
a solver that does the whole training in one step (LBFGS for physics-informed networks): there each
call of the closure is a step. Pure Python, no torch: one event costs well under a microsecond.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

UPDATES_TO_LEARN = 3
UPDATES_TO_LEARN_SEVERAL = 8
"""With several optimizers and no fetches: two rounds of D D D G are eight updates."""
UPDATES_TO_GIVE_UP = 24
"""No period found by then: the first optimizer seen marks the step."""
ZERO_GRADS_TO_LEARN = 2
BACKWARDS_WITHOUT_OPTIMIZER = 8
BACKWARDS_WITH_OPTIMIZER = 256
"""An optimizer exists but has not stepped: accumulation over 16 or 64 micro-batches is common, so
waiting is right; a flat limit of 8 made false cuts before the first step of such a script."""

CLOSURES_IN_A_STEP = 32
"""`torch.optim.LBFGS` calls it 25 times by default (`max_eval`), and once more to search along a line."""

Signal = Literal["none", "optimizer", "zero_grad", "backward", "closure"]
Mode = Literal["unknown", "fetch", "update", "leader"]


def smallest_period(sequence: list[int]) -> int | None:
    """Return the smallest P with s[i] == s[i+P] for all i, seen at least twice; None if none is."""
    for period in range(1, len(sequence) // 2 + 1):
        if all(a == b for a, b in zip(sequence, sequence[period:], strict=False)):
            return period
    return None


class Parts:
    """Which part of the step each optimizer plays: one built anew takes the part of the one before it.

    Programs that fit one picture, task or fold after the other build an optimizer for each. A part is the
    place that builds it and how many were built there since one from there has stepped, so that those of an
    ensemble, built by one line, stay apart. One that steps again after another took its part has kept it.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[object, int], int] = {}
        self._of: dict[int, tuple[object, int]] = {}
        self._waiting: dict[object, int] = {}
        self._now: dict[tuple[object, int], int] = {}
        self._before: defaultdict[tuple[object, int], set[int]] = defaultdict(set)
        """Who plays a part, and who did before."""

    @property
    def known(self) -> bool:
        """An optimizer was built."""
        return bool(self._of)

    def built(self, key: int, place: object) -> None:
        """The optimizer of identity `key` has been built by a line of the program."""
        if key in self._of:  # of one that is gone
            self._before[self._of[key]].discard(key)
        number = self._waiting.get(place, 0)
        self._waiting[place] = number + 1
        self._of[key] = place, number

    def of(self, key: int) -> int:
        """An optimizer steps: return the number of its part, and its identity where it was not seen built."""
        part = self._of.get(key)
        if part is None:
            return key
        self._waiting[part[0]] = 0
        now = self._now.setdefault(part, key)
        if key in self._before[part]:
            del self._of[key]
            return key
        if now != key:
            self._before[part].add(now)
            self._now[part] = key
        return self._parts.setdefault(part, -1 - len(self._parts))


class StepRule:
    """Online step detection; one object per process, fed from the training thread only."""

    def __init__(self) -> None:
        self.optimizers = Parts()
        """Once one was built: be patient with backwards that no update follows."""
        self.cuts = 0
        self.generation = 0
        """Grows each time something new has been learned: cuts before and after do not compare."""
        self._searches = self._updates_alone = False
        """A step of an optimizer has called its closure more than once. Such a step has ended as one, or
        another optimizer has updated in between: calls of closures are then no steps."""
        self._forget("none")

    def _forget(self, signal: Signal) -> None:
        self.signal: Signal = signal
        self.mode: Mode = "unknown"
        self.period = 1
        self.updates = 0
        self.learned = False
        """Until then cuts are provisional: good enough to skip, not to measure."""
        self._in_optimizer = 0
        self._closures = 0
        self._in_scaler = 0
        self._in_backward = 0
        self._updated_in_backward = False
        self._backwards = 0
        self._zero_grads = 0
        self._backward_since_update = False
        self._fetched_ever = False
        self._fetched_since_update = False
        self._gaps = 0
        self._gaps_with_fetch = 0
        self._sequence: list[int] = []
        self._group: list[int] = []
        self._known: set[int] = set()
        self._leader = 0
        self._keys_since_cut: set[int] = set()
        self._carried: int | None = None
        self._fetches_ended = False
        self._since_fetch = 0
        self._most_per_fetch = 1
        self._at_fetch = False
        self._anywhere = False

    # -- state ---------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """An update has armed a cut that has not been made yet."""
        return self._at_fetch or self._anywhere

    @property
    def inside(self) -> bool:
        """Inside an optimizer, scaler or backward: no cut and no stop may happen here, but at a closure."""
        return bool(self._in_optimizer or self._in_scaler or self._in_backward)

    @property
    def in_backward(self) -> bool:
        """Inside a backward pass of the training thread."""
        return self._in_backward > 0

    @property
    def in_optimizer(self) -> bool:
        """Inside an optimizer or scaler step (closures run forward and backward in there)."""
        return bool(self._in_optimizer or self._in_scaler)

    @property
    def next_cut(self) -> Literal["fetch", "safe point", "unknown"]:
        """The event that will cut after the last update of each step, as far as what was learned says so."""
        if self.signal != "optimizer" or not self.learned or self._searches:
            return "unknown"
        if self.mode == "fetch" and not self._fetches_ended:
            return "fetch"
        return "safe point" if self.mode == "update" else "unknown"

    @property
    def in_step(self) -> int:
        """How many of the updates of a step have ended; none once all have."""
        return self.updates % self.period

    @property
    def description(self) -> str:
        """The signal as run.json names it."""
        if self.signal == "optimizer" and self.mode == "fetch":
            return "optimizer+fetch"
        return self.signal

    # -- events that are safe points -------------------------------------------------------------

    def fetch(self) -> bool:
        """A batch is about to be fetched from a DataLoader."""
        self._fetched_ever = True
        self._fetched_since_update = True
        self._fetches_ended = False
        self._most_per_fetch = max(self._most_per_fetch, self._since_fetch)
        self._since_fetch = 0
        if self.inside:
            return False
        return self.pending and self._cut()

    def forward(self) -> bool:
        """A root module is about to be called."""
        return self._anywhere and not self.inside and self._cut()

    def zero_grad(self) -> bool:
        """`Optimizer.zero_grad` is about to run."""
        if self.inside:
            return False
        if self.signal in ("none", "zero_grad") and self._backward_since_update:
            self._backward_since_update = False
            self._zero_grads += 1
            if self._zero_grads == ZERO_GRADS_TO_LEARN and self.signal == "none":
                self.signal = "zero_grad"
            if self.signal == "zero_grad":
                self._new_update(0)
        return self._anywhere and self._cut()

    def backward(self) -> bool:
        """The autograd engine is about to run; `backward_begin` follows."""
        return self._anywhere and not self.inside and self._cut()

    def closure(self) -> bool:
        """The optimizer is about to call the training code that its step was given."""
        self._closures += 1
        self._searches = self._searches or self._closures > 1
        if self.signal != "closure":
            if self._closures <= CLOSURES_IN_A_STEP or self._updates_alone:
                # All that a script calls may lie inside its closure: then nothing else ends its step.
                return self._closures == 1 and self._searches and self._anywhere and self._cut()
            self.signal, self.mode, self.period = "closure", "update", 1
            self._learned_as("update")
        return self._cut()

    def _cut(self) -> bool:
        self._at_fetch = self._anywhere = False
        self._keys_since_cut.clear()
        if self._carried is not None:
            self._keys_since_cut.add(self._carried)
            self._carried = None
        self.cuts += 1
        return True

    # -- other events ----------------------------------------------------------------------------

    def backward_begin(self) -> None:
        """The autograd engine runs now; backwards nest (reentrant checkpointing)."""
        self._in_backward += 1

    def backward_end(self) -> bool:
        """The autograd engine has returned; return whether from the outermost backward."""
        self._in_backward -= 1
        if self._in_backward:
            return False
        self._backward_since_update = True
        self._backwards += 1
        if self._updated_in_backward:
            self._updated_in_backward = False
            self._real_update(0)
        elif self.signal == "none":
            enough = BACKWARDS_WITH_OPTIMIZER if self.optimizers.known else BACKWARDS_WITHOUT_OPTIMIZER
            if self._backwards >= enough:
                self.signal = "backward"
        if self.signal == "backward":
            self._new_update(0)
        return True

    def optimizer_begin(self) -> None:
        """`Optimizer.step` begins; steps nest (LBFGS, closures, subclasses calling super)."""
        if not self._in_optimizer:
            self._closures = 0
        self._in_optimizer += 1

    def optimizer_end(self, key: int) -> None:
        """`Optimizer.step` of the optimizer `key` (its identity) has ended."""
        self._in_optimizer = max(0, self._in_optimizer - 1)
        if self._in_backward and not self._in_optimizer:
            self._updated_in_backward = True
        elif not self._in_optimizer and not self._in_scaler:
            self._real_update(self.optimizers.of(key))

    def foreign_update(self) -> None:
        """An optimizer stepped on another thread: in a backward hook on the device's thread."""
        if self._in_backward:
            self._updated_in_backward = True

    def scaler_begin(self) -> None:
        """`GradScaler.step` begins; it counts as the update even if it skips the optimizer."""
        self._in_scaler += 1

    def scaler_end(self, key: int) -> None:
        """`GradScaler.step` for the optimizer `key` has ended."""
        self._in_scaler = max(0, self._in_scaler - 1)
        if not self._in_scaler and not self._in_optimizer and not self._in_backward:
            self._real_update(self.optimizers.of(key))

    def optimizer_escaped(self) -> None:
        """An exception left an optimizer or scaler step, so its end will never be seen."""
        self._in_optimizer = self._in_scaler = 0

    # -- updates ---------------------------------------------------------------------------------

    def _real_update(self, key: int) -> None:
        closures, self._closures = self._closures, 0
        if self.signal == "closure" and closures:
            return
        self._updates_alone = self._updates_alone or self.signal == "closure" or closures > 1
        if self.signal != "optimizer":
            # Whatever stood in for the optimizer so far was only a guess.
            fetched, pending = self._fetched_ever, self.pending
            self._forget("optimizer")
            self._fetched_ever = self._fetched_since_update = fetched
            self._anywhere = pending
        same_update = self._group and not self._backward_since_update and key not in self._group
        if same_update:
            self._group.append(key)
            return
        self._new_update(key)

    def _new_update(self, key: int) -> None:
        self.updates += 1
        if self.updates > 1:
            self._gaps += 1
            self._gaps_with_fetch += self._fetched_since_update
        self._fetched_since_update = False
        self._backward_since_update = False
        self._group = [key]
        joined = key not in self._known
        self._known.add(key)
        if not self.learned:
            self._sequence.append(key)
            self._learn()
        elif joined and self.mode == "update":
            # Another optimizer has joined (a GAN's generator after a critic-only phase).
            self.learned, self.mode = False, "unknown"
            self._sequence = [key]
            self._gaps = self._gaps_with_fetch = 0
            self.updates = 1
        self._since_fetch += 1
        self._arm(key)

    def _learn(self) -> None:
        if self.updates < UPDATES_TO_LEARN:
            return
        if self._gaps_with_fetch * 4 >= self._gaps:
            self._learned_as("fetch")
            return
        if len(self._known) > 1 and self.updates < UPDATES_TO_LEARN_SEVERAL:
            return
        period = smallest_period(self._sequence)
        if period is not None:
            self.period = period
            self._learned_as("update")
        elif self.updates >= UPDATES_TO_GIVE_UP:
            self._leader = self._sequence[0]
            self._learned_as("leader")

    def _learned_as(self, mode: Mode) -> None:
        self.mode, self.learned = mode, True
        self.generation += 1
        self._sequence = []

    def _arm(self, key: int) -> None:
        repeated = key in self._keys_since_cut
        self._keys_since_cut.add(key)
        if self.mode == "update":
            self._anywhere = self._anywhere or self.updates % self.period == 0
        elif self.mode == "leader":
            self._anywhere = self._anywhere or key == self._leader
        elif self.mode == "fetch":
            self._at_fetch = True
            if repeated and self._since_fetch > self._most_per_fetch:
                # itertools.cycle over a loader caches the batches: fetches end, training goes on.
                # The cut comes one update late, so this update already belongs to the next step.
                self._anywhere = True
                self._carried = key
                if not self._fetches_ended:
                    # The step that this late cut ends holds two updates: it compares with no other.
                    self._fetches_ended = True
                    self.generation += 1
        elif self._fetched_ever:
            self._at_fetch = True
        else:
            self._anywhere = True


class ManualRule(StepRule):
    """Steps as the program itself marks them (`Harness.step`): events only tell where we are."""

    def __init__(self, *, marked: bool = True) -> None:
        """Choose what cuts until the program marks its first step.

        Args:
            marked: nothing does. False: events do, as if nothing were ever marked.
        """
        self._marked = marked
        super().__init__()

    def closure(self) -> bool:
        """See `StepRule`."""
        return not self._marked and super().closure()

    def mark(self) -> None:
        """The program marks its steps: from now on no event cuts."""
        if not self._marked:
            self._marked = True
            self._forget("none")

    @property
    def next_cut(self) -> Literal["fetch", "safe point", "unknown"]:
        """No event cuts."""
        return "unknown" if self._marked else super().next_cut

    @property
    def description(self) -> str:
        """The signal as run.json names it."""
        return "api" if self._marked else super().description

    def _new_update(self, key: int) -> None:
        if not self._marked:
            super()._new_update(key)
            return
        self.learned = True
        self._backward_since_update = False
        self._group = [key]

    def end_step(self) -> None:
        """The program says that a step has ended here."""
        if not self.learned:
            self.learned = True
        self._cut()
