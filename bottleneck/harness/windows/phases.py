"""Host time per phase of a step, exclusive: a phase inside another is taken out of the outer one.

In: `enter(name)` and `leave()` around what the hooks see, on the training thread. Out: `take()`
gives nanoseconds per phase since the last take. The same names become `record_function` ranges
while a profiler runs, which the caller opens: an idle range would cost 6 us, this clock 0.3 us.
"""

from __future__ import annotations

from typing import Any

from ...clocks import perf_counter_ns

PHASES = ("data", "h2d", "forward", "backward", "optimizer", "zero_grad", "evaluation")


class PhaseClock:
    """A stack of open phases with exclusive totals; the phase without a name is outside of all."""

    __slots__ = ("_open", "_totals", "entered", "log")

    def __init__(self) -> None:
        self._open: list[list[Any]] = []
        """Name, start in ns and ns spent in nested phases of each, outermost first."""
        self._totals: dict[str, int] = {}
        self.entered = 0
        """How many phases were opened in all."""
        self.log: list[tuple[str, int, int]] | None = None
        """Set to a list: receives (name, begin, end) in ns of every phase that closes."""

    def enter(self, name: str, now: int | None = None) -> None:
        """Open a phase inside whatever is open; `now` is when (perf_counter_ns), None for now."""
        self.entered += 1
        self._open.append([name, perf_counter_ns() if now is None else now, 0])

    def leave(self, now: int | None = None) -> int:
        """Close the innermost phase and return its whole duration in ns, nested ones included."""
        if now is None:
            now = perf_counter_ns()
        if not self._open:
            return 0
        name, start, inner = self._open.pop()
        whole: int = now - start
        totals = self._totals
        totals[name] = totals.get(name, 0) + whole - inner
        if self._open:
            self._open[-1][2] += whole
        if self.log is not None:
            self.log.append((name, start, now))
        return whole

    def spend(self, name: str, begin: int, end: int) -> int:
        """Open a phase at one time and close it at another, with nothing in between; return its ns."""
        self.entered += 1
        whole = end - begin
        totals = self._totals
        totals[name] = totals.get(name, 0) + whole
        if self._open:
            self._open[-1][2] += whole
        if self.log is not None:
            self.log.append((name, begin, end))
        return whole

    def take_over(self, other: PhaseClock, now: int) -> None:
        """Go on with the phases that are open in another clock, as if they began now."""
        self._open = [[name, now, 0] for name in other.open_phases]
        self._totals = {}

    @property
    def innermost(self) -> str | None:
        """The name of the phase that is open now."""
        return self._open[-1][0] if self._open else None

    @property
    def open_phases(self) -> list[str]:
        """The names of the phases that are open now, outermost first."""
        return [phase[0] for phase in self._open]

    @property
    def depth(self) -> int:
        """How many phases are open."""
        return len(self._open)

    def close_to(self, depth: int) -> None:
        """Close phases that an exception left open, down to this depth."""
        while len(self._open) > depth:
            self.leave()

    def take(self, now: int) -> dict[str, int]:
        """Return the totals in ns and begin anew; open phases are split at `now` (perf_counter_ns)."""
        totals, self._totals = self._totals, {}
        nested = 0
        for phase in reversed(self._open):
            name, start, inner = phase
            totals[name] = totals.get(name, 0) + now - start - inner - nested
            nested = now - start
            phase[1], phase[2] = now, 0
        totals.pop("", None)
        return totals
