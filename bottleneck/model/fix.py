"""Fixes: what the catalogue holds, and a fix as suggested for one run.

In: nothing. Out: frozen structs. A fix is data; `applies` conditions are checked against the
context, a flat mapping of facts and settings in force (keys: model/context.py).
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from .codes import WhatIf
from .run import JsonValue, SourceSite

__all__ = ["Condition", "Fix", "Risk", "Source", "Suggestion"]


class Risk(str, Enum):
    """What applying a fix may break."""

    SAFE = "safe"
    CHANGES_NUMERICS = "changes numerics"
    NEEDS_REVIEW = "needs review"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One test of the context; an unknown key makes the condition unknown, not false."""

    key: str
    op: Literal["==", "!=", "<", "<=", ">", ">=", "in", "not in", "contains", "known"]
    value: JsonValue = None
    text: str = ""
    """The condition in words, for the report and `bottleneck catalog show`."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a technique or a claimed gain comes from."""

    title: str
    url: str = ""
    claim: str = ""
    """The source's own figure, shown as a claim and never used as a prediction."""


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue."""

    id: str
    """FX and three digits; append-only."""
    title: str
    addresses: tuple[str, ...]
    """Finding codes that make this fix worth suggesting; empty for a note."""
    what_to_change: str
    when: tuple[Condition, ...] = ()
    unless: tuple[Condition, ...] = ()
    conflicts: tuple[str, ...] = ()
    risk: Risk = Risk.SAFE
    may_break: str = ""
    what_if: WhatIf | None = None
    """The replay question whose answer is the prediction."""
    basis: str = ""
    """Where the predicted gain comes from, in words."""
    what_if_bound: bool = False
    """True: that answer is an upper bound for this fix, whatever the question itself is."""
    adds: str = ""
    """Key of the context: ms that the step gets longer by at most, for a fix that buys memory with time."""
    code: str = ""
    """Python that runs; placeholders in <angle brackets> are not allowed."""
    fills: dict[str, str] = {}
    """Text in `code` -> the same with `{key}` or `{min(key, key)}` of the context in it; used where
    every key is known, so that the code always runs, filled or not."""
    undo: str = ""
    verify: str = ""
    can_try: bool = False
    """`bottleneck verify` can apply it at run time without editing the source."""
    note: bool = False
    family: str = ""
    sources: tuple[Source, ...] = ()
    since: str = "0.1.0"
    status: Literal["stable", "preview", "removed"] = "stable"


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A fix as suggested for one run, fully resolved: a reporter looks nothing up."""

    fix: str
    title: str
    finding: str
    """Code of the finding that it answers."""
    predicted_ms: float | None = None
    """Predicted step time with the fix, ms."""
    saves_ms: float | None = None
    bound: bool = False
    """True: the prediction is the most that the fix can bring."""
    adds_ms: float | None = None
    """What the step gets longer by at most, where the fix buys memory with time."""
    basis: str = ""
    how: str = ""
    """What to change, in words."""
    code: str = ""
    site: SourceSite | None = None
    risk: Risk = Risk.SAFE
    may_break: str = ""
    undo: str = ""
    verify: str = ""
    can_try: bool = False
    unknown: tuple[str, ...] = ()
    """Conditions that could not be checked on this run."""
    sources: tuple[Source, ...] = ()
    note: bool = False
    """True: worth knowing, listed last, never with a prediction."""
