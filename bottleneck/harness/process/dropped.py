"""Exceptions of ours that the interpreter drops, and a second try for them.

In: what to do once more. Out: nothing is lost when a signal arrives while a finaliser or a callback
of the garbage collector runs (ours among them): what its handler raises there is printed as
"Exception ignored in" and forgotten, and the program would go on as if nobody had asked it to end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..events.replacing import Replacements
from ..signals import call_later

SECONDS = 0.01
"""For the finaliser to end: raised again inside it, the exception would be dropped again."""


class Dropped:
    """Watches `sys.unraisablehook` for exceptions of ours."""

    def __init__(self, again: Callable[[BaseException], Callable[[], None] | None]) -> None:
        """`again` gets an exception that was dropped.

        It returns how it comes about once more, called from a thread of its own a moment later, or None for
        one that is not ours.
        """
        self._again = again
        self._previous: Callable[[sys.UnraisableHookArgs], object] = sys.unraisablehook
        self._replaced = Replacements()

    def install(self) -> None:
        """Begin to watch."""
        if not self._replaced.entries:
            self._previous = sys.unraisablehook
            self._replaced.set(sys, "unraisablehook", self._hook)

    def uninstall(self) -> None:
        """Put the hook back, unless the script has put one of its own over it."""
        self._replaced.undo()

    def _hook(self, dropped: sys.UnraisableHookArgs) -> None:
        error = dropped.exc_value
        call = self._again(error) if error is not None else None
        if call is not None:
            call_later(SECONDS, call)
        else:
            self._previous(dropped)
