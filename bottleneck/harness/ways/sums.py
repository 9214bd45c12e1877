"""Ways of sums: what is written out in full, only to be added up, counted or mostly left.

In: calls. Out: what gives the same without writing it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .algebra import contracted
from .way import Call, Instead, Made, Way, in_place_of, is_plain, is_real


class Diagonal(Way):
    """The diagonal of a product is one dot product for each of its numbers."""

    callee = "way:diagonal"
    shown = "the diagonal of a matrix product"
    functions = ("diagonal", "diag", "trace")
    follows = ("matmul", "mm", "bmm")

    def instead(self, call: Call, made: Made) -> Instead | None:
        whole = call.given(0, "input")
        product = made(whole)
        if product is None or product.name not in self.follows or len(product.args) != 2:
            return None
        a, b = product.args
        offset, *axes = call.args[1:] if len(call.args) > 1 else (call.kwargs.get("offset", 0),)
        axes = axes or [call.kwargs.get("dim1", 0), call.kwargs.get("dim2", 1)]
        rank = whole.dim()
        if not is_real(a, b) or offset or min(a.dim(), b.dim()) < 2:
            return None
        if call.name == "diagonal" and {axis % rank for axis in axes} != {rank - 2, rank - 1}:
            return None
        if call.name != "diagonal" and rank != 2:
            return None
        length = min(whole.shape[-2:])

        def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            rows, columns = a[..., :length, :], b[..., :length].mT
            return (rows * columns).sum() if call.name == "trace" else (rows * columns).sum(-1)

        return Instead((a, b), lambda a, b: call.on(product.on(a, b)), (other,), (product,))


class Scaled(Way):
    """A product with a diagonal matrix scales; one number in all other places adds sums, as in centring."""

    callee = "way:scaled"
    shown = "a product with a matrix that is one number beside its diagonal"
    functions = ("matmul", "mm")
    follows = ("diag", "diag_embed")

    def instead(self, call: Call, made: Made) -> Instead | None:
        if len(call.args) != 2 or not is_real(*call.args) or min(each.dim() for each in call.args) < 2:
            return None
        for at, matrix in enumerate(call.args):
            x, of = call.args[1 - at], made(matrix)
            if of is not None and of.name in self.follows and len(of.args) == 1 and matrix.dim() == 2:
                own, before = functools.partial(_multiplied, call, of.on, at), (of,)
                return Instead((of.args[0], x), own, (functools.partial(_scaled, at, None),), before)
            if not matrix.requires_grad and (beside := _beside_diagonal(matrix)) is not None:
                given = matrix.diagonal() - beside, x
                own = functools.partial(_multiplied, call, functools.partial(_itself, matrix), at)
                return Instead(given, own, (functools.partial(_scaled, at, beside),))
        return None


def _itself(matrix: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return matrix


def _multiplied(
    call: Call, make: Callable[[torch.Tensor], torch.Tensor], at: int, of: torch.Tensor, x: torch.Tensor
) -> Any:
    """Return the product with a matrix, first or second, that is made of something."""
    return call.on(*((make(of), x) if at == 0 else (x, make(of))))


def _scaled(at: int, beside: torch.Tensor | None, scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = x * (scale.unsqueeze(-1) if at == 0 else scale)
    return out if beside is None else out + beside * x.sum(-2 if at == 0 else -1, keepdim=True)


def _beside_diagonal(matrix: torch.Tensor) -> torch.Tensor | None:
    """Return the one number that a square matrix has beside its diagonal, where it has others; else None."""
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) < _LEAST_DIAGONAL:
        return None
    number = matrix[0, 1].clone()
    if not torch.equal(matrix[0, 1:], number.expand(len(matrix) - 1)):
        return None
    is_one = torch.equal(matrix.clone().fill_diagonal_(number), number.expand_as(matrix))
    # A state that begins as zeros, or as ones, is no such matrix.
    return number if is_one and bool((matrix.diagonal() != number).all()) else None


_LEAST_DIAGONAL = 8
"""Rows; fewer may be so by chance."""


class Bag(Way):
    """Rows that are looked up to be added up are added while they are read."""

    callee = "way:bag"
    shown = "an embedding and its sum"
    functions = ("sum", "mean")
    follows = ("embedding",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        rows, axis = call.given(0, "input"), _one_axis(call)
        looked = made(rows)
        if looked is None or looked.name not in self.follows or axis is None or _keeps(call):
            return None
        if len(looked.args) < 2 or axis % rows.dim() != rows.dim() - 2:
            return None
        # The function of `torch.nn`, whose index comes first.
        index, table = looked.args[:2]
        options = {name: looked.kwargs.get(name) or False for name in ("scale_grad_by_freq", "sparse")}
        if not is_real(table) or not is_plain(index) or looked.kwargs.get("max_norm") is not None:
            return None
        padding = looked.kwargs.get("padding_idx") if call.name == "sum" else None

        def other(table: torch.Tensor) -> torch.Tensor:
            bags = index.reshape(-1, index.shape[-1])
            out = functional.embedding_bag(bags, table, mode=call.name, padding_idx=padding, **options)
            return out.view(*index.shape[:-1], -1)

        def own(table: torch.Tensor) -> Any:
            return call.on(looked.on(index, table))

        return Instead((table,), own, (other,), (looked,))


class Searched(Way):
    """How many of a few limits a number exceeds is a search, not a comparison with each."""

    callee = "way:search"
    shown = "comparisons with all of a list"
    functions = ("sum", "any", "count_nonzero")
    follows = ("gt", "ge", "lt", "le", "eq", "__eq__", "float", "double", "int", "long", "to", "type")

    def instead(self, call: Call, made: Made) -> Instead | None:
        found, axis = call.given(0, "input"), _one_axis(call)
        compared, cast = made(found), None
        if compared is not None and compared.name not in _COMPARED:
            cast, compared = compared, made(compared.given(0, "input"))
        if compared is None or compared.name not in _COMPARED or axis is None or _keeps(call):
            return None
        a, b = compared.args[:2]
        if (
            not is_plain(a, b)
            or (compared.name in _EQUAL) != (call.name == "any")
            or call.kwargs.get("dtype")
        ):
            return None
        axis = axis % found.dim() - found.dim()
        on_left = _is_list(a, axis)
        if not on_left and not _is_list(b, axis):
            return None
        limits, numbers = (a, b) if on_left else (b, a)
        if -axis <= numbers.dim():
            if numbers.shape[axis] != 1:
                return None
            numbers = numbers.squeeze(axis)
        kind = found.dtype if cast is not None else torch.int64

        def own(a: torch.Tensor, b: torch.Tensor) -> Any:
            out = compared.on(a, b)
            return call.on(out if cast is None else cast.on(out))

        def other(*_: torch.Tensor) -> torch.Tensor:
            of, among = numbers.detach(), limits.detach().flatten()
            if compared.name in _EQUAL:
                return torch.isin(of, among)
            right, above = _SEARCHES[compared.name, on_left]
            below = torch.searchsorted(among.sort().values, of.contiguous(), right=right)
            return (len(among) - below if above else below).to(kind)

        return Instead((a, b), own, (other,), (compared,) if cast is None else (compared, cast))


_EQUAL = ("eq", "__eq__")
_COMPARED = ("gt", "ge", "lt", "le", *_EQUAL)
_SEARCHES = {
    ("ge", False): (True, False), ("gt", False): (False, False),
    ("le", False): (False, True), ("lt", False): (True, True),
    ("le", True): (True, False), ("lt", True): (False, False),
    ("ge", True): (False, True), ("gt", True): (True, True),
}  # fmt: skip
"""(Comparison, whether the list is on its left) -> `right` of the search, and whether those above count."""


def _is_list(x: torch.Tensor, axis: int) -> bool:
    """Return whether all of its numbers lie along one axis, counted from the last."""
    return bool(-axis <= x.dim() and x.numel() == x.shape[axis] > 1)


class SumOfExps(Way):
    """logsumexp over sums of two, each of which meets several of the other, is a matrix product of exps."""

    callee = "way:sum-of-exps"
    shown = "a `logsumexp()` of sums"
    functions = ("logsumexp",)
    follows = ("add",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        whole, axis = call.given(0, "input"), _one_axis(call)
        added = made(whole)
        if added is None or added.name not in self.follows or added.kwargs or len(added.args) != 2:
            return None
        a, b = added.args
        if axis is None or _keeps(call) or not is_real(a, b) or a.shape == b.shape:
            return None
        rank = whole.dim()
        axis = axis % rank - rank
        if not all(-axis <= each.dim() and each.shape[axis] == whole.shape[axis] for each in (a, b)):
            return None

        def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            # What is taken off and added again has no part in the gradients.
            tops = [each.detach().amax(axis, keepdim=True) for each in (a, b)]
            sums = contracted((a - tops[0]).exp(), (b - tops[1]).exp(), rank, {axis % rank})
            return sums.log() + (tops[0] + tops[1]).squeeze(axis)

        return Instead((a, b), lambda a, b: call.on(a + b), (other,), (added,))


class Pooled(Way):
    """The mean or the largest number of each window is a pooling."""

    callee = "way:convolution"
    shown = "windows that are written out to be pooled"
    functions = ("mean", "amax")
    follows = ("unfold",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        windows, axes = call.given(0, "input"), call.given(1, "dim")
        axes = (axes,) if isinstance(axes, int) else axes
        x = windows
        chain: list[Call] = []
        while (each := made(x)) is not None and each.function is torch.Tensor.unfold and not each.kwargs:
            chain.insert(0, each)
            x = each.args[0]
        if not chain or axes is None or _keeps(call) or not is_real(x) or len(chain) > 3:
            return None
        rank = x.dim()
        along = [int(each.args[1]) % (rank + k) for k, each in enumerate(chain)]
        sizes, steps = ([int(each.args[k]) for each in chain] for k in (2, 3))
        if {axis % windows.dim() for axis in axes} != set(range(rank, windows.dim())):
            return None
        if len(set(along)) < len(along) or max(along) >= rank:
            return None
        kind = "avg" if call.name == "mean" else "max"
        pool = getattr(functional, f"{kind}_pool{len(chain)}d")

        def own(x: torch.Tensor) -> Any:
            for each in chain:
                x = x.unfold(*each.args[1:])
            return call.on(x)

        def other(x: torch.Tensor) -> torch.Tensor:
            last = tuple(range(-len(along), 0))
            moved = x.movedim(along, last)
            out = pool(moved.reshape(-1, 1, *moved.shape[-len(along) :]), sizes, steps)
            out = out.reshape(*moved.shape[: -len(along)], *out.shape[2:])
            return out.movedim(last, along)

        return Instead((x,), own, (other,), tuple(chain))


class OneProduct(Way):
    """A bilinear form is one large matrix product, where torch makes one for each of its results."""

    callee = "way:bilinear"
    shown = "`F.bilinear()`"
    functions = ("bilinear",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        tensors = call.tensors()
        if len(tensors) not in (3, 4) or not is_real(*tensors):
            return None
        return in_place_of(call, _left_first, _right_first)


def _left_first(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    out = (a @ weight.movedim(0, 1).flatten(1)).unflatten(-1, (weight.shape[0], weight.shape[2]))
    out = (out @ b.unsqueeze(-1)).squeeze(-1)
    return out if bias is None else out + bias


def _right_first(
    a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return _left_first(b, a, weight.mT, bias)


def _one_axis(call: Call) -> int | None:
    """Return the one axis that a call runs over, or None."""
    axes = call.given(1, "dim")
    if isinstance(axes, (tuple, list)) and len(axes) == 1:
        axes = axes[0]
    return axes if isinstance(axes, int) and not isinstance(axes, bool) else None


def _keeps(call: Call) -> bool:
    return bool(call.given(2, "keepdim", False))
