"""Ranks that the script starts by running itself once more (Lightning's launcher for several devices).

In: a plan. Out: such a rank runs under a session of its own, beside that of the process it came
from. Unobserved it would lose its partner at the stop, and end with a traceback.

`subprocess.Popen` is wrapped; only a command that is this very script under this very interpreter,
with another LOCAL_RANK or RANK in its environment, is changed. Everything else passes untouched.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .launch import command_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .plan import Plan

__all__ = ["install", "observed", "uninstall", "wait"]

RANKS = ("LOCAL_RANK", "RANK")
SECONDS = 60.0
"""For the other ranks to leave after this one has: they stop at the same step."""

_originals: list[Callable[..., None]] = []
"""`Popen.__init__` as it was, while it is wrapped."""
_started: list[Any] = []
"""Ranks of ours."""


def observed(plan: Plan, command: object, env: Mapping[str, str] | None) -> list[str] | None:
    """Return the command that runs the same under observation; None if it is another program.

    Args:
        plan: what is run in this process.
        command: the first argument of Popen.
        env: its environment.
    """
    if env is None or not isinstance(command, (list, tuple)) or len(command) < 2:
        return None
    if all(env.get(name) in (None, os.environ.get(name, "0")) for name in RANKS):
        return None
    words = [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]
    if len(words) < len(command) or words[0] != sys.executable:
        return None
    if words[1] == "-m":
        same, arguments = len(words) > 2 and words[2] in _module_names(plan), words[3:]
    else:
        same, arguments = plan.script is not None and _same_file(words[1], plan.script), words[2:]
    if not same:
        return None
    # As written in the command: it is absolute, and the working folder may be another one.
    script = None if plan.script is None else words[1]
    rank = msgspec.structs.replace(plan, child=True, script=script, args=tuple(arguments))
    return [sys.executable, *command_of(rank)]


def install(plan: Plan) -> None:
    """Watch for the script's own relaunches from now on."""
    if _originals:
        return
    original: Callable[..., None] = subprocess.Popen.__init__
    _originals.append(original)

    @functools.wraps(original)
    def init(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        command = None
        with contextlib.suppress(Exception):
            command = observed(plan, args, kwargs.get("env"))
        original(self, args if command is None else command, *rest, **kwargs)
        if command is not None:
            _started.append(self)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]


def uninstall() -> None:
    """Take the wrapper off again."""
    if _originals:
        subprocess.Popen.__init__ = _originals.pop()  # type: ignore[method-assign]


def wait(seconds: float = SECONDS) -> None:
    """Let the other ranks finish their folders: they get SIGTERM when this process ends."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(rank.poll() is None for rank in _started):
        time.sleep(0.05)


def _module_names(plan: Plan) -> tuple[str, ...]:
    if plan.module is None:
        return ()
    # What the script calls itself: `__main__` of a package has the longer name.
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return (plan.module, getattr(spec, "name", plan.module))


def _same_file(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:
        return False
