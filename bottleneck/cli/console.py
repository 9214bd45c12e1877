"""What a command says to the one who typed it, and asks, apart from its report.

In: a sentence; what a verification was started from. Out: a line on stderr; an error where the answer is no.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from typing import TYPE_CHECKING

import click

from ..errors import UsageError
from ..reporters.stream import tell

if TYPE_CHECKING:
    from ..verify.source import Source

__all__ = ["ask_to_run", "say", "silent"]


def say(text: str) -> None:
    """Write a line marked as ours: the script writes to stderr too. It may be full or closed."""
    with contextlib.suppress(OSError, ValueError):
        tell(f"bottleneck: {text}")


def silent(_text: str) -> None:
    """Write nothing, for --quiet."""


def ask_to_run(source: Source) -> None:
    """Let the user decide whether to run what a folder names that may come from somebody else.

    Raises:
        UsageError: nobody is there to ask, or the answer is no.
    """
    target = source.target
    what = shlex.join([*target.launcher, target.name, *target.args])
    about = (
        f"{source.run_folder or source.verification} may not be yours: {source.foreign}."
        f" What it says to run, in {target.cwd}: {what}"
    )
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError(f"{about}.", remedy="Look at that script, then add --yes.")
    tell(about)
    if not click.confirm("Run it?", err=True):
        raise UsageError("Nothing was run.")
