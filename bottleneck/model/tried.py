"""Fixes tried in the running process: what is asked for, and what was measured.

In: nothing. Out: frozen structs: `TrialRequest` goes to the script's process, `TriedFixes` comes back from it
as trials.json.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .verify import Wish

__all__ = ["TrialRequest", "TriedFix", "TriedFixes", "TryWish"]


class TryWish(msgspec.Struct, frozen=True, kw_only=True):
    """One fix to try."""

    wish: Wish
    moves_samples: bool = False
    """Its batches come from other processes: its losses cannot be compared with those of the same batches."""
    conflicts: tuple[str, ...] = ()
    """Fixes that cannot be in force together with it."""
    compiles: bool = False
    """Its first steps compile, which may take long: it comes after those that do not."""


class TrialRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to try, the most promising first."""

    wishes: tuple[TryWish, ...] = ()
    seconds: float = 0.0
    """For all of them together."""


class TriedFix(msgspec.Struct, frozen=True, kw_only=True):
    """What the script's process found of one fix."""

    fix: str
    beside: str = ""
    """Another fix that is in force in the same turns: both together against neither."""
    state: Literal["measured", "under way", "failed", "not tried"]
    """under way: the process ended before this trial did."""
    reason: str = ""
    """Why it failed or was not tried."""
    without_ms: list[float] = []
    """Step time without the fix, a mean per block of steps..."""
    with_ms: list[float] = []
    """...and with it, in the block next to it."""
    steps: int = 0
    """Steps of a block."""
    losses: list[float | None] = []
    """Of the same steps as `TriedFixes.losses`, with the fix; None where not finite. Empty: not compared."""
    evidence: str = ""
    """What was found changed."""
    seconds: float = 0.0


class TriedFixes(msgspec.Struct, frozen=True, kw_only=True):
    """trials.json."""

    rows: list[TriedFix] = []
    losses: list[float | None] = []
    """Of the first steps, without any fix."""
    losses_again: list[float | None] = []
    """Of the same steps from the same state: how far the script repeats itself."""
    no_losses: str = ""
    """Why losses are not compared."""
    seconds: float = 0.0
    """Wall time from the end of the capture to the end of the last trial."""
