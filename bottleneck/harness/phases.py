"""Host time per phase of a step, exclusive: a phase inside another is taken out of the outer one.

In: `enter(name)` and `leave()` around what the hooks see, on the training thread. Out: `take()`
gives nanoseconds per phase since the last take. The same names become `record_function` ranges
while a profiler runs, which the caller opens: an idle range would cost 6 us, this clock 0.3 us.
"""

from __future__ import annotations

from time import perf_counter_ns

__all__ = ["PHASES", "PhaseClock"]

PHASES = ("data", "h2d", "forward", "backward", "optimizer", "zero_grad", "evaluation")


class PhaseClock:
    """A stack of open phases with exclusive totals."""

    __slots__ = ("_inner", "_names", "_starts", "_totals", "entered")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._starts: list[int] = []
        self._inner: list[int] = []
        self._totals: dict[str, int] = {}
        self.entered = 0
        """How many phases were opened in all."""

    def enter(self, name: str) -> None:
        """Open a phase inside whatever is open."""
        self.entered += 1
        self._names.append(name)
        self._inner.append(0)
        self._starts.append(perf_counter_ns())

    def leave(self) -> int:
        """Close the innermost phase and return its whole duration in ns, nested ones included."""
        now = perf_counter_ns()
        if not self._names:
            return 0
        name = self._names.pop()
        whole = now - self._starts.pop()
        self._totals[name] = self._totals.get(name, 0) + whole - self._inner.pop()
        if self._inner:
            self._inner[-1] += whole
        return whole

    @property
    def innermost(self) -> str | None:
        """The name of the phase that is open now."""
        return self._names[-1] if self._names else None

    @property
    def depth(self) -> int:
        """How many phases are open."""
        return len(self._names)

    def close_to(self, depth: int) -> None:
        """Close phases that an exception left open, down to this depth."""
        while len(self._names) > depth:
            self.leave()

    def take(self, now: int) -> dict[str, int]:
        """Return the totals in ns and begin anew; open phases are split at `now` (perf_counter_ns)."""
        for level in range(len(self._names) - 1, -1, -1):
            whole = now - self._starts[level]
            name = self._names[level]
            self._totals[name] = self._totals.get(name, 0) + whole - self._inner[level]
            if level:
                self._inner[level - 1] += whole
            self._starts[level] = now
            self._inner[level] = 0
        totals, self._totals = self._totals, {}
        return totals
