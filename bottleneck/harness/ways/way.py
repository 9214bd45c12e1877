"""What a call of torch's functions is, and what another way to its result is.

In: calls as they are made. Out: `Call`, `Instead`, and the ways by the functions that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..lines.functions import tensors_of


def _filled(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return a value with its tensors, in order, replaced."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if type(value) in (list, tuple):
        return type(value)(_filled(each, tensors) for each in value)
    if type(value) is dict:
        return {name: _filled(each, tensors) for name, each in value.items()}
    return value


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The call before at the same place of the script, in the same step."""

    count: int
    """Calls with arguments of these sizes that the place makes in a step."""
    together: int
    """Of the place's calls, how many in a row need none of each other: the median."""
    given: tuple[Callable[[], torch.Tensor | None], ...]
    """Its tensors, as far as they are still held."""
    needs: Callable[[torch.Tensor], bool]
    """Whether a tensor is made from what that call has made, or may be."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of one of torch's functions."""

    function: Callable[..., Any]
    name: str
    """As modes see it: "linalg_inv" of `torch.linalg.inv`, "matmul" of `a @ b`."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    stays: Callable[[torch.Tensor], bool] = lambda _: False
    """Whether a tensor was there a step before, with the same numbers."""
    before: Round | None = None

    def given(self, place: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place, or by its name."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors that it is given, in order."""
        return tuple(tensors_of((self.args, self.kwargs)))

    def on(self, *tensors: torch.Tensor) -> Any:
        """Make it again, on other tensors."""
        left = iter(tensors)
        return self.function(*_filled(self.args, left), **_filled(self.kwargs, left))


TIMES_LARGER = 8
"""Than what ways are given: results, gradients and what is between, of both."""
Made = Callable[[Any], "Call | None"]
"""Tells what call has made a tensor; None for what is used by others, too, or not known."""


def same(own: Any, other: Any) -> bool:
    """Return whether two results are the same, but for rounding."""
    pairs = list(zip(tensors_of(own), tensors_of(other), strict=True))
    return bool(pairs) and all(_close(*pair) for pair in pairs)


def _close(own: torch.Tensor, other: torch.Tensor) -> bool:
    if own.shape != other.shape or own.is_complex() != other.is_complex():
        return False
    if not own.numel():
        return True
    if not (own.is_floating_point() or own.is_complex()):
        return bool((own == other).all())
    if own.is_complex():
        own, other = torch.view_as_real(own), torch.view_as_real(other)
    rounding = max(_precision(each) for each in (own, other)) ** 0.5
    own, other = own.detach().double(), other.detach().double()
    largest = float(own.abs().amax())
    return float((own - other).abs().amax()) <= float(rounding * max(largest, 1e-30))


def _precision(x: torch.Tensor) -> float:
    """Return the step between numbers near one; on a GPU products of float32 may be made in TF32."""
    known = float(torch.finfo(x.dtype).eps)
    return max(known, _TF32) if x.device.type == "cuda" and x.dtype is torch.float32 else known


_TF32 = 2.0**-10


@dataclass(frozen=True, slots=True)
class Instead:
    """The same result of the same tensors, as the script has it made and in other ways."""

    inputs: tuple[torch.Tensor, ...]
    own: Callable[..., Any]
    others: tuple[Callable[..., Any], ...]
    """Each is called with the inputs."""
    after: tuple[Call, ...] = ()
    """Calls before this one that the other way makes needless."""
    alike: Callable[[Any, Any], bool] = same
    calls: int = 1
    """How many calls of the script either way stands for."""
    rounds: int = 1
    """Of so many that one call of the other way could stand for: the host hands them over at once."""


def in_place_of(call: Call, *others: Callable[..., Any], alike: Callable[[Any, Any], bool] = same) -> Instead:
    """Return other ways for one call, each a function of the tensors that it is given."""
    return Instead(call.tensors(), call.on, others, alike=alike)


class Way:
    """Another way to what some functions compute; subclasses register by `functions`."""

    callee: ClassVar[str] = ""
    """What fixes and findings know it by."""
    shown: ClassVar[str] = ""
    """The calls, as a reader knows them."""
    functions: ClassVar[tuple[str, ...]] = ()
    """Names of those that it stands for, the last call of a chain."""
    follows: ClassVar[tuple[str, ...]] = ()
    """Names of those that may come before in the chain."""
    stands_in: ClassVar[bool] = True
    """It gives all that the call gives, so that a program can go on with it."""
    in_loop: ClassVar[bool] = False
    """It is about the loop that the call is made in."""

    def __init_subclass__(cls) -> None:
        way = cls()
        for name in cls.functions:
            WAYS.setdefault(name, []).append(way)
        FOLLOWED.update(cls.follows)

    def instead(self, call: Call, made: Made) -> Instead | None:
        """Return the other way for a call, or None where there is none."""
        raise NotImplementedError

    def forbids(self, call: Call) -> bool:
        """Return whether a call rules out the other way for all calls at its place."""
        return False


WAYS: dict[str, list[Way]] = {}
"""By the names of functions."""
FOLLOWED: set[str] = set()


def once(x: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor in which what is repeated, by broadcasting, stands once."""
    return x[tuple(slice(0, 1) if step == 0 else slice(None) for step in x.stride())]


def whole_of(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor that one is a view of, which may be made anew in each step; else itself."""
    return x if x._base is None else x._base


def is_plain(*values: Any) -> bool:
    """Return whether they are tensors of numbers as torch itself makes them."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    return all(type(each) in kinds and each.layout is torch.strided for each in values)


def is_real(*values: Any) -> bool:
    """Return whether they are plain tensors of floating-point numbers, all of one type."""
    return is_plain(*values) and all(
        each.is_floating_point() and each.dtype is values[0].dtype for each in values
    )
