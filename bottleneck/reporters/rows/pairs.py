"""Pairs of a name and what is known of it, as tables of facts show them.

In: values as they stand in a diagnosis. Out: pairs of short clean strings; what is not known has none.
"""

from __future__ import annotations

from typing import TypeAlias

from ...model.run import SourceSite
from ...model.words import clean, percent, place

Pairs: TypeAlias = "tuple[tuple[str, str], ...]"

_LONGEST = 1000
_PAGE = 100


def cut_text(value: str) -> str:
    """Clean a text and cut its tail off where it runs on."""
    text = clean(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def known_pairs(*pairs: tuple[str, str | None]) -> Pairs:
    """Return the pairs whose text is known and not empty."""
    return tuple((name, value) for name, value in pairs if value)


def known(value: float | None, form: str) -> str | None:
    """Format a number by `form`, None where it was not measured."""
    return None if value is None else form.format(value)


def place_or(site: SourceSite | None, root: str, other: str = "", *, width: int = _PAGE) -> str:
    """Word a line of the user's program, else `other`."""
    return place(site, root=root, width=width) if site is not None else clean(other)


def share(value: float | None) -> str | None:
    """Word a share, None where it was not measured."""
    return None if value is None else percent(value)
