"""Python processes that the observed one starts to train in: its own script again, or what it launches.

In: a plan. Out: such a process runs under a session of its own, beside that of the process it came
from. Unobserved, a rank would lose its partner at the stop and end with a traceback, and behind a
launcher nobody would be observed at all.

`subprocess.Popen` is wrapped, and two kinds of commands of this very interpreter are changed:

- the script itself, with another LOCAL_RANK or RANK in its environment (Lightning's way of starting
  several devices);
- any script or module that the code of a launcher starts (`diagnose -m torch.distributed.run ...`,
  `diagnose -m accelerate.commands.launch ...`, a script that calls torchrun's API).

Everything else passes untouched.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from ...clocks import monotonic, sleep
from ...runs.launch import command_of
from ...runs.plan import Plan
from ..events.replacing import Replacements

RANKS = ("LOCAL_RANK", "RANK")
LAUNCHERS = (
    "torch.distributed.run.",
    "torch.distributed.launch.",
    "torch.distributed.launcher.",
    "torch.distributed.elastic.",
    "accelerate.commands.launch.",
    "deepspeed.launcher.",
)
"""Modules that start other people's training, each with a dot behind."""
PROGRAMS = frozenset(
    "accelerate deepspeed horovodrun mpiexec mpirun raylet srun torchrun".split()  # noqa: SIM905
)
"""Commands behind which training goes on in processes that this one does not start itself."""
VALUED = ("-W", "-X", "--check-hash-based-pycs")
"""Options of the interpreter whose value is a word of its own."""
SECONDS = 60.0
"""For the other ranks to leave after this one has: they stop at the same step."""

_replaced = Replacements()
_started: list[Any] = []
"""Ranks of ours."""
_unseen: list[str] = []
"""Names of what was started and may train, but is not observed."""


def observed(
    plan: Plan, command: object, env: Mapping[str, str] | None, *, launcher: bool = False
) -> list[str] | None:
    """Return the command that runs the same under observation; None if it is another program.

    `launcher`: the code of a launcher starts it.
    """
    if not isinstance(command, (list, tuple)):
        return None
    words = [os.fsdecode(word) for word in command if isinstance(word, (str, bytes, os.PathLike))]
    if len(words) < len(command) or len(words) < 2 or words[0] != sys.executable:
        return None
    place = _target_position(words)
    if place is None:
        return None
    flags, rest = words[1:place], words[place:]
    module, script, arguments = (rest[1], None, rest[2:]) if rest[0] == "-m" else (None, rest[0], rest[1:])
    same = module in _module_names(plan) if module is not None else _same_file(rest[0], plan.script)
    # As written in the command: it is absolute, and the working folder may be another one.
    rank = msgspec.structs.replace(plan, child=True, script=script, args=tuple(arguments))
    if same and _for_another_rank(env):
        rank = msgspec.structs.replace(rank, module=plan.module)
    elif launcher and not _is_ours(module, script):
        rank = msgspec.structs.replace(rank, module=module, launched=True)
    else:
        return None
    return [sys.executable, *flags, *command_of(rank, flags=not (launcher or flags))]


def started_by_launcher(frame: FrameType | None) -> bool:
    """Say whether the code of a launcher stands among the callers of a frame."""
    while frame is not None:
        names = frame.f_globals
        # A module run by `-m` is called __main__, and its spec tells its name.
        name = getattr(names.get("__spec__"), "name", None) or names.get("__name__")
        if f"{name}.".startswith(LAUNCHERS):
            return True
        frame = frame.f_back
    return False


def install(plan: Plan) -> None:
    """Watch for such commands from now on."""
    if _replaced.entries:
        return

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
            command = None
            with contextlib.suppress(Exception):
                launcher = started_by_launcher(sys._getframe(1))
                command = observed(plan, args, kwargs.get("env"), launcher=launcher)
                name = _may_train(args) if command is None else None
                if name is not None and name not in _unseen:
                    _unseen.append(name)
            original(self, args if command is None else command, *rest, **kwargs)
            if command is not None:
                _started.append(self)

        return init

    _replaced.put(subprocess.Popen, "__init__", make)


def uninstall() -> None:
    """Take the wrapper off again, in a forked child: what was started is the parent's."""
    _replaced.undo()
    _started.clear()
    _unseen.clear()


def unseen() -> tuple[str, ...]:
    """Return the programs that this process has started, that may train, and that nobody observes."""
    return tuple(_unseen)


def wait(seconds: float = SECONDS) -> None:
    """Let the other ranks finish their folders: they get SIGTERM when this process ends."""
    deadline = monotonic() + seconds
    while monotonic() < deadline and any(rank.poll() is None for rank in _started):
        sleep(0.05)


def _may_train(command: object) -> str | None:
    """Return the name of a program behind which training may go on; None for any other."""
    if isinstance(command, (str, bytes)):
        words = shlex.split(os.fsdecode(command))
    elif isinstance(command, (list, tuple)):
        words = [os.fsdecode(word) for word in command]
    else:
        return None
    name = Path(words[0]).name if words else ""
    if name in PROGRAMS:
        return name
    place = _target_position(words) if name.startswith("python") else None
    if place is None or words[place] == "-m":
        return None
    # Helpers of libraries (compile workers, resource trackers) lie with their libraries.
    return Path(words[place]).name if "site-packages" not in Path(words[place]).parts else None


def _target_position(words: Sequence[str]) -> int | None:
    """Return where python's own options end: at a script or at `-m`; None where there is neither."""
    position = 1
    while position < len(words):
        word = words[position]
        if word == "-m":
            return position if position + 1 < len(words) else None
        if not word.startswith("-"):
            return position
        if word.startswith("-c") or word in ("-", "--"):
            return None
        position += 2 if word in VALUED else 1
    return None


def _for_another_rank(env: Mapping[str, str] | None) -> bool:
    return env is not None and any(env.get(name) not in (None, os.environ.get(name, "0")) for name in RANKS)


def _is_ours(module: str | None, script: str | None) -> bool:
    """Say whether a launcher was told to start us: what runs there is observed already."""
    if module is not None:
        return module.partition(".")[0] == __name__.partition(".")[0]
    return script is not None and Path(script).resolve().parent == Path(__file__).resolve().parents[1]


def _module_names(plan: Plan) -> tuple[str, ...]:
    if plan.module is None:
        return ()
    # What the script calls itself: `__main__` of a package has the longer name.
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return (plan.module, getattr(spec, "name", plan.module))


def _same_file(one: str, other: str | None) -> bool:
    try:
        return other is not None and Path(one).samefile(other)
    except OSError:
        return False
