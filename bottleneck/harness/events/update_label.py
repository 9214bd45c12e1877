"""The optimizer step that is under way: its label in a trace, and whether an exception has left it.

In: begin and end of optimizer steps, and events that cannot lie inside of one. Out: ranges named
"optimizer" in whatever profile is on, ours or the script's own; and whether another profile may begin. torch
holds a range of its own open as long as an optimizer steps: if that is of one profile and ends while another
one is on, torch writes into what it has freed, and the program dies.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch.autograd import profiler as autograd_profiler

from .. import torch_private

_recorded = False
"""The optimizer step that is under way began while a profile was on."""


def holds_range() -> bool:
    """Return whether torch holds a range of a profile open: no other profile may begin until it is closed."""
    return _recorded


class UpdateLabel:
    """The ranges that are open; one per process."""

    def __init__(self) -> None:
        self._ranges: list[Any] = []
        self.left()

    def begin(self) -> None:
        """An outermost optimizer step begins."""
        global _recorded  # noqa: PLW0603 - the step is the process's
        _recorded = bool(autograd_profiler._is_profiler_enabled)
        self._label()

    def _label(self) -> None:
        if autograd_profiler._is_profiler_enabled:
            label = torch_private.record_function("optimizer")
            label.__enter__()
            self._ranges.append(label)

    def go_on(self) -> None:
        """It goes on after a call of its closure; if a step ended before that, so did the label."""
        if not self._ranges:
            self._label()

    def end(self) -> None:
        """It has ended."""
        self.left()
        if self._ranges:
            self._ranges.pop().__exit__(None, None, None)

    def left(self) -> None:
        """It is over, by an exception or not."""
        global _recorded  # noqa: PLW0603 - the step is the process's
        _recorded = False

    def close(self) -> None:
        """Something has left it, or a step ends inside: nothing that was under way has a label any more."""
        while self._ranges:
            self._ranges.pop().__exit__(None, None, None)


def updates_around(frame: FrameType | None) -> int:
    """Return how many calls of optimizer steps, and of GradScalers, are among the callers of this frame."""
    found = 0
    while frame is not None:
        code = frame.f_code
        is_step = code.co_name == "wrapper" and "optim" in code.co_filename
        found += is_step or code.co_filename.endswith("grad_scaler.py")
        frame = frame.f_back
    return found
