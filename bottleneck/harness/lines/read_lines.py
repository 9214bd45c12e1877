"""Which line of the user's program reads a tensor's value, written into the trace.

In: start and stop around a recording. Out: a range "read at FILE(LINE): FUNCTION" around each
`.item()`, `float(tensor)`, `if tensor:`, `.tolist()`, `.cpu()`, `.numpy()` and the like, whoever calls
it: of a read inside a library the range names the user's line that led there.

Recorded stacks would cost twice the step and name the function's first line, not the read's. These
methods are replaced for the length of one recording only, and asked for: a gate must say which line
is new. Dynamo traces them by name, never through the replaced attribute.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from .. import torch_private
from ..torch_private import mark_skip
from .sites import is_library, user_frame, user_frame_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["READ_LABEL", "ReadLines"]

READ_LABEL = "read at "
"""Begins the range's name; timeline/counts/syncs.py reads it."""
_READS = (
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "nonzero",
)  # fmt: skip

_is_compiling = torch.compiler.is_compiling


class ReadLines:
    """The replaced methods of torch.Tensor."""

    def __init__(self) -> None:
        self._own: dict[str, Any] = {}
        """Names that torch.Tensor itself defines -> what it had; the others are inherited."""
        self._replaced: list[str] = []

    def start(self) -> None:
        """Replace the methods; those that this torch lacks stay away."""
        if self._replaced:
            return
        for name in _READS:
            original = getattr(torch.Tensor, name, None)
            if original is None:
                continue
            if name in vars(torch.Tensor):
                self._own[name] = vars(torch.Tensor)[name]
            setattr(torch.Tensor, name, _labelled(original))
            self._replaced.append(name)

    def stop(self) -> None:
        """Put every method back as it was."""
        for name in self._replaced:
            if name in self._own:
                setattr(torch.Tensor, name, self._own[name])
            else:
                delattr(torch.Tensor, name)
        self._replaced.clear()
        self._own.clear()


def _labelled(original: Callable[..., Any]) -> Callable[..., Any]:
    range_of = torch_private.record_function

    def read(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(*args, **kwargs)
        frame = user_frame(2)
        if frame is None:
            return original(*args, **kwargs)
        code = frame.f_code
        with range_of(f"{READ_LABEL}{code.co_filename}({frame.f_lineno}): {code.co_name}"):
            return original(*args, **kwargs)

    # What it calls, too: after a graph break dynamo looks at every frame that is entered.
    for function in (read, user_frame, user_frame_of, is_library):
        mark_skip(function.__code__)
    return functools.wraps(original)(read)
