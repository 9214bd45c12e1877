"""Processes that the script itself starts (`mp.spawn`, `Process(target=train)`).

In: a plan. Out: each such process that trains gets a session of its own, beside its parent's.

`BaseProcess.__init__` wraps the target in a class that pickles by reference to this module, so it
works under fork, spawn and forkserver. Workers of a DataLoader, of pools and of multiprocessing's
own machinery are left alone.
"""

from __future__ import annotations

import functools
import multiprocessing.process
from typing import TYPE_CHECKING, Any

from .stopping import StopRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from .plan import Plan

__all__ = ["ChildTarget", "install", "uninstall"]

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

_originals: list[Callable[..., None]] = []
"""`BaseProcess.__init__` as it was, while it is wrapped."""


class ChildTarget:
    """Stands in for a process's target: runs it under a session, with the same result."""

    def __init__(self, plan: Plan, target: Callable[..., object]) -> None:
        self.plan = plan
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """Run the target; a stop of ours counts as a normal return."""
        from . import session as sessions

        inherited = sessions.current()
        if inherited is not None:
            # Forked: the hooks in place count the parent's steps and write the parent's folder.
            inherited.abandon()
        session = sessions.Session(self.plan, child=True)
        session.arm()
        try:
            result = self.target(*args, **kwargs)
        except StopRun:
            session.close(None)
            return None
        except BaseException as error:
            session.close(error)
            raise
        session.close(None)
        return result


def install(plan: Plan) -> None:
    """Wrap the targets of processes made from now on."""
    if _originals:
        return
    original: Callable[..., None] = multiprocessing.process.BaseProcess.__init__
    _originals.append(original)

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        target = getattr(self, "_target", None)
        if target is not None and _may_train(target):
            self._target = ChildTarget(plan, target)

    multiprocessing.process.BaseProcess.__init__ = init  # type: ignore[method-assign]


def uninstall() -> None:
    """Take the wrapper off again."""
    if _originals:
        multiprocessing.process.BaseProcess.__init__ = _originals.pop()  # type: ignore[method-assign]


def _may_train(target: Callable[..., object]) -> bool:
    if isinstance(target, ChildTarget):
        return False
    module = str(getattr(target, "__module__", "") or "")
    return not f"{module}.".startswith(NOT_TRAINING)
