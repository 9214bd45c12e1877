"""The reporter protocol and the table of formats.

In: the name of a format. Out: the module that renders it, imported on first use, so that asking for
JSON never imports the terminal library.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from ..errors import UsageError
from ..model.diagnosis import Diagnosis

__all__ = ["FORMATS", "Reporter", "reporter"]

FORMATS: dict[str, str] = {
    "text": "terminal",
    "md": "markdown",
    "json": "json",
    "html": "html",
    "brief": "brief",
    "sarif": "sarif",
}
"""Format, as typed after --format -> module of this package."""


class Reporter(Protocol):
    """Turns a diagnosis into text. Each reporter is a module, whose `render` may take more options."""

    def render(self, diagnosis: Diagnosis, *, verbose: bool = False) -> str:
        """Return the whole report, ending in a newline."""
        ...


def reporter(name: str) -> Reporter:
    """Return the reporter of a format.

    Raises:
        UsageError: there is no such format.
    """
    if name not in FORMATS:
        raise UsageError(f"No report format {name!r}.", remedy=f"Formats: {', '.join(FORMATS)}.")
    return cast("Reporter", import_module(f".{FORMATS[name]}", __package__))
