"""Asks before something is run that a folder names which may come from somebody else.

In: what a verification was started from. Out: nothing, or an error.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

import click

from ..errors import UsageError
from ..reporters.stream import tell

if TYPE_CHECKING:
    from ..verify.source import Source

__all__ = ["ask_to_run"]


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
