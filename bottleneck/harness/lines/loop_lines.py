"""Which of the user's lines take the time between the phases, and where in the loop they stand.

In: the training thread, while it warms up, and the moments when a step's first forward and its
update begin. Out: counts per line, each for one part of the loop: before the forward, between
forward and update, after the update, inside the forward or the update; and the loops that the lines
stand in.

A trace has no operator for plain Python, and for what stands between an update and the next forward
it cannot tell the last step's metrics from the next step's batch. The stack can: in the innermost
function that both run in, the metrics stand below the update and the batch stands above the
forward. So a second thread looks at the first one's stack a thousand times a second. It does so in
the warm-up alone, where nothing is timed.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from ...clocks import monotonic, sleep
from ...model.run import SAMPLED, SAMPLED_BACKWARD, LoopTime, SiteTime, SourceSite
from ..signals import signals_go_elsewhere
from .busy_threads import BusyThreads
from .frames import stack_of
from .sites import is_library
from .step_loops import Chain, find_loops
from .switching import short_switches

if TYPE_CHECKING:
    from types import CodeType

    from ..windows.phases import PhaseClock
    from .frames import Frame

INTERVAL_SECONDS = 0.001
ENOUGH = 2000
"""Samples after which shares are known to a point or two; then the thread ends."""
PATIENCE_SECONDS = 30.0
LINES_KEPT = 12
"""Per part of the loop."""

_BUILDS = ("/torch/nn/init.py", "/torch/nn/parameter.py", "/torch/optim/optimizer.py")
"""Building modules or optimizers anew is no making of a batch, wherever in the loop it stands."""

DEEPEST = 60
"""User frames of a stack that are kept, the outermost first."""

_WHERE = {
    None: None,
    "forward": "sampled forward",
    "optimizer": "sampled update",
    "backward": SAMPLED_BACKWARD,
}
"""Phases that are looked at, and the part of the loop that each is; outside of all, the stack tells it."""

Place = tuple["CodeType", int]


class LoopLines:
    """Samples one thread between two calls of `begin` and `end`."""

    def __init__(self, clock: PhaseClock) -> None:
        self._clock = clock
        self._counts: dict[tuple[str, Chain], int] = {}
        self._updates: set[tuple[str, int]] = set()
        """Lines of the frames that led to an update."""
        self._others = BusyThreads()
        self._taken = 0
        self._wanted = False
        self._over = False
        self._forward: list[Place] | None = None
        self._update: list[Place] | None = None
        self._met_forward = False

    # -- from the training thread ----------------------------------------------------------------

    def begin(self) -> None:
        """Look at the calling thread from now on; once per process."""
        if self._wanted or self._over:
            return
        self._wanted = True
        with signals_go_elsewhere():
            threading.Thread(
                target=self._sample, args=(threading.get_ident(),), name="bottleneck-loop-lines", daemon=True
            ).start()

    def end(self) -> None:
        """Look no more, ever: from here on steps are timed."""
        self._wanted, self._over = False, True

    def at_cut(self) -> None:
        """A step begins: its first forward is yet to come."""
        self._met_forward = False

    def forward(self) -> None:
        """A root forward with gradients begins on this thread."""
        if self._wanted and not self._met_forward:
            self._met_forward = True
            self._forward = _places(stack_of(threading.get_ident()))

    def update(self) -> None:
        """The update begins on this thread."""
        if self._wanted:
            self._update = _places(stack_of(threading.get_ident()))
            self._updates.update((code.co_filename, line) for code, line in self._update)

    def entries(self) -> list[SiteTime]:
        """Return the lines of each part of the loop, the most frequent first."""
        lines: dict[str, Counter[tuple[str, int, str]]] = {part: Counter() for part in SAMPLED}
        for (part, chain), count in self._placed().items():
            if part in lines:
                lines[part][chain[-1]] += count
        return [
            SiteTime(site=SourceSite(file=file, line=line, function=function), phase=part, count=count)
            for part, found in lines.items()
            for (file, line, function), count in found.most_common(LINES_KEPT)
        ] + self._others.entries()

    def core_wait_share(self) -> float | None:
        """Return how much of the time those that compute for the training waited for a core."""
        return self._others.waited_share()

    def loops(self) -> list[LoopTime]:
        """Return the loops inside a step; none where no update was seen, which tells the training loop."""
        return find_loops(self._placed(), updates=self._updates) if self._updates else []

    def _placed(self) -> dict[tuple[str, Chain], int]:
        """Return the samples by part; without a forward of a module, all before the update is between."""
        unknown = "sampled between" if self._forward is None else ""
        found = ((part or unknown, chain, count) for (part, chain), count in self._counts.items())
        return {(part, chain): count for part, chain, count in found if part}

    # -- the other thread ------------------------------------------------------------------------

    def _sample(self, thread: int) -> None:
        until, own = monotonic() + PATIENCE_SECONDS, threading.get_ident()
        with short_switches():
            while self._wanted and self._taken < ENOUGH and monotonic() < until:
                sleep(INTERVAL_SECONDS)
                phase = self._clock.innermost
                if phase not in _WHERE:
                    continue
                stack = stack_of(thread)
                if not stack:
                    break
                part = _WHERE[phase] or self._part(stack)
                if part != SAMPLED_BACKWARD:
                    self._others.look(thread, but=own)
                    self._taken += 1
                chain = _user_lines(stack)
                if chain and part is not None:
                    key = (part, chain)
                    self._counts[key] = self._counts.get(key, 0) + 1
            self._others.end()

    def _part(self, stack: list[Frame]) -> str | None:
        """Return which part of the loop runs, by the order of lines where the stacks part.

        Empty while no forward was seen: there may be none, where the script brings no module.
        """
        if self._update is None:
            return None
        here = _places(stack)
        to_update = _order(here, self._update)
        if to_update is None:
            return None
        if to_update > 0 or any(code.co_filename.endswith(_BUILDS) for code, _ in here):
            return "sampled after"
        if self._forward is None:
            return ""
        to_forward = _order(here, self._forward)
        return None if to_forward is None else "sampled before" if to_forward < 0 else "sampled between"


def _places(stack: list[Frame]) -> list[Place]:
    """Return code and line of each frame, the outermost first."""
    return [(frame.code, frame.line) for frame in reversed(stack)]


def _order(here: list[Place], there: list[Place]) -> int | None:
    """Return -1 where `here` stands above `there` in the function where they part, 1 below, 0 on its line.

    None: they part in no common function.
    """
    order = None
    for (code, line), (other, other_line) in zip(here, there, strict=False):
        if code is not other:
            break
        order = (line > other_line) - (line < other_line)
        if order:
            break
    return order


def _user_lines(stack: list[Frame]) -> Chain:
    """Return the lines of the user's frames, the outermost first."""
    out = [
        (frame.file, frame.line, frame.code.co_name)
        for frame in reversed(stack)
        if not is_library(frame.file)
    ]
    return (*out[:DEEPEST], out[-1]) if len(out) > DEEPEST else tuple(out)
