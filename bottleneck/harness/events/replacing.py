"""Attributes that were replaced by ours, and how each is put back.

In: entries, as they were made. Out: the objects as they were, except where somebody has replaced
ours since: that stays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Replaced", "put_back"]


class Replaced(NamedTuple):
    """One attribute."""

    owner: Any
    name: str
    original: Any
    ours: Any
    own: bool
    """It stood on the owner itself; otherwise the owner inherits it."""


def put_back(entries: list[Replaced]) -> None:
    """Put everything back that is still ours, the last first, and forget the entries."""
    while entries:
        entry = entries.pop()
        if vars(entry.owner).get(entry.name) is not entry.ours:
            continue
        if entry.own:
            setattr(entry.owner, entry.name, entry.original)
        else:
            delattr(entry.owner, entry.name)
