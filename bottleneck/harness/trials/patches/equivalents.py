"""Patches that put a cheaper call in place of one that computes more than is asked of it.

In: functions of torch, and methods that do the same. Out: their results, made another way. What the other
way cannot do is left to the function itself.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

import torch
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from ...ways.timing import saved_as_usual, stands_in, timed
from ...ways.watch import WAYS
from ...ways.way import Call, Instead, Way
from .base import Patch


class OtherWay(Patch):
    """Some functions of torch are another one where that can do what they are asked."""

    live = True
    for_ranks = True
    is_guarded = True
    functions: tuple[tuple[Any, str], ...] = ()
    """Where each is found, and its name."""

    def install(self) -> None:
        for owner, name in self.functions:
            self.replaced.put(owner, name, functools.partial(self._make, name))

    def _make(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # What is called by the names of all its arguments stays as it is.
            other = self.instead_of(name, *args, **kwargs) if args else None
            if other is None:
                return original(*args, **kwargs)
            self.acted_here()
            return other()

        return call

    def instead_of(self, name: str, *args: Any, **kwargs: Any) -> Callable[[], Any] | None:  # noqa: ARG002
        """Return what to call in place of a call with these arguments; None for that call itself."""
        return self.instead(*args, **kwargs)

    def instead(self, *args: Any, **kwargs: Any) -> Callable[[], Any] | None:
        """Return the same where all of the functions do the same."""
        raise NotImplementedError


class RowsShortenedAtOnce(OtherWay):
    """The rows that an embedding with `max_norm` looks up are made shorter in one operation, each once."""

    fix = "FX332"
    says = ("rows made shorter in one operation in {}", "look-up")
    nothing_to_do = "no embedding with max_norm was looked up"
    functions = ((torch, "embedding_renorm_"),)

    def instead(
        self, weight: Any, indices: Any, max_norm: float, norm_type: float
    ) -> Callable[[], Any] | None:
        return functools.partial(_renorm, weight, indices, max_norm, norm_type)


@torch.no_grad()
def _renorm(weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    rows = indices.unique()
    return weight.index_copy_(0, rows, weight.index_select(0, rows).renorm(norm_type, 0, max_norm))


class KeptAsCsr(OtherWay):
    """A sparse matrix that is multiplied again is converted to CSR, once."""

    fix = "FX334"
    settles = 2
    says = ("the matrix as CSR in {}", "product")
    nothing_to_do = "each sparse matrix is made anew for its product: make it once, as CSR"
    functions = ((torch.sparse, "mm"), (torch, "mm"), (torch.Tensor, "__matmul__"))

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._seen: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def instead(self, a: Any, b: Any = None, *rest: Any, **named: Any) -> Callable[[], Any] | None:
        mine = type(a) is torch.Tensor and a.layout is torch.sparse_coo and not a.requires_grad
        if (
            not mine
            or a.dim() != 2
            or rest
            or named
            or type(b) is not torch.Tensor
            or b.layout is not torch.strided
        ):
            return None
        if a not in self._seen:
            self._seen[a] = None
            return None
        if self._seen[a] is None:
            with warnings.catch_warnings():
                # That this layout is a beta.
                warnings.simplefilter("ignore")
                self._seen[a] = a.to_sparse_csr()
        return functools.partial(torch.sparse.mm, self._seen[a], b)

    def close(self) -> None:
        self._seen.clear()


_UNKNOWN = -1
"""Which of the other ways is faster, before one was tried."""
_SIZES_TIMED = 8
"""Calls of more sizes than this go the way that most of these do: timing each would be the trial."""


class ByWay(Patch):
    """Calls of some functions are made in another way that is faster for their own arguments."""

    live = True
    for_ranks = True
    is_guarded = True
    callee: ClassVar[str] = ""
    """Of the ways."""
    says = ("made another way in {}", "call")
    nothing_to_do = "no call has another way that is faster with its arguments"

    def install(self) -> None:
        self._ways = {
            way for ways in WAYS.values() for way in ways if way.callee == self.callee and way.stands_in
        }
        self._which: dict[Hashable, int | None] = {}
        """By way, function and sizes: which of the other ways; None for the call itself. The first size may
        change from step to step, and counts by its power of two: each would be timed anew."""
        self._said: defaultdict[Way, list[int | None]] = defaultdict(list)
        """By way: the same of each size that was timed."""
        self._given: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        """What calls were given, with its version."""
        for name in sorted({name for way in self._ways for name in way.functions if name[-1] != "_"}):
            for owner, attribute in places_of(name):
                self.replaced.put(owner, attribute, functools.partial(self._make, name))

    def _make(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        ways = [way for way in WAYS[name] if way in self._ways]

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._busy or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self._busy = True  # what the other way calls is not made another way
            try:
                found = self._found_way(ways, Call(original, name, args, kwargs, self._stays))
                if found is None:
                    return original(*args, **kwargs)
                self.acted_here()
                return found()
            finally:
                self._busy = False

        return call

    def _stays(self, x: torch.Tensor) -> bool:
        before, self._given[x] = self._given.get(x), x._version
        return bool(before == x._version)

    def _found_way(self, ways: list[Way], call: Call) -> Callable[[], Any] | None:
        sizes = (
            call.name,
            *map(_like, call.tensors()),
            *(
                each
                for each in (*call.args[1:], *call.kwargs.values())
                if isinstance(each, (int, float, str))
            ),
        )
        for way in ways:
            which = self._which.get((way, sizes), _UNKNOWN)
            if which == _UNKNOWN and len(self._said[way]) >= _SIZES_TIMED:
                which = max(self._said[way], key=self._said[way].count)
            if which is None:
                continue
            try:
                with warnings.catch_warnings() if which == _UNKNOWN else contextlib.nullcontext():
                    if which == _UNKNOWN:
                        warnings.simplefilter("ignore")  # that a layout is a beta
                    instead = way.instead(call, lambda _: None)
                    if instead is not None and which == _UNKNOWN:
                        which = self._which[way, sizes] = self._chosen(instead)
                        self._said[way].append(which)
            except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError):
                self._which[way, sizes] = None  # given in another form than ways know
                continue
            if instead is not None and which is not None and which < len(instead.others):
                return functools.partial(instead.others[which], *instead.inputs)
        return None

    def _chosen(self, instead: Instead) -> int | None:
        # In other calls of the same functions none may be faster; the step is to tell of those that gain.
        with saved_as_usual():
            took = timed(instead)
            return took.way if took is not None and stands_in(instead, took.way) else None

    _busy = False


def _like(x: torch.Tensor) -> tuple[Hashable, ...]:
    """Return what tensors share for which the same way is the faster one."""
    return (len(x).bit_length() if x.dim() else 0, x.shape[1:], x.stride(), x.dtype)


_HOLDERS = {"linalg": torch.linalg, "fft": torch.fft, "special": torch.special}


def places_of(name: str) -> Iterator[tuple[Any, str]]:
    """Yield where a function is found by a program, by the name that modes know it by."""
    module, _, rest = name.partition("_")
    if module in _HOLDERS and hasattr(_HOLDERS[module], rest):
        yield _HOLDERS[module], rest
        return
    for owner in (torch, torch.Tensor, functional):
        if hasattr(owner, name):
            yield owner, name
    if name == "matmul":
        yield torch.Tensor, "__matmul__"


_MADE_ANOTHER_WAY = {
    "FX331": "torch.quantile",
    "FX333": "torch.unique",
    "FX335": "torch.argmax",
    "FX336": "torch.matmul",
    "FX337": "torch.cosine_similarity",
    "FX340": "torch.bmm",
    "FX355": "way:layout",
    "FX356": "way:decomposition",
    "FX359": "way:convolution",
    "FX360": "way:whole-rows",
    "FX361": "way:type",
    "FX362": "way:small-matrices",
    "FX363": "way:distances",
    "FX367": "way:frames",
    "FX372": "way:bilinear",
    "FX373": "way:zeros",
}
"""Fix -> the ways that it stands for."""
_SAYS = {
    "FX331": ("ranks selected, nothing sorted, in {}", "quantile"),
    "FX333": ("rows told apart by one number each in {}", "call"),
    "FX335": ("max or min of rows in {}", "argmax"),
    "FX336": ("multiplied as floats in {}", "product"),
    "FX337": ("one product for all pairs in {}", "call"),
    "FX340": ("multiplied and summed in {}", "call"),
}
for _fix, _callee in _MADE_ANOTHER_WAY.items():
    # Each registers itself.
    type(_fix, (ByWay,), {"fix": _fix, "callee": _callee, "says": _SAYS.get(_fix, ByWay.says)})


_PARTS_WRITTEN = "CopySlices"
"""Autograd's name for what a tensor is that was written into in parts."""


class PartsAtOnce(OtherWay):
    """`x[:, t]` is one of all that `unbind` gives: their gradient is one stack.

    A tensor that is written into, part by part, is left alone: after each write it would be taken apart anew,
    and what was taken before must see the write.
    """

    fix = "FX339"
    says = ("taken by one unbind in {}", "call")
    nothing_to_do = "no tensor that needs a gradient was taken apart by single numbers outside compiled code"
    functions = ((torch.Tensor, "__getitem__"),)

    def install(self) -> None:
        super().install()
        self._apart: dict[tuple[int, int], tuple[torch.Tensor, int, tuple[torch.Tensor, ...]]] = {}
        """By tensor and axis: the tensor, the version of it that was taken apart, and its parts."""
        self.put_at_backward(self._make_engine)

    def uninstall(self) -> None:
        super().uninstall()
        self._apart.clear()

    def _make_engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self._apart.clear()
            return original(*args, **kwargs)

        return run_backward

    def instead(self, x: Any, index: Any) -> Callable[[], Any] | None:
        keys = index if type(index) is tuple else (index,)
        axis, whole = len(keys) - 1, slice(None)
        one = type(keys[-1]) is int if keys else False
        if not one or any(type(key) is not slice or key != whole for key in keys[:-1]):
            return None
        if type(x) is not torch.Tensor or not (x.requires_grad and torch.is_grad_enabled()):
            return None
        if not (axis < x.dim() and -x.shape[axis] <= keys[-1] < x.shape[axis]):
            return None
        if type(x.grad_fn).__name__ == _PARTS_WRITTEN:
            return None
        return functools.partial(self._part, x, axis, keys[-1])

    def _part(self, x: torch.Tensor, axis: int, at: int) -> torch.Tensor:
        known = self._apart.get((id(x), axis))
        if known is None or known[1] != x._version:
            known = self._apart[id(x), axis] = x, x._version, x.unbind(axis)
        return known[2][at]


class RowsSelected(OtherWay):
    """`x[index]` with a tensor of row numbers is `index_select`, whose gradients are added in any order."""

    fix = "FX327"
    says = ("rows taken with index_select in {}", "call")
    nothing_to_do = "no tensor that needs a gradient was indexed by a tensor outside compiled code"
    functions = ((torch.Tensor, "__getitem__"),)

    def instead(self, x: Any, index: Any) -> Callable[[], Any] | None:
        rows = type(index) is torch.Tensor and index.dtype in (torch.int64, torch.int32) and index.dim()
        if not (rows and x.dim() and x.requires_grad and torch.is_grad_enabled()):
            return None
        return functools.partial(_select_rows, x, index)


def _select_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    # Negative ones count from the end.
    flat = index.flatten().remainder(len(x)).to(x.device)
    return x.index_select(0, flat).unflatten(0, index.shape)
