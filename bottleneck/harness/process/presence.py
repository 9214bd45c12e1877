"""Which agent watches this process, and that a fork does not take it along.

In: agents whose hooks go in or come out. Out: the one that watches now, if any.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .agent import Agent

__all__ = ["active", "kept_in_forks", "register", "unregister"]

_watching: list[weakref.ref[Agent]] = []
_kept = False
"""A fork takes the agent along."""


def active() -> Agent | None:
    """Return the agent that watches this process, if there is one."""
    return _watching[-1]() if _watching else None


def register(agent: Agent) -> None:
    """The hooks of this agent are about to go in."""
    _watching.append(weakref.ref(agent))
    # A forked data-loader worker has its parent's thread identity; it must not cut steps.
    os.register_at_fork(after_in_child=_in_child(weakref.ref(agent)))


def unregister(agent: Agent) -> None:
    """Its hooks are out again."""
    _watching[:] = [watching for watching in _watching if watching() not in (None, agent)]


@contextlib.contextmanager
def kept_in_forks() -> Iterator[None]:
    """Fork in here: the agent watches the copy as well."""
    global _kept  # noqa: PLW0603 - what is registered for forks cannot be taken back
    _kept = True
    try:
        yield
    finally:
        _kept = False


def _in_child(agent: weakref.ref[Agent]) -> Callable[[], None]:
    """Return what a forked child does with its parent's agent; a weak one, as it cannot be removed."""

    def forked() -> None:
        watching = agent()
        # An error here would be printed to the child's stderr.
        with contextlib.suppress(Exception):
            if watching is not None and not _kept:
                watching.forked()

    return forked
