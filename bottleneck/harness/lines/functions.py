"""The calls of torch's functions, each with the frame that makes it.

In: nothing. Out: a mode that hands over each call, and a way to make it as if nobody had looked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode, handle_torch_function

from .. import torch_private
from ..events.replacing import Replacements
from .sites import line_of

_COMPUTED: Final = ("T", "mT", "H", "mH", "real", "imag")
"""Properties that are values of their own."""


TELLS = {
    "__len__", "__set__", "data_ptr", "dim", "element_size", "get_device", "is_complex", "is_contiguous",
    "is_floating_point", "ndimension", "nelement", "numel", "size", "storage_offset", "stride",
}  # fmt: skip
"""Functions of tensors that say what these are, and compute nothing."""


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a value that is one, or lists, tuples and dicts of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_of(each)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))


def read_by(name: str, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors whose numbers a function of this name reads; of others it takes the shape."""
    if name in TELLS or name.endswith("_like") or (name.startswith("new_") and name != "new_tensor"):
        return iter(())
    return tensors_of(args[:1] if name.endswith("_as") else (args, kwargs))


def property_of(getter: Any) -> str:
    """Return the property of tensors that a getter or setter belongs to; empty for none."""
    return getattr(getattr(getter, "__self__", None), "__name__", "")


# Told from the script's frames by its first name (`runner.strip_frames`).
_CALL: Final = (lambda _bottleneck_calls, args, kwargs: _bottleneck_calls(*args, **kwargs)).__code__


@cache
def _call_at(file: str, line: int, name: str) -> CodeType:
    return _CALL.replace(co_filename=file, co_firstlineno=line, co_name=name)


def call_from(caller: FrameType, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function so that a warning of its is one of the caller's line.

    There Python knows whether it has been shown before.
    """
    code = _call_at(caller.f_code.co_filename, line_of(caller), caller.f_code.co_name)
    return FunctionType(code, caller.f_globals)(function, args, kwargs)


_OURS: Final = _CALL.co_filename
_GO_BACK = ((torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.autograd, "grad"))
"""Functions in which a step may end. The mode handles them as others, and is there again after each."""


class Functions(TorchFunctionMode):
    """While it is on, `see(caller, function, args, kwargs)` calls torch's functions, by `call_from`.

    Most properties are none.
    """

    def __init__(self, see: Callable[[FrameType, Callable[..., Any], Any, Any], Any]) -> None:
        super().__init__()
        self._see, self._backward = see, Replacements()
        self._is_wanted = True

    def turn_on(self) -> bool:
        """Look at the calls of this thread from now on; return whether it can."""
        self._is_wanted = True
        if not torch_private.enter_first(self):
            return False
        for owner, name in _GO_BACK:
            self._backward.put(owner, name, self._make_backward)
        return True

    def turn_off(self) -> None:
        """Look no more; inside a backward, which the mode handles, it goes when that is done."""
        self._is_wanted = False
        self._backward.undo()
        torch_private.leave(self)

    def _make_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def go_back(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            finally:
                if not self._is_wanted:
                    torch_private.leave(self)

        return go_back

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, or let it be called."""
        kwargs = kwargs or {}
        # Dynamo looks into it while it compiles what is called inside.
        reads = getattr(func, "__name__", "") == "__get__" and property_of(func) not in _COMPUTED
        if reads or not self._is_wanted or torch.compiler.is_compiling():
            return func(*args, **kwargs)
        caller: FrameType | None = sys._getframe(1)
        if caller is not None and caller.f_code is handle_torch_function.__code__:
            # From a function that is written in Python, which asks for modes and is called again.
            caller = caller.f_back and caller.f_back.f_back
        while caller is not None and caller.f_code.co_filename == _OURS:
            caller = caller.f_back  # from what stands in for a backward
        return self._see(caller or sys._getframe(1), func, args, kwargs)
