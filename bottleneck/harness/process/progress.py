"""The progress line on stderr: which window, step n of m, step time.

In: windows and steps as they happen. Out: text on stderr only; stdout belongs to the script.
On a terminal one line is rewritten in place; elsewhere a plain line now and then.
"""

from __future__ import annotations

import sys
from typing import TextIO

from ...clocks import monotonic

REWRITE_SECONDS = 0.1
"""Ten times a second is as fast as one reads, and costs nothing beside a step."""
PLAIN_SECONDS = 10.0


class Progress:
    """Says how far the capture is."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None, rank: int = 0) -> None:
        """Write to `stream` (standard error), unless `quiet`; only rank 0 speaks."""
        # A private handle: the script may replace or close sys.stderr.
        self._stream = stream if stream is not None else sys.__stderr__
        self._wanted = not quiet and self._stream is not None
        self._quiet = not self._wanted or rank != 0
        self._terminal = self._wanted and self._is_terminal()
        self._window = ""
        self._planned = 0
        self._last = 0.0
        self._dirty = False

    def speak_for(self, rank: int) -> None:
        """The rank became known only now: speak if it is 0."""
        self._quiet = not self._wanted or rank != 0

    def window(self, name: str, planned: int | None) -> None:
        """Begin a window of `planned` steps (None or 0: not known)."""
        self._window, self._planned = name, planned or 0
        self._last = monotonic()
        if self._quiet:
            return
        text = f"{name} window" + (f", {planned} step{'s' * (planned > 1)}" if planned else "")
        if self._terminal:
            self._rewrite(text)
        else:
            self._line(text)

    def step(self, number: int, ms: float | None = None) -> None:
        """Say that step `number` of the current window is done and took `ms`."""
        if self._quiet:
            return
        now = monotonic()
        if now - self._last < (REWRITE_SECONDS if self._terminal else PLAIN_SECONDS):
            return
        self._last = now
        text = f"{self._window}: step {number}"
        if self._planned:
            text += f" of {self._planned}"
        if ms is not None:
            text += f", {ms:.3g} ms" if ms < 1000 else f", {ms / 1000:.3g} s"
        if self._terminal:
            self._rewrite(text)
        else:
            self._line(text)

    def live(self, text: str) -> None:
        """Rewrite the line in a terminal; say nothing elsewhere."""
        if self._terminal and not self._quiet:
            self._rewrite(text)

    def note(self, text: str) -> None:
        """Say something once, on a line of its own."""
        if not self._quiet:
            self.clear()
            self._line(text)

    def clear(self) -> None:
        """Take the rewritten line away, so that what follows starts clean."""
        if self._dirty:
            self._dirty = False
            self._write("\r\x1b[K")

    def _rewrite(self, text: str) -> None:
        # The cursor goes back to the margin, so that a print of the script's starts there.
        self._dirty = True
        self._write(f"\r\x1b[Kbottleneck: {text}\r")

    def _line(self, text: str) -> None:
        self._write(f"bottleneck: {text}\n")

    def _write(self, text: str) -> None:
        try:
            assert self._stream is not None
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Closed or full: progress is not worth an error in someone else's program.
            self._quiet, self._wanted = True, False

    def _is_terminal(self) -> bool:
        try:
            return self._stream is not None and self._stream.isatty()
        except ValueError:
            return False
