"""How sizes, places and pairs of facts are worded on the page.

In: values as they stand in a diagnosis. Out: short clean strings, and pairs of name and text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ...model.words import byte_size, clean, percent, place

if TYPE_CHECKING:
    from ...model.run import SourceSite

__all__ = ["Facts", "cut_text", "facts", "known", "place_or", "share", "size"]

Facts: TypeAlias = "tuple[tuple[str, str], ...]"

_LONGEST = 1000


def size(value: float | None) -> str:
    """Word a number of bytes in binary units with three figures."""
    if value is None:
        return "not measured"
    return byte_size(value)


def cut_text(value: str) -> str:
    """Clean a text and cut its tail off where it runs on."""
    text = clean(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def facts(*pairs: tuple[str, str | None]) -> Facts:
    """Return the pairs whose text is known and not empty."""
    return tuple((name, value) for name, value in pairs if value)


def known(value: float | None, form: str) -> str | None:
    """Format a number by `form`, None where it was not measured."""
    return None if value is None else form.format(value)


def place_or(site: SourceSite | None, root: str, other: str = "") -> str:
    """Word a line of the user's program, else `other`."""
    return place(site, root=root, width=100) if site is not None else clean(other)


def share(value: float | None) -> str | None:
    """Word a share, None where it was not measured."""
    return None if value is None else percent(value)
