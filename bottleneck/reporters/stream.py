"""The one place where text leaves for a terminal: what a terminal would act on is written out there.

In: text, whatever foreign names stand in it. Out: characters on stdout or stderr. A stream that is
closed, full or gone costs nothing that was made before.
"""

from __future__ import annotations

import sys
from typing import TextIO

from ..model.words import visible, visible_lines


def tell(text: str) -> None:
    """Write one line to stderr; a line break in a name does not make it two."""
    _tell(visible(text))


def tell_lines(text: str) -> None:
    """Write a block of lines to stderr."""
    _tell(visible_lines(text))


def is_terminal() -> bool:
    """Return whether somebody may be reading stderr as it is written."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:
        return False


def rewrite(text: str) -> None:
    """Write one line to stderr in the place of the last such line; nothing to take it away."""
    _write(f"\r\x1b[K{visible(text)}\r" if text else "\r\x1b[K")


def _tell(text: str) -> None:
    _write(text + "\n")


def _write(text: str) -> None:
    stream = sys.stderr
    if stream is None:
        return
    try:
        stream.write(_encodable(text, stream))
        stream.flush()
    except (OSError, ValueError):  # full, gone, or closed
        return


def show(text: str, stream: TextIO, *, color: bool) -> None:
    """Write a report to a stream: to a terminal as text that does nothing, elsewhere as it is.

    Raises:
        OSError: the stream cannot be written to.
        ValueError: it is closed.
    """
    if stream.isatty():
        text = visible_lines(text, color=color)
    # A path or kernel name that the stream's encoding lacks must not cost the whole report.
    stream.write(_encodable(text, stream))
    stream.flush()


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
