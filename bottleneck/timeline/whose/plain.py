"""Code of the user's below which no operator is called: whole functions, and loops.

In: the functions and lines that were seen above operators. Out: `PlainCode`, for a frame of a sampled stack.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from ...model.run import Run
from ...model.stacks import StackFrame


@dataclass(frozen=True, slots=True)
class PlainCode:
    """A function or a loop that calls no operator."""

    file: str
    name: str
    """As reports call it."""
    line: int
    """The first one of a loop; 0 of a function."""


@dataclass(frozen=True, slots=True)
class AboveOperators:
    """What of the user's was on the stack when an operator was called."""

    functions: Collection[tuple[str, str]]
    """File and name."""
    lines: Mapping[str, Collection[int]] = field(default_factory=dict)
    """By file; empty where only functions are known."""

    @classmethod
    def of(cls, run: Run | None) -> AboveOperators | None:
        """Return what a run tells; None where operators were not looked at."""
        if run is None or run.above_operators is None:
            return None
        return cls(
            frozenset(run.above_operators), {file: frozenset(its) for file, its in run.above_lines.items()}
        )

    def plain(self, frame: StackFrame) -> tuple[PlainCode, StackFrame] | None:
        """Return the function of a frame, or the outermost loop around its line, that calls no operator.

        And the frame, without the loops around that one; None where there is none.
        """
        if (frame.file, frame.function) not in self.functions:
            return PlainCode(frame.file, f"{frame.function}()", 0), frame
        above = self.lines.get(frame.file)
        for at, (first, last) in enumerate(frame.loops if above is not None else ()):
            if above is not None and not any(first <= line <= last for line in above):
                inside = msgspec.structs.replace(frame, loops=frame.loops[at:])
                return PlainCode(frame.file, f"loop in {frame.function}()", first), inside
        return None
