"""One run of an experiment: what the run is to change, and what it says of itself afterwards.

In: nothing. Out: frozen structs. `Trial` travels to the script's process inside its plan;
`TrialFacts` comes back as trial.json, beside the run.json of that process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .run import JsonValue, SourceSite

__all__ = ["Applied", "Trial", "TrialFacts", "Wish"]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """One fix to apply at run time."""

    fix: str
    options: dict[str, JsonValue] = {}
    """Values that take the place of the patch's own, like {"num_workers": 8}."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of an experiment differs from a diagnosed one."""

    wishes: tuple[Wish, ...] = ()
    """Fixes to apply, in this order; empty for the run without any."""
    seed: int = 0
    """For random, numpy and torch, set before the script sets its own."""
    seed_batches: bool = False
    """Seed before each batch from its sample indices, so that random transforms draw the same
    numbers in whichever process they run. For runs that compare losses, not times."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one wish, checked when the timed steps had ended."""

    fix: str
    state: Literal["applied", "not applied"]
    count: int = 0
    """How often it acted: constructors changed, calls suppressed, modules compiled."""
    evidence: str = ""
    """What was found changed, in words: "num_workers 0 -> 4 on 1 DataLoader"."""
    reason: str = ""
    """Why it is not applied."""
    sites: list[SourceSite] = []
    """User lines at which it acted."""
    values: dict[str, JsonValue] = {}
    """Keyword -> value as really set, for the edit that makes the fix permanent."""


class TrialFacts(msgspec.Struct, frozen=True, kw_only=True):
    """trial.json: one process of one run of an experiment."""

    applied: list[Applied] = []
    losses: list[float | None] = []
    """The scalar given to each backward, in order; None where it was not finite."""
    loss_dtype: str = ""
    """Of the first loss, like "bfloat16"."""
    loss_steps: list[int] = []
    """The step, counted from the start of the program, of each entry of `losses`."""
    gradient_norms: list[float | None] = []
    """Norm over all gradients at the first optimizer steps, before the timed ones."""
    notes: list[str] = []
    """Why something of this is not there."""
