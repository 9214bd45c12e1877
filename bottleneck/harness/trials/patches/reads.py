"""Patch of reads from the device: numbers are fetched every N steps, not in every step.

In: `Tensor.item` and `float(tensor)` of floating-point tensors on a device, on the user's lines. Out: the
value that the line read last, without waiting. A loop that waits for such a number to change gets a true one
before long. Where it decides about the training, the losses show it.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as optim_module

from ... import torch_private
from ...lines.sites import is_library
from .base import NotSwitchable, Patch, plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

    from .base import Program

    _Place = tuple[CodeType, Any]

STEPS_BETWEEN = 50
STALE_AT_MOST = 200
"""Reads at one line in a row."""
_is_compiling = torch.compiler.is_compiling
_FORMAT = torch.Tensor.__format__.__code__
"""`f"{loss}"` reads through it."""


@dataclass(slots=True)
class _Line:
    """What a line read last."""

    value: Any
    step: int
    stale: int = 0


class RareReads(Patch):
    """Between the user's lines and the numbers that they read."""

    fix = "FX501"
    live = True
    settles = 2
    nothing_to_do = "no number was read from the device during training"

    def install(self) -> None:
        self._every = int(self.option("every", STEPS_BETWEEN))
        self._lines: dict[_Place, _Line] = {}
        self._places: dict[tuple[CodeType, int], _Place] = {}
        self._step = 0
        self._training = False
        self.replaced.hook(optim_module.register_optimizer_step_post_hook(self._stepped))
        for name in ("item", "__float__"):
            self.replaced.put(torch.Tensor, name, self._make_read)

    def put_in(self, program: Program) -> None:
        if torch_private.device_kind() == "cpu":
            raise NotSwitchable("on a CPU nothing waits for a read")
        super().put_in(program)

    def training_begins(self) -> None:
        """What is read before is read once."""
        self._training = True

    def _stepped(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not _is_compiling():
            self._step += 1

    def _make_read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def read(tensor: Any, *args: Any) -> Any:
            if _is_compiling() or not self._training or not is_waited_for(tensor):
                return original(tensor, *args)
            caller: FrameType | None = sys._getframe(1)
            if caller is not None and caller.f_code is _FORMAT:
                caller = caller.f_back
            # What torch itself reads (a gradient scaler, an optimizer) is no figure that somebody looks at.
            if caller is None or is_library(caller.f_code.co_filename):
                return original(tensor, *args)
            place = self._place(caller)
            line = self._lines.get(place)
            if line is None or self._step - line.step >= self._every or line.stale >= STALE_AT_MOST:
                value = original(tensor, *args)
                self._lines[place] = _Line(value, self._step)
                return value
            line.stale += 1
            self.acted_here(every=self._every)
            return line.value

        return read

    def _place(self, frame: FrameType) -> _Place:
        """Return which call of the source a frame is at: one call may be several instructions."""
        code, last = frame.f_code, frame.f_lasti
        if (place := self._places.get((code, last))) is None:
            at: Any = frame.f_lineno
            if sys.version_info >= (3, 11):
                at = next(itertools.islice(code.co_positions(), last // 2, None), at)
            place = self._places[code, last] = (code, at)
        return place

    def evidence(self) -> str:
        return f"{plural(self.count, 'read')} left out, one every {plural(self._every, 'step')} made"


def is_waited_for(tensor: Any) -> bool:
    """Return whether reading the tensor waits for a device, and it holds a figure, not a size or an index."""
    return bool(tensor.device.type != "cpu" and tensor.is_floating_point())
