"""How many steps are timed together, and which of them spoil that.

In: the length of a step, and each batch and step of the training. Out: the steps of a block, whole passes
over the data where those are short or where a fix acts once in each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ...stats.ratio_paired import TURNS
from .patches.base import NotSwitchable

BLOCK_SECONDS = 0.3
"""Least length of a block: interruptions of a few ms are then a percent of it."""
LONGEST_BLOCK_SECONDS = 3 * BLOCK_SECONDS
BLOCK_STEPS = (2, 60)
"""Fewest and most steps of a block that is of no whole passes."""
_BLOCKS = 2 * TURNS[0]
"""The fewest that decide."""


class Blocks:
    """One per trial window."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = max(step_seconds, 1e-6)
        self._batches = self._steps = 0
        self._unit = 1
        """A block is a multiple of so many steps: of a pass over the data, or of one."""

    def fetched(self) -> None:
        """The training has asked its loader for a batch."""
        self._batches += 1

    def stepped(self) -> None:
        """A step has ended."""
        self._steps += 1

    def spoils(self, *, validation: bool, compiled: bool) -> bool:
        """Return whether a step that held one of these is not like the others.

        In a block of whole passes, what the script does after each is part of all blocks.
        """
        return compiled or (validation and self._unit == 1)

    def may_end(self, steps: int, seconds: float) -> bool:
        """Return whether a block may end after so many steps because it takes long."""
        return seconds > LONGEST_BLOCK_SECONDS and steps >= BLOCK_STEPS[0] and steps % self._unit == 0

    def single(self) -> None:
        """Blocks are of single steps again."""
        self._unit = 1

    def length(
        self, loader: Any, *, once_a_pass: bool, seconds: float, of_all: Callable[[Any], list[Any]]
    ) -> int:
        """Return the steps of a block.

        Args:
            loader: the one that feeds the training.
            once_a_pass: what is tried acts where a pass begins.
            seconds: the time that there is for all blocks.
            of_all: given what this rank says, returns what all say.

        Raises:
            NotSwitchable: there is not time enough for passes that decide.
        """
        affords = int(of_all(seconds)[0] / (_BLOCKS * self._step_seconds))
        fewest, most = BLOCK_STEPS
        wanted = max(fewest, min(most, affords, math.ceil(BLOCK_SECONDS / self._step_seconds)))
        a_pass = max(of_all(self._pass_steps(loader)))
        self._unit = a_pass if a_pass and (once_a_pass or a_pass <= wanted) else 1
        if self._unit > max(wanted, affords):
            raise NotSwitchable(
                f"it acts where an epoch begins, and the {_BLOCKS} epochs that decide take "
                f"{_BLOCKS * self._unit * self._step_seconds:.0f} s (--trial-seconds)"
            )
        return math.ceil(wanted / self._unit) * self._unit

    def _pass_steps(self, loader: Any) -> int:
        """Return the steps of one pass; 0 where that is not known."""
        try:
            length = len(loader)
        except Exception:  # a length is the dataset's own code
            return 0
        return max(1, round(length * self._steps / self._batches)) if self._batches else 0
