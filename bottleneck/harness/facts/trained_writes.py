"""The user's lines that change what is trained, or its gradients: clipping by hand, limits of weights.

In: the calls of torch's functions of a step, and the optimizers. Out: the lines that lead to what writes into
a parameter that an optimizer has, or into its gradient; and those that read one in a function which writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from ...model.run import SourceSite
from ..lines.chains import leading_to
from ..lines.functions import property_of, tensors_of
from ..lines.sites import line_of

_WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")
"""Names of functions, beside those that end with one underscore."""
_WRITES_NOTHING = ("requires_grad_", "detach_", "share_memory_")
_ATTRIBUTES = ("grad", "data")
_MOST_TENSORS = 4
"""Of a call, that are looked at: in a list of gradients all are alike."""

_Line = tuple[CodeType, int]


class TrainedWrites:
    """On while steps are looked at."""

    def __init__(self, optimizers: Callable[[], Iterable[Any]]) -> None:
        self._optimizers = optimizers
        self._at: dict[int, Any] | None = None
        """Parameters, by where they and their gradients lie; None: not looked up since the last backward."""
        self._lines: set[_Line] = set()
        """That lead to a write."""
        self._written: set[CodeType] = set()
        """Functions with a line that calls what writes."""
        self._read: set[_Line] = set()

    def note(self, caller: FrameType, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """A line calls a function, or sets an attribute of a tensor."""
        # What a script's own kind of tensor does when it is asked is not to happen.
        with torch._C.DisableTorchFunctionSubclass():
            writes = self._writes(function, args, kwargs)
            if not writes and not any(map(self._is_trained, islice(tensors_of(args), _MOST_TENSORS))):
                return
        users, _ = leading_to(caller)
        # What a package writes may be an optimizer's, and what it reads a checkpoint.
        own = _function(users) if users[:1] == [caller] else []
        if writes:
            self._lines.update((frame.f_code, line_of(frame)) for frame in users)
            self._written.update(frame.f_code for frame in own)
        else:
            self._read.update((frame.f_code, line_of(frame)) for frame in own)

    def gradients_made(self) -> None:
        """A backward begins: gradients lie elsewhere after it."""
        self._at = None

    def found(self) -> list[SourceSite]:
        """Return the lines."""
        lines = self._lines | {line for line in self._read if line[0] in self._written}
        sites = {(code.co_filename, line, code.co_name) for code, line in lines}
        return [SourceSite(file=file, line=line, function=name) for file, line, name in sorted(sites)]

    def forget(self) -> None:
        """Let go of what is known of the script."""
        self._at, self._lines, self._written, self._read = None, set(), set(), set()

    def _writes(self, function: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        name = getattr(function, "__name__", "")
        sets = name == "__set__" and property_of(function) in _ATTRIBUTES
        in_place = sets or name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        into = args[:1] if in_place and name not in _WRITES_NOTHING else kwargs.get("out", ())
        return any(map(self._is_trained, islice(tensors_of(into), _MOST_TENSORS)))

    def _is_trained(self, tensor: Any) -> bool:
        key = _key(tensor)
        parameter = self._known().get(key)
        # The memory of a gradient that was cleared is another tensor's.
        return parameter is not None and key in (_key(parameter), _key(parameter.grad))

    def _known(self) -> dict[int, Any]:
        if self._at is None:
            groups = (group for optimizer in self._optimizers() for group in optimizer.param_groups)
            trained = [parameter for group in groups for parameter in group["params"]]
            self._at = {_key(tensor): p for p in trained for tensor in (p, p.grad) if tensor is not None}
        return self._at


def _function(users: Sequence[FrameType]) -> Sequence[FrameType]:
    """Return the frames of the innermost function, with those of a comprehension or a lambda in it."""
    named = (at for at, frame in enumerate(users, 1) if not frame.f_code.co_name.startswith("<"))
    return users[: next(named, len(users))]


def _key(tensor: Any) -> int:
    """Return where a tensor's memory begins, which its views share; its identity where it has none."""
    try:
        address: int = tensor.untyped_storage().data_ptr()
    except Exception:  # sparse, or a wrapper around others
        address = 0
    return address or id(tensor)
