"""Which observer watches this process, and that a fork does not take it along.

In: observers whose hooks go in or come out. Out: the one that watches now, if any.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .observer import StepObserver

_watching: list[weakref.ref[StepObserver[Any]]] = []
_kept = False
"""A fork takes the observer along."""


def active() -> StepObserver[Any] | None:
    """Return the observer that watches this process, if there is one."""
    return _watching[-1]() if _watching else None


def register(observer: StepObserver[Any]) -> None:
    """The hooks of this observer are about to go in."""
    _watching.append(weakref.ref(observer))
    # A forked data-loader worker has its parent's thread identity; it must not cut steps.
    os.register_at_fork(after_in_child=_in_child(weakref.ref(observer)))


def unregister(observer: StepObserver[Any]) -> None:
    """Its hooks are out again."""
    _watching[:] = [watching for watching in _watching if watching() not in (None, observer)]


@contextlib.contextmanager
def kept_in_forks() -> Iterator[None]:
    """Fork in here: it watches the copy as well."""
    global _kept  # noqa: PLW0603 - what is registered for forks cannot be taken back
    _kept = True
    try:
        yield
    finally:
        _kept = False


def _in_child(observer: weakref.ref[StepObserver[Any]]) -> Callable[[], None]:
    """Return what a forked child does with its parent's observer; a weak one, as it cannot be removed."""

    def forked() -> None:
        watching = observer()
        # An error here would be printed to the child's stderr.
        with contextlib.suppress(Exception):
            if watching is not None and not _kept:
                watching.forked()

    return forked
