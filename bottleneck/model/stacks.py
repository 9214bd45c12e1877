"""Stacks of the training thread, as they were sampled: stacks.json.

In: nothing. Out: `Stacks`, and the frames that they consist of.
"""

from __future__ import annotations

import msgspec


class StackFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A frame of the user's in a sampled stack, or of a package below them."""

    file: str
    line: int
    function: str = ""
    call: str = ""
    """What runs at that line, as written: `gc.collect()`, `table.iloc[i]`; empty if not known. In a package
    the line's source."""
    callee: str = ""
    """`module.name` of the library function that is called there."""
    via: str = ""
    """`module.name` of the library function that called this frame; empty if the user's own code did, or
    one package another."""
    loops: tuple[tuple[int, int], ...] = ()
    """First and last line of the loops around the line in its function, the outermost first."""
    discards: bool = False
    """The statement there is a call by itself, whose value is thrown away."""


class Stacks(msgspec.Struct, frozen=True, kw_only=True):
    """stacks.json: samples of the training thread's stack in steps with nothing else attached.

    Samples are columns of equal length, in order of time. A row that does not count marks the beginning
    of a phase, with its stack.
    """

    frames: list[StackFrame] = []
    stacks: list[list[int]] = []
    """Positions in `frames`, the outermost first."""
    below: list[list[int]] = []
    """By stack: the lines of packages below the user's innermost one, the outermost first, where the training
    runs in them. Empty in recordings of before."""
    phases: list[str] = []
    """Names of phases; the first is empty: outside every phase."""
    step_ms: list[float] = []
    """The steps of this window."""
    step: list[int] = []
    """Position in `step_ms`."""
    stack: list[int] = []
    phase: list[int] = []
    """The innermost phase that was open, as a position in `phases`."""
    after: list[int] = []
    """The last that had ended, of data, forward, backward and optimizer."""
    us: list[int] = []
    """Time that the sample stands for: since the one before."""
    counts: list[int] = []
    """1; 0 where the row marks the beginning of a phase."""
    faults: list[int] = []
    """Minor page faults of the process in that time. Empty in recordings of before."""
    system_us: list[int] = []
    """System time of all threads of the process meanwhile. Likewise."""
