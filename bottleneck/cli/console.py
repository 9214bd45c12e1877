"""Messages of a command, apart from its report.

In: a sentence. Out: a line on stderr.
"""

from __future__ import annotations

import contextlib

from ..reporters.stream import tell

__all__ = ["say", "silent"]


def say(text: str) -> None:
    """Write a line marked as ours: the script writes to stderr too. It may be full or closed."""
    with contextlib.suppress(OSError, ValueError):
        tell(f"bottleneck: {text}")


def silent(_text: str) -> None:
    """Write nothing, for --quiet."""
