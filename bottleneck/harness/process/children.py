"""Processes that the script itself starts (`mp.spawn`, `Process(target=train)`).

In: a plan. Out: each such process that trains gets a session of its own, beside its parent's.

`BaseProcess.__init__` wraps the target in a class that pickles by reference to this module, so it
works under fork, spawn and forkserver. Workers of a DataLoader, of pools and of multiprocessing's
own machinery are left alone.

A child that was stopped has returned nothing, and its parent may wait for a result for ever
(Lightning's spawning launcher reads a queue): the child tells its parent's stopper, which stops the
parent as well if it has not gone on by itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..events.replacing import Replacements
from .stopping import StopRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runs.plan import Plan
    from .session import Session

NOT_TRAINING = (
    "torch.utils.data",
    "torch._inductor",
    "multiprocessing.",
    "concurrent.futures",
    "joblib",
    "loky",
    "torch_bottleneck.",
)
"""Modules whose process targets are helpers, never a training loop."""

_replaced = Replacements()
_training: weakref.WeakSet[Any] = weakref.WeakSet()
"""Processes of this one that may train, as long as the script keeps them."""


class ChildTarget:
    """Stands in for a process's target: runs it under a session, with the same result."""

    def __init__(
        self, plan: Plan, target: Callable[..., object], begin: Callable[[Plan], Session], wake: int | None
    ) -> None:
        """Note whom to tell of a stop.

        `begin` and the target must pickle by reference. `wake` is the signal that the stopper of the parent,
        this process, listens to.
        """
        self.plan = plan
        self.target = target
        self.begin = begin
        self.parent, self.wake = os.getpid(), wake

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Run the target; a stop of ours counts as a normal return."""
        session = self.begin(self.plan)
        try:
            result = self.target(*args, **kwargs)
        except StopRun:
            session.close(None)
            self._tell_parent()
            return None
        except BaseException as error:
            session.close(error)
            raise
        session.close(None)
        if session.stopper.under_way:
            self._tell_parent()
        return result

    def _tell_parent(self) -> None:
        parent = multiprocessing.process.parent_process()
        if self.wake is not None and parent is not None and parent.pid == self.parent:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.parent, self.wake)


def any_alive() -> bool:
    """Say whether a process that may train still runs, without reaping it: that is its owner's."""
    for process in list(_training):
        pid = getattr(getattr(process, "_popen", None), "pid", None)
        try:
            # The state in /proc/PID/stat follows the name, which may hold anything.
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if state not in "ZX":
            return True
    return False


def install(plan: Plan, *, begin: Callable[[Plan], Session], wake: int | None = None) -> None:
    """Wrap the targets of processes made from now on."""
    if _replaced.entries:
        return

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            target = getattr(self, "_target", None)
            if target is not None and _may_train(target):
                self._target = ChildTarget(plan, target, begin, wake)
                _training.add(self)

        return init

    _replaced.put(multiprocessing.process.BaseProcess, "__init__", make)


def uninstall() -> None:
    """Take the wrapper off again."""
    _replaced.undo()


def _may_train(target: Callable[..., object]) -> bool:
    if isinstance(target, ChildTarget):
        return False
    module = str(getattr(target, "__module__", "") or "")
    return not f"{module}.".startswith(NOT_TRAINING)
