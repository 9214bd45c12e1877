"""Replacing an attribute of torch by a wrapper of ours, neutral to torch.compile, and putting it back.

In: owner, name, and a function that makes the wrapper from the original. Out: nothing; `undo`
restores, on the object where it was replaced, whatever is still ours.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ... import torch_private
from ...events.replacing import Replaced, put_back

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Replacements"]


class Replacements:
    """A set of replaced attributes."""

    def __init__(self) -> None:
        self._entries: list[Replaced] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> bool:
        """Replace `owner.name` by `make(original)`; a name that this torch lacks is left out.

        Returns:
            Whether there was anything to replace.
        """
        own = name in vars(owner)
        original = vars(owner)[name] if own else getattr(owner, name, None)
        if original is None:
            return False
        plain = make(original)
        torch_private.mark_skip(plain.__code__)
        return self.set(owner, name, functools.wraps(original)(plain), original=original, own=own)

    def put_disabled(self, owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> bool:
        """Replace a function that torch keeps dynamo out of (`torch._disable_dynamo`).

        The harness's own hook takes one such layer off and puts it on again: what is beneath it
        must be our wrapper, not torch's function.
        """
        original = vars(owner)[name]
        inner = torch_private.undisabled(original)
        plain = make(inner)
        torch_private.mark_skip(plain.__code__)
        # Without torch's attributes: among them is its own cached way around dynamo.
        ours = torch_private.disable_dynamo(functools.update_wrapper(plain, inner, updated=()))
        return self.set(owner, name, ours, original=original, own=True)

    def set(self, owner: Any, name: str, ours: Any, *, original: Any, own: bool) -> bool:
        """Set the attribute and remember how to undo it."""
        setattr(owner, name, ours)
        self._entries.append(Replaced(owner, name, original, ours, own))
        return True

    def undo(self) -> None:
        """Put everything back that is still ours, in reverse order."""
        put_back(self._entries)
