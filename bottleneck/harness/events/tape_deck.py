"""Who hears of the hooks' events: the agent at once, or a tape for as long as steps are timed.

In: windows that open and updates that end. Out: the observer of the hooks. The tape is put in after
the first update of a timed window, where the cycle of a step is known and a compilation would be
noticed, and is taken out, and played, whenever something happens that it does not know.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .. import torch_private
from .tape import Tape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..facts.compiler import CompileWatch
    from ..facts.learned import Learned
    from ..facts.own_cost import OwnCost
    from ..process.stopping import Stopper
    from ..windows.capture import Capture
    from ..windows.tracker import Tracker
    from .hooks import Hooks
    from .observer import Observer

__all__ = ["TapeDeck"]


class TapeDeck:
    """Puts a tape between the hooks and the agent, and takes it out again."""

    def __init__(
        self,
        agent: Observer,
        hooks: Hooks,
        tracker: Tracker,
        stopper: Stopper,
        *,
        capture: Capture,
        compiles: CompileWatch,
        learned: Learned,
        own_cost: OwnCost,
    ) -> None:
        """Begin without a tape.

        Args:
            agent: hears of everything while no tape is in.
            hooks: tell whoever is their observer.
            tracker: is told of what a tape holds.
            stopper: a stop that is wanted ends a burst.
            capture: says how many steps may be told of together.
            compiles: where nothing is compiled, events are noted where they happen, and of roots only.
            learned: the root modules, and the lines that evaluate.
            own_cost: is told that nested modules were left alone.
        """
        self.tape: Tape | None = None
        self.wanted = False
        """A window is timed: at the end of the next update a tape goes in."""
        self._agent = agent
        self._hooks = hooks
        self._tracker = tracker
        self._stopper = stopper
        self._capture = capture
        self._compiles = compiles
        self._learned = learned
        self._own_cost = own_cost
        self._used = self._quick = False

    def start(self) -> None:
        """An update has ended in a window that is timed: from now on events are noted, not looked at."""
        rule = self._tracker.rule
        if rule.inside:
            return
        self.wanted = False
        if rule.next_cut == "unknown" or self._capture.burst() == 1 or not self._compiles.foretells:
            return
        self._used = True
        self.tape = self._make()
        self._tracker.meter.garbage.sink = self.tape.collected
        self._hooks.observer = self.tape
        self._quick = not self._compiles.asked_for
        if self._quick and self._hooks.quicken(self.tape, self._learned.roots):
            self._own_cost.nested_are_free = True

    def leave(self) -> None:
        """Hear of what was noted, and of everything as it happens from now on."""
        tape, self.tape = self.tape, None
        self.wanted = False
        if tape is not None:
            self._hooks.observer = self._agent
            self._hooks.widen()
            self._tracker.meter.garbage.sink = None
            tape.leave()

    @contextlib.contextmanager
    def as_when_timed(self, roots: Iterable[type]) -> Iterator[None]:
        """Have the hooks as they were while steps were timed; what a tape holds is told to nobody.

        Args:
            roots: classes of modules that are called meanwhile.
        """
        tape = self._make() if self._used else None
        self._hooks.observer = self._agent if tape is None else tape
        if tape is not None and self._quick:
            tape.look = False
            self._hooks.quicken(tape, roots)
        try:
            yield
        finally:
            self._hooks.widen()
            self._hooks.observer = self._agent

    def _make(self) -> Tape:
        return Tape(
            self._agent,
            self._tracker,
            self._stopper,
            burst=self._capture.burst,
            mark=self._capture.mark if torch_private.device_kind() != "cpu" else None,
            stop=self.leave,
            found=self._learned.sites.note,
        )
