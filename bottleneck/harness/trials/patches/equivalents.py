"""Patches that put a cheaper call in place of one that computes more than is asked of it.

In: functions of torch, and methods that do the same. Out: their results, made another way. What the other
way cannot do is left to the function itself.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

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


class QuantilesSelected(OtherWay):
    """On the CPU a quantile comes from NumPy's partition: no more is in order than the ranks it needs."""

    fix = "FX331"
    says = ("ranks selected, nothing sorted, in {}", "quantile")
    nothing_to_do = "no quantile with linear interpolation was asked for on the CPU"
    functions = ((torch, "quantile"), (torch.Tensor, "quantile"))

    def instead(
        self, x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *,
        interpolation: str = "linear", out: Any = None,
    ) -> Callable[[], Any] | None:  # fmt: skip
        plain = type(x) is torch.Tensor and x.device.type == "cpu" and x.dim() and x.numel()
        plain = plain and x.dtype in (torch.float32, torch.float64)
        if not plain or interpolation != "linear" or out is not None:
            return None
        wanted = torch.as_tensor(q, dtype=x.dtype)
        if wanted.dim() > 1 or bool(((wanted < 0) | (wanted > 1)).any()) or bool(x.isnan().any()):
            return None
        return functools.partial(_quantiles, x, wanted, dim, keepdim)


def _quantiles(x: torch.Tensor, q: torch.Tensor, dim: int | None, keepdim: bool) -> torch.Tensor:
    import numpy as np

    along = x.flatten() if dim is None else x.movedim(dim, -1)
    at = q.flatten() * (along.shape[-1] - 1)
    low, high = at.floor().long(), at.ceil().long()
    ranks = torch.cat([low, high]).unique().numpy()
    order = torch.from_numpy(np.argpartition(along.detach().numpy(), ranks, axis=-1))
    below, above = (along.gather(-1, order.index_select(-1, each)) for each in (low, high))
    found = torch.lerp(below, above, at - low).movedim(-1, 0)
    if keepdim:
        found = found.reshape(-1, *[1] * x.dim()) if dim is None else found.unsqueeze(dim % x.dim() + 1)
    return found if q.dim() else found.squeeze(0)


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


class UniqueByKey(OtherWay):
    """Rows of integers are told apart by one number each."""

    fix = "FX333"
    says = ("rows told apart by one number each in {}", "call")
    nothing_to_do = "no unique rows of integers were asked for whose values fit into one number"
    functions = ((torch, "unique"),)

    def instead(
        self, x: Any, sorted: bool = True, return_inverse: bool = False,  # noqa: A002, ARG002
        return_counts: bool = False, dim: int | None = None,
    ) -> Callable[[], Any] | None:  # fmt: skip
        rows = type(x) is torch.Tensor and x.dim() == 2 and dim in (0, -2) and x.numel() > 0
        if not rows or x.is_floating_point() or x.is_complex() or x.dtype in (torch.bool, torch.uint64):
            return None
        least = x.amin(0).long()
        sizes = (x.amax(0).long() - least + 1).tolist()
        if math.prod(sizes) > _LARGEST:
            return None
        return functools.partial(_unique_rows, x, least, sizes, return_inverse, return_counts)


_LARGEST = 2**62
"""Numbers that a key can be, with room in 64 bits."""


def _unique_rows(
    x: torch.Tensor, least: torch.Tensor, sizes: list[int], return_inverse: bool, return_counts: bool
) -> Any:
    # The first column counts most, so that the keys are in the order of the rows.
    weights = [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]
    keys = ((x.long() - least) * torch.tensor(weights, device=x.device)).sum(1)
    found, inverse, counts = keys.unique(return_inverse=True, return_counts=True)
    first = torch.empty_like(found)
    first[inverse] = torch.arange(len(x), device=x.device)
    out = [x[first], *[inverse] * return_inverse, *[counts] * return_counts]
    return tuple(out) if len(out) > 1 else out[0]


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


class LargestByRows(OtherWay):
    """Along an axis that is not the last, the places of the largest numbers come from max, and not argmax."""

    fix = "FX335"
    says = ("max or min of rows in {}", "argmax")
    nothing_to_do = "every argmax was over the last axis, over all numbers, or not on the CPU"
    functions = tuple((owner, name) for owner in (torch, torch.Tensor) for name in ("argmax", "argmin"))

    def instead_of(
        self, name: str, x: Any, dim: int | None = None, keepdim: bool = False, **named: Any
    ) -> Callable[[], Any] | None:
        outer = type(x) is torch.Tensor and x.device.type == "cpu" and type(dim) is int
        if not outer or named or not -x.dim() <= dim < x.dim() - 1 or dim == -1 or x.numel() == 0:
            return None
        largest = torch.max if name == "argmax" else torch.min
        return lambda: largest(x.detach(), dim, keepdim).indices


class IntegersAsFloats(OtherWay):
    """Matrices of integers are multiplied as floats where that is exact."""

    fix = "FX336"
    says = ("multiplied as floats in {}", "product")
    nothing_to_do = "no matrices of integers were multiplied whose product a float can hold"
    functions = tuple(
        (owner, name)
        for owner, names in ((torch, ()), (torch.Tensor, ("__matmul__",)))
        for name in ("matmul", "mm", "bmm", *names)
    )

    def instead_of(self, name: str, a: Any, b: Any = None, **named: Any) -> Callable[[], Any] | None:
        pair = (a, b)
        plain = all(type(each) is torch.Tensor and each.device.type == "cpu" for each in pair) and not named
        if not plain or any(each.dtype not in _INTEGERS or not each.numel() for each in pair):
            return None
        most = a.shape[-1] * math.prod(max(-int(each.amin()), int(each.amax())) for each in pair)
        dtype = torch.float32 if most < 2**24 else torch.float64
        if most >= min(2**53, torch.iinfo(a.dtype).max) or a.dtype is not b.dtype:
            return None
        multiply = getattr(torch, name.strip("_"))
        return lambda: multiply(a.to(dtype), b.to(dtype)).to(a.dtype)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class PairsByProduct(OtherWay):
    """The similarities of all pairs are one product of normalised vectors."""

    fix = "FX337"
    says = ("one product for all pairs in {}", "call")
    nothing_to_do = "no two sets of vectors were compared pair by pair"
    functions = ((torch, "cosine_similarity"), (functional, "cosine_similarity"))

    def instead(self, x: Any, y: Any = None, dim: int = 1, eps: float = 1e-8) -> Callable[[], Any] | None:
        plain = all(type(each) is torch.Tensor and each.is_floating_point() for each in (x, y))
        if not plain or x.dim() != y.dim() or x.dim() < 3 or dim not in (-1, x.dim() - 1):
            return None
        if (x.shape[-2], y.shape[-3]) == (1, 1):
            return functools.partial(_all_pairs, x.squeeze(-2), y.squeeze(-3), eps)
        if (x.shape[-3], y.shape[-2]) == (1, 1):
            return lambda: _all_pairs(y.squeeze(-2), x.squeeze(-3), eps)
        return None


def _all_pairs(rows: torch.Tensor, columns: torch.Tensor, eps: float) -> torch.Tensor:
    left, right = (functional.normalize(each, dim=-1, eps=eps) for each in (rows, columns))
    return left @ right.transpose(-1, -2)


class DotsSummed(OtherWay):
    """A batch of dot products is multiplied number by number, and summed."""

    fix = "FX340"
    says = ("multiplied and summed in {}", "call")
    nothing_to_do = "no batch of dot products was asked for outside compiled code and autocast"
    functions = tuple(
        (owner, name)
        for owner, names in ((torch, ("einsum",)), (torch.Tensor, ("__matmul__",)))
        for name in ("matmul", "bmm", *names)
    )

    def instead_of(self, name: str, *args: Any, **named: Any) -> Callable[[], Any] | None:
        a, b = args[-2:] if len(args) == (3 if name == "einsum" else 2) else (None, None)
        plain = all(type(each) is torch.Tensor and each.is_floating_point() for each in (a, b)) and not named
        if not plain or a.dtype is not b.dtype or torch.is_autocast_enabled(a.device.type):
            return None
        if name == "einsum":
            return _summed(args[0], a, b)
        if a.dim() < 3 or b.dim() != a.dim() or not a.shape[-2] == b.shape[-1] == 1:
            return None
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            return None  # for bmm to refuse, or to spread
        return lambda: (a * b.transpose(-1, -2)).sum(-1, keepdim=True)


def _summed(equation: Any, a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any] | None:
    """Return the sum of products that an equation means; None where it means another thing."""
    given, arrow, wanted = str(equation).replace(" ", "").partition("->")
    left, comma, right = given.partition(",")
    names = set(left)
    alike = arrow and comma and names == set(right) and set(wanted) < names
    once = all(len(set(each)) == len(each) for each in (left, right, wanted)) and left.isalpha()
    if not (alike and once) or (len(left), len(right)) != (a.dim(), b.dim()):
        return None
    b = b.permute([right.index(name) for name in left])
    if a.shape != b.shape:
        return None
    order = [*wanted, *(name for name in left if name not in wanted)]
    summed = tuple(range(len(wanted), len(left)))
    return lambda: (a * b).permute([left.index(name) for name in order]).sum(summed)


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
