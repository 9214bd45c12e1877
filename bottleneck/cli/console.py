"""What a command says to the one who typed it, and asks, apart from its report.

In: a sentence; how far a reading is; what a verification was started from. Out: a line on stderr; an error
where the answer is no.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from ..clocks import monotonic
from ..errors import UsageError
from ..model.words import duration
from ..reporters.stream import is_terminal, rewrite, tell

if TYPE_CHECKING:
    from ..model.diagnosis import Fleet
    from ..verify.source import Source

_PATIENCE_SECONDS = 2.0
_REWRITE_SECONDS = 0.2
_PLAIN_SECONDS = 10.0


def say(text: str) -> None:
    """Write a line marked as ours: the script writes to stderr too. It may be full or closed."""
    with contextlib.suppress(OSError, ValueError):
        tell(f"bottleneck: {text}")


def silent(_text: str) -> None:
    """Write nothing, for --quiet."""


@dataclass(slots=True)
class RankProgress:
    """Says how many ranks are read and how long the others will take, once it takes longer than a moment."""

    _began: float = field(default_factory=monotonic)
    _said: float = 0.0
    _dirty: bool = False

    def __call__(self, done: int, total: int) -> None:
        """Take note that so many are read."""
        now, terminal = monotonic(), is_terminal()
        spent = now - self._began
        if done == total:
            if self._dirty:
                rewrite("")
            return
        pause = _REWRITE_SECONDS if terminal else _PLAIN_SECONDS
        if spent < _PATIENCE_SECONDS or now - max(self._said, self._began) < pause:
            return
        self._said = now
        text = f"bottleneck: {done} of {total} ranks read, {duration(spent / done * (total - done))} left"
        if terminal:
            self._dirty = True
            rewrite(text)
        else:
            tell(text)

    def first_words(self, fleet: Fleet) -> None:
        """Say what the first ranks say together."""
        from ..reporters.rows.fleet import first_words

        if monotonic() - self._began < _PATIENCE_SECONDS:
            return  # the report is about to come
        if self._dirty:
            rewrite("")
        tell(f"bottleneck: {first_words(fleet)}")


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
