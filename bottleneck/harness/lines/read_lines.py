"""Which line of the user's program reads a tensor's value, written into the trace.

In: start and stop around a recording. Out: a range "read at FILE(LINE): FUNCTION" around each
`.item()`, `float(tensor)`, `if tensor:`, `.tolist()`, `.cpu()`, `.numpy()` and the like, whoever calls
it: of a read inside a library the range names the user's line that led there.

Recorded stacks would cost twice the step and name the function's first line, not the read's. These
methods are replaced for the length of one recording only, and asked for: a gate must say which line
is new. Dynamo traces them by name, never through the replaced attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import torch_private
from ..events.replacing import Replacements
from .sites import is_library, line_of, user_frame, user_frame_of

READ_LABEL = "read at "
"""Begins the range's name; timeline/counts/syncs.py reads it."""
_READS = (
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy", "nonzero",
)  # fmt: skip

_is_compiling = torch.compiler.is_compiling


class ReadLines:
    """The replaced methods of torch.Tensor."""

    def __init__(self) -> None:
        self._replaced = Replacements()

    def start(self) -> None:
        """Replace the methods; those that this torch lacks stay away."""
        if self._replaced.entries:
            return
        # What a wrapper calls, too: after a graph break dynamo looks at every frame that is entered.
        for function in (user_frame, user_frame_of, is_library):
            torch_private.mark_skip(function.__code__)
        for name in _READS:
            self._replaced.put(torch.Tensor, name, _labelled)

    def stop(self) -> None:
        """Put every method back as it was."""
        self._replaced.undo()


def _labelled(original: Callable[..., Any]) -> Callable[..., Any]:
    range_of = torch_private.record_function

    def read(*args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(*args, **kwargs)
        frame = user_frame(2)
        if frame is None:
            return original(*args, **kwargs)
        code = frame.f_code
        with range_of(f"{READ_LABEL}{code.co_filename}({line_of(frame)}): {code.co_name}"):
            return original(*args, **kwargs)

    return read
