"""When the parts of a job lay: their seconds in stretches of equal length.

In: how far the account reaches, and its sums, again and again. Out: a `Timeline` of at most `STRETCHES`
stretches; when they are full, each two become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.watch import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OverTime"]

STRETCHES = 128
FIRST_NS = 100_000_000
"""Length of a stretch in a job that is shorter than all of them."""


class OverTime:
    """One per job; fed by one thread."""

    def __init__(self, began_ns: int) -> None:
        """Begin with nothing known; times are perf_counter_ns()."""
        self._began_ns = self._at_ns = began_ns
        self._stretch_ns = FIRST_NS
        self._before: dict[str, int] = {}
        self._parts: dict[str, list[float]] = {}
        self._steps: list[int] = []

    def add(self, at_ns: int, sums_ns: Mapping[str, int], *, steps: int) -> None:
        """The account reaches up to `at_ns`; what its parts have gained lies since it was last heard of.

        Steps that it has not divided yet gain nothing, so that their time is waited for.
        """
        gained = {part: ns - self._before.get(part, 0) for part, ns in sums_ns.items()}
        took_ns = at_ns - self._at_ns
        if took_ns <= 0 or not any(gained.values()):
            return
        while at_ns - self._began_ns > STRETCHES * self._stretch_ns:
            self._halve()
        begin_ns, end_ns = self._at_ns - self._began_ns, at_ns - self._began_ns
        for i in range(begin_ns // self._stretch_ns, -(-end_ns // self._stretch_ns)):
            within_ns = min(end_ns, (i + 1) * self._stretch_ns) - max(begin_ns, i * self._stretch_ns)
            for part, ns in gained.items():
                if ns:
                    column = self._parts.setdefault(part, [])
                    column.extend([0.0] * (i + 1 - len(column)))
                    column[i] += ns * within_ns / took_ns
            self._steps.extend([steps] * (i + 1 - len(self._steps)))
            self._steps[i] = steps
        self._at_ns, self._before = at_ns, dict(sums_ns)

    def _halve(self) -> None:
        for part, column in self._parts.items():
            column.extend([0.0] * (len(column) % 2))
            self._parts[part] = [a + b for a, b in zip(column[::2], column[1::2], strict=True)]
        self._steps = [*self._steps[1::2], *(self._steps[-1:] if len(self._steps) % 2 else [])]
        self._stretch_ns *= 2

    def timeline(self) -> Timeline:
        """Return what there is so far; columns end with their last stretch that holds anything."""
        return Timeline(
            stretch_s=self._stretch_ns / 1e9,
            steps=list(self._steps),
            parts={part: [round(ns / 1e9, 4) for ns in column] for part, column in self._parts.items()},
        )
