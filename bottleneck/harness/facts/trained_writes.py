"""The user's lines that change what is trained, or its gradients: no step can do without them.

In: the calls of torch's functions of a step, and the optimizers. Out: the lines that call what writes into a
parameter that an optimizer has, or into its gradient: clipping and averaging by hand, limits of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from ...model.run import SourceSite
from ..lines.functions import property_of, tensors_of
from ..lines.sites import is_library, line_of

_WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
"""Names of functions, beside those that end with one underscore."""
_WRITES_NOTHING = ("requires_grad_", "detach_", "share_memory_")
_ATTRIBUTES = ("grad", "data")


class TrainedWrites:
    """On while steps are looked at."""

    def __init__(self, optimizers: Callable[[], Iterable[Any]]) -> None:
        self._optimizers = optimizers
        self._at: dict[int, Any] | None = None
        """Parameters, by where they and their gradients lie; None: not looked up since the last backward."""
        self._lines: set[tuple[CodeType, int]] = set()

    def note(self, caller: FrameType, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """A line calls a function, or sets an attribute of a tensor."""
        name = getattr(function, "__name__", "")
        sets = name == "__set__" and property_of(function) in _ATTRIBUTES
        if not (sets or name in _WRITES or (name.endswith("_") and not name.endswith("__"))):
            return
        if name in _WRITES_NOTHING or is_library(caller.f_code.co_filename):
            return
        address = _memory_of(next(tensors_of(args[:1]), None))
        parameter = self._known().get(address)
        # The memory of a gradient that was cleared is another tensor's.
        if parameter is not None and address in (_memory_of(parameter), _memory_of(parameter.grad)):
            self._lines.add((caller.f_code, line_of(caller)))

    def gradients_made(self) -> None:
        """A backward begins: gradients lie elsewhere after it."""
        self._at = None

    def found(self) -> list[SourceSite]:
        """Return the lines."""
        sites = {(code.co_filename, line, code.co_name) for code, line in self._lines}
        return [SourceSite(file=file, line=line, function=name) for file, line, name in sorted(sites)]

    def forget(self) -> None:
        """Let go of what is known of the script."""
        self._at, self._lines = None, set()

    def _known(self) -> dict[int, Any]:
        if self._at is None:
            groups = (group for optimizer in self._optimizers() for group in optimizer.param_groups)
            trained = [parameter for group in groups for parameter in group["params"]]
            self._at = {_memory_of(tensor): p for p in trained for tensor in (p, p.grad)}
            self._at.pop(0, None)
        return self._at


def _memory_of(tensor: Any) -> int:
    """Return where a tensor's memory begins, which its views share; 0 for none, or without any of its own."""
    try:
        address: int = tensor.untyped_storage().data_ptr()
    except Exception:  # sparse, or a wrapper around others
        return 0
    return address
