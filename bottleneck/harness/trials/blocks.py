"""How many steps are timed together, and which of them spoil that.

In: the length of a step, and each batch and step of the training. Out: the steps of a block, whole passes
over the data where those are short or where a fix acts once in each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        self._loader = self._batches = self._steps = 0
        """Which loader the last batch came from, and its batches and steps since another one gave some."""
        self._unit = 1
        """A block is a multiple of so many steps: of a pass over the data, or of one."""
        self._validations: float | None = 0.0
        """In each pass of a block that is not spoilt; None until the first block tells."""

    def fetched(self, loader: Any) -> None:
        """The training has got a batch from its loader."""
        if id(loader) != self._loader:
            self._loader, self._batches, self._steps = id(loader), 0, 0
        self._batches += 1

    def stepped(self) -> None:
        """A step has ended."""
        self._steps += 1

    def may_end(self, steps: int, seconds: float) -> bool:
        """Return whether a block may end after so many steps because it takes long."""
        return seconds > LONGEST_BLOCK_SECONDS and steps >= BLOCK_STEPS[0] and steps % self._unit == 0

    def is_spoilt(self, kinds: Sequence[tuple[bool, bool]]) -> bool:
        """Return whether a block is not like the others.

        In whole passes, what the script does after each is part of all blocks.

        Args:
            kinds: of each step, whether it held a validation, and a compilation.
        """
        validations, compilations = map(sum, zip(*kinds, strict=True))
        each = validations * self._unit / len(kinds)
        if self._validations is None:
            self._validations = each
        return compilations > 0 or each != self._validations

    @property
    def evaluate(self) -> bool:
        """Each block that is not spoilt holds a validation, or several."""
        return bool(self._validations)

    def single(self) -> None:
        """Blocks are of single steps again, without validations."""
        self._unit, self._validations = 1, 0.0

    def length(self, loader: Any, *, once_a_pass: bool, seconds: float, alone: bool) -> int:
        """Return the steps of a block.

        Args:
            loader: the one that feeds the training.
            once_a_pass: what is tried acts where a pass begins.
            seconds: the time that there is for all blocks.
            alone: there is one rank; several count their steps alike, whatever their loaders are.

        Raises:
            NotSwitchable: there is not time enough for passes that decide.
        """
        fewest, most = BLOCK_STEPS
        wanted = max(fewest, min(most, math.ceil(BLOCK_SECONDS / self._step_seconds)))
        a_pass = self._pass_steps(loader) if alone else 0
        if not a_pass or (a_pass > wanted and not once_a_pass):
            return wanted
        affords = int(seconds / (_BLOCKS * self._step_seconds))
        if a_pass > max(wanted, affords):
            raise NotSwitchable(
                f"it acts where an epoch begins, and the {_BLOCKS} epochs that decide take "
                f"{_BLOCKS * a_pass * self._step_seconds:.0f} s (--trial-seconds)"
            )
        self._unit, self._validations = a_pass, None
        # A typical step has no part in what a pass begins with: those that act there are timed over fewer.
        steps = wanted // 2 if once_a_pass else wanted
        return math.ceil(max(1, min(steps, affords)) / a_pass) * a_pass

    def _pass_steps(self, loader: Any) -> int:
        """Return the steps of one pass; 0 where that is not known."""
        try:
            length = len(loader)
        except Exception:  # a length is the dataset's own code
            return 0
        known = id(loader) == self._loader and self._batches
        return max(1, round(length * self._steps / self._batches)) if known else 0
