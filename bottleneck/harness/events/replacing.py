"""Replacing attributes of torch and of Python by wrappers of ours, and putting them back.

In: owner, name, and a function that makes the wrapper from the original; handles of torch's own hooks. Out:
nothing; `undo` restores, on the object where it was replaced, whatever is still ours. What somebody has
replaced since stays. Wrappers are neutral to torch.compile: dynamo skips their code. TorchScript takes them
for the function of torch that they stand for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, NamedTuple


class Replaced(NamedTuple):
    """One attribute."""

    owner: Any
    name: str
    original: Any
    ours: Any
    own: bool
    """It stood on the owner itself; otherwise the owner inherits it."""


class Replacements:
    """A set of replaced attributes."""

    def __init__(self) -> None:
        self.entries: list[Replaced] = []
        self._hooks: list[Any] = []

    def put(
        self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]], *, skipped: bool = True
    ) -> bool:
        """Replace `owner.name` by `make(original)`; return whether there was anything to replace.

        `skipped`: dynamo does not go through it.
        """
        original = vars(owner).get(name, getattr(owner, name, None))
        if original is None:
            return False
        plain = make(original)
        if skipped:
            _keep_from_dynamo(plain.__code__)
        self.set(owner, name, functools.wraps(original)(plain))
        return True

    def put_disabled(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace a function that torch keeps dynamo out of (`torch._disable_dynamo`).

        Where several wrappers lie around one another, each takes this layer off and puts it on again:
        what is beneath it must be the next wrapper, not torch's function.
        """
        from .. import torch_private

        inner = torch_private.undisabled(vars(owner)[name])
        plain = make(inner)
        _keep_from_dynamo(plain.__code__)
        # Without torch's attributes: among them is its own cached way around dynamo.
        self.set(
            owner, name, torch_private.disable_dynamo(functools.update_wrapper(plain, inner, updated=()))
        )

    def set(self, owner: Any, name: str, ours: Any) -> None:
        """Set the attribute to `ours` as it is, and remember how to undo it."""
        own = name in vars(owner)
        original = vars(owner)[name] if own else getattr(owner, name)
        setattr(owner, name, ours)
        names = _script_names()
        if id(original) in names:
            names[id(ours)] = names[id(original)]
        self.entries.append(Replaced(owner, name, original, ours, own))

    def hook(self, handle: Any) -> None:
        """Take a hook that torch has just registered, to be removed by `undo`."""
        self._hooks.append(handle)

    def undo(self) -> None:
        """Put everything back that is still ours, the last first."""
        while self._hooks:
            self._hooks.pop().remove()
        while self.entries:
            entry = self.entries.pop()
            _script_names().pop(id(entry.ours), None)
            if vars(entry.owner).get(entry.name) is not entry.ours:
                continue
            if entry.own:
                setattr(entry.owner, entry.name, entry.original)
            else:
                delattr(entry.owner, entry.name)


def exchange(owner: Any, name: str, before: Any, after: Any) -> None:
    """Set a replaced attribute to `after` where it is `before`; to be put back before it is undone."""
    if vars(owner).get(name) is before:
        setattr(owner, name, after)


def _script_names() -> dict[int, str]:
    if "torch" not in sys.modules:
        return {}
    from .. import torch_private

    return torch_private.script_names()


def _keep_from_dynamo(code: CodeType) -> None:
    """Have dynamo skip this code; without torch there is no dynamo."""
    if "torch" in sys.modules:
        from .. import torch_private

        torch_private.mark_skip(code)
