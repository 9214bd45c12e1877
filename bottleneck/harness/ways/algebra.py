"""Ways of linear algebra: products, sums of products, inverses.

In: calls. Out: what gives the same with fewer operations, or with those that libraries are fast at.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from .way import Call, Instead, Made, Way, in_place_of, is_plain, is_real

_PRODUCTS = ("matmul", "mm", "bmm", "mv", "__rmatmul__")


def operands(call: Call) -> tuple[Any, Any]:
    """Return both operands of a product, the left one first."""
    left, right = call.given(0, "input"), call.given(1, "other", call.kwargs.get("mat2"))
    return (right, left) if call.name == "__rmatmul__" else (left, right)


class Solved(Way):
    """An inverse that is only multiplied by is no longer made: the system is solved."""

    callee = "way:inverse"
    shown = "an inverse and a product"
    functions = _PRODUCTS
    follows = ("linalg_inv", "inverse")

    def instead(self, call: Call, made: Made) -> Instead | None:
        left, right = operands(call)
        if not is_real(left, right) or left.dim() < 2:
            return None
        for inverse, from_left in ((made(left), True), (made(right), False)):
            if inverse is None or inverse.name not in self.follows or (right.dim() < 2 and not from_left):
                continue
            matrix, factor = inverse.tensors()[0], right if from_left else left
            own, other = _BY_INVERSE[from_left]
            return Instead((matrix, factor), own, (other,), (inverse,))
        return None


_BY_INVERSE: dict[bool, tuple[Callable[..., Any], Callable[..., Any]]] = {
    True: (lambda a, b: torch.linalg.inv(a) @ b, torch.linalg.solve),
    False: (lambda a, b: b @ torch.linalg.inv(a), lambda a, b: torch.linalg.solve(a, b, left=False)),
}


class Multiplied(Way):
    """The sum of products over some axes is a matrix product."""

    callee = "way:sum-of-products"
    shown = "a product and its sum"
    functions = ("sum", "mean")
    follows = ("mul",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        summed, dims = call.given(0, "input"), call.given(1, "dim")
        product = made(summed)
        if product is None or product.name not in self.follows or len(product.tensors()) != 2:
            return None
        if dims is None or call.kwargs.get("dtype") is not None:
            return None
        a, b = product.tensors()
        axes = (dims,) if isinstance(dims, int) else tuple(dims)
        if not is_real(a, b) or product.kwargs or len(product.args) != 2 or not axes:
            return None
        rank = summed.dim()
        gone = {axis % rank for axis in axes}
        keeps = bool(call.given(2, "keepdim", False))
        count = math.prod(summed.shape[axis] for axis in gone) if call.name == "mean" else 1

        def other(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            out = contracted(a, b, rank, gone)
            out = out / count if count > 1 else out
            return out.reshape([1 if axis in gone else n for axis, n in enumerate(shape)]) if keeps else out

        shape, others = tuple(summed.shape), [other]
        if gone == {rank - 1} and not keeps and call.name == "sum":
            # A product with a vector has a library call of its own.
            others += [_by_vector(side) for side in (0, 1) if _is_vector((a, b)[side], (a, b)[1 - side])]
        return Instead((a, b), lambda a, b: call.on(a * b), tuple(others), (product,))


def _is_vector(x: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(x.numel() == x.shape[-1] == other.shape[-1]) and other.dim() >= x.dim()


def _by_vector(side: int) -> Callable[..., torch.Tensor]:
    return lambda *pair: pair[1 - side] @ pair[side].reshape(-1)


def contracted(a: torch.Tensor, b: torch.Tensor, rank: int, gone: set[int]) -> torch.Tensor:
    """Return (a * b).sum(gone) of two tensors that are broadcast to `rank` axes, by einsum."""
    names: list[str] = []
    parts: list[torch.Tensor] = []
    for each in (a, b):
        first = rank - each.dim()
        # What is repeated, or has one number, takes no part in the product.
        wide = [k for k in range(each.dim()) if each.shape[k] > 1 and each.stride(k) != 0]
        alone = [k for k in range(each.dim()) if each.shape[k] > 1 and each.stride(k) == 0]
        other = b if each is a else a
        if alone and any(_size(other, first + k, rank) == 1 for k in alone):
            wide = [k for k in range(each.dim()) if each.shape[k] > 1]
        index = tuple(slice(None) if k in wide else 0 for k in range(each.dim()))
        parts.append(each[index])
        names.append("".join(chr(97 + first + k) for k in wide))
    in_any = set("".join(names))
    kept = [chr(97 + axis) for axis in range(rank) if axis not in gone]
    out = torch.einsum(f"{names[0]},{names[1]}->{''.join(n for n in kept if n in in_any)}", *parts)
    return out.reshape(
        [
            max(_size(a, ord(name) - 97, rank), _size(b, ord(name) - 97, rank)) if name in in_any else 1
            for name in kept
        ]
    )


def _size(x: torch.Tensor, axis: int, rank: int) -> int:
    """Return the size of an axis of `rank` broadcast ones."""
    own = axis - (rank - x.dim())
    return x.shape[own] if own >= 0 else 1


class OtherOrder(Way):
    """Three matrices multiplied in the other order."""

    callee = "way:order-of-products"
    shown = "two matrix products"
    functions = ("matmul", "mm", "bmm", "mv")
    follows = functions

    def instead(self, call: Call, made: Made) -> Instead | None:
        left, right = operands(call)
        if not is_real(left, right):
            return None
        first = made(left)
        if first is not None and first.name in self.follows and first.args[0].dim() > 1:
            a, b = operands(first)
            if is_real(a, b) and b.dim() > 1:
                return Instead((a, b, right), lambda a, b, c: (a @ b) @ c, (_from_right,), (first,))
        first = made(right)
        if first is not None and first.name in self.follows and left.dim() > 1:
            a, b = operands(first)
            if is_real(a, b) and a.dim() > 1 and b.dim() > 1:
                return Instead((left, a, b), _from_right, (lambda a, b, c: (a @ b) @ c,), (first,))
        return None


def _from_right(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return a @ (b @ c)


@dataclass(frozen=True, slots=True)
class _Term:
    """A part of a weight: a matrix, a product of two, or their Kronecker product, times a number."""

    kind: str
    factors: tuple[torch.Tensor, ...]
    scale: float = 1.0

    def weight(self, *factors: torch.Tensor) -> torch.Tensor:
        whole = (
            factors[0]
            if self.kind == ""
            else torch.kron(*factors)
            if self.kind == "kron"
            else torch.mm(*factors)
        )
        return whole if self.scale == 1 else whole * self.scale

    def of(self, x: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
        """Return x @ weight.T."""
        if self.kind == "":
            out = functional.linear(x, *factors)
        elif self.kind == "kron":
            left, right = factors
            out = (left @ functional.linear(x.unflatten(-1, (left.shape[1], -1)), right)).flatten(-2)
        else:
            out = functional.linear(functional.linear(x, factors[1]), factors[0])
        return out if self.scale == 1 else out * self.scale


class ThroughFactors(Way):
    """What a weight is made of multiplies one after the other, and the weight is not made."""

    callee = "way:order-of-products"
    shown = "a product with a weight made of factors"
    functions = ("linear",)
    follows = ("kron", "mm", "matmul", "mul", "div", "add")

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, weight, bias = call.given(0, "input"), call.given(1, "weight"), call.given(2, "bias")
        calls: list[Call] = []
        terms = _terms(weight, made, calls) if is_real(x, weight) and weight.dim() == 2 else []
        if not any(term.kind for term in terms) or not is_real(
            x, *(f for term in terms for f in term.factors)
        ):
            return None

        def each(factors: tuple[torch.Tensor, ...]) -> Iterator[tuple[_Term, tuple[torch.Tensor, ...]]]:
            left = iter(factors)
            for term in terms:
                yield term, tuple(itertools.islice(left, len(term.factors)))

        def own(x: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
            made_of = functools.reduce(torch.add, (term.weight(*its) for term, its in each(factors)))
            return functional.linear(x, made_of, bias)

        def other(x: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
            out = functools.reduce(torch.add, (term.of(x, *its) for term, its in each(factors)))
            return out if bias is None else out + bias

        return Instead((x, *(f for term in terms for f in term.factors)), own, (other,), tuple(calls))


def _terms(weight: torch.Tensor, made: Made, calls: list[Call]) -> list[_Term]:
    call = made(weight)
    if call is None or call.name not in ThroughFactors.follows or len(call.args) != 2 or call.kwargs:
        return [_Term("", (weight,))]
    left, right = call.args
    if call.name in ("kron", "mm", "matmul"):
        if not is_plain(left, right) or left.dim() != 2 or right.dim() != 2:
            return [_Term("", (weight,))]
        calls.append(call)
        return [_Term("kron" if call.name == "kron" else "mm", (left, right))]
    if call.name == "add" and is_plain(left, right) and left.shape == right.shape:
        calls.append(call)
        return [*_terms(left, made, calls), *_terms(right, made, calls)]
    if call.name == "add" or not isinstance(right, (int, float)):
        return [_Term("", (weight,))]
    calls.append(call)
    by = 1 / right if call.name == "div" else right
    return [replace(term, scale=term.scale * by) for term in _terms(left, made, calls)]


_CASTS = ("float", "to", "type", "double", "half", "bfloat16")


class LookedUp(Way):
    """A product with rows that are all zeros but for a one looks rows up, or adds rows up."""

    callee = "way:one-hot"
    shown = "a product with one-hot rows"
    functions = ("matmul", "mm", "bmm", "linear")
    follows = ("one_hot", *_CASTS)

    def instead(self, call: Call, made: Made) -> Instead | None:
        if len(call.args) < 2:
            return None
        left, right = call.args[:2]
        if not is_real(left, right) or left.requires_grad or left.dim() < 2 or right.dim() != 2:
            return None
        if call.given(2, "bias") is not None or left.shape[-1] < 3 or not _one_hot(left):
            return None
        index = left.argmax(-1)
        table = (lambda rows: rows.t()) if call.name == "linear" else (lambda rows: rows)
        makers = _makers_of_ones(left, made)

        def own(rows: torch.Tensor) -> torch.Tensor:
            ones = makers[0].on(*makers[0].tensors()) if makers else left
            for cast in makers[1:]:
                ones = cast.on(ones, *cast.tensors()[1:])
            return call.function(ones, rows)

        return Instead((right,), own, (lambda rows: functional.embedding(index, table(rows)),), makers)


def _makers_of_ones(x: torch.Tensor, made: Made) -> tuple[Call, ...]:
    """Return the call that made one-hot rows, and those after it that changed their type; in order."""
    makers: list[Call] = []
    while (call := made(x)) is not None and call.name in LookedUp.follows:
        makers.insert(0, call)
        if call.name == "one_hot":
            return tuple(makers)
        x = call.tensors()[0]
    return ()


def _one_hot(x: torch.Tensor) -> bool:
    ones = int((x == 1).sum())
    return ones == x.numel() // x.shape[-1] and ones == int((x != 0).sum()) and bool((x.sum(-1) == 1).all())


class RowsAdded(Way):
    """A product with a matrix that numbers were scattered into adds the rows up that they belong to."""

    callee = "way:one-hot"
    shown = "a product with nearly empty rows"
    functions = ("matmul", "mm")
    follows = ("scatter", "scatter_")

    def instead(self, call: Call, made: Made) -> Instead | None:
        left, right = operands(call)
        scattered = made(left) if is_real(left, right) and left.dim() == right.dim() == 2 else None
        if (
            scattered is None
            or scattered.name not in self.follows
            or scattered.kwargs
            or len(scattered.args) != 4
        ):
            return None
        _, axis, index, values = scattered.args
        if axis not in (1, -1) or not is_real(values) or int(left.count_nonzero()) > index.numel():
            return None

        def own(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(left).scatter(1, index, values) @ rows

        def other(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return functional.embedding_bag(index, rows, per_sample_weights=values, mode="sum")

        return Instead((values, right), own, (other,), (scattered,))


class IntegersAsFloats(Way):
    """Matrices of integers are multiplied as floats where that is exact."""

    callee = "torch.matmul"
    shown = "`torch.matmul()` of integers"
    functions = ("matmul", "mm", "bmm", "mv")

    def instead(self, call: Call, made: Made) -> Instead | None:
        a, b = operands(call)
        if not is_plain(a, b) or call.kwargs or a.device.type != "cpu":
            return None
        if a.dtype is not b.dtype or a.dtype not in _INTEGERS or not (a.numel() and b.numel()):
            return None
        most = a.shape[-1] * math.prod(max(-int(each.amin()), int(each.amax())) for each in (a, b))
        kind = torch.float32 if most < 2**24 else torch.float64
        if most >= min(2**53, torch.iinfo(a.dtype).max):
            return None
        return in_place_of(call, lambda a, b: call.function(a.to(kind), b.to(kind)).to(a.dtype))


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class DotsSummed(Way):
    """A batch of dot products is multiplied number by number, and summed."""

    callee = "torch.bmm"
    shown = "`torch.bmm()` of dot products"
    functions = ("matmul", "bmm", "einsum")

    def instead(self, call: Call, made: Made) -> Instead | None:
        pair = call.args[1:] if call.name == "einsum" else operands(call)
        if len(pair) != 2 or not is_real(*pair) or call.kwargs:
            return None
        a, b = pair
        if torch.is_autocast_enabled(a.device.type):
            return None
        if call.name == "einsum":
            other = _summed(call.args[0], a, b)
            return None if other is None else in_place_of(call, other)
        if a.dim() < 3 or b.dim() != a.dim() or not a.shape[-2] == b.shape[-1] == 1:
            return None
        if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
            return None
        return in_place_of(call, lambda a, b: (a * b.transpose(-1, -2)).sum(-1, keepdim=True))


def _summed(equation: Any, a: torch.Tensor, b: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    """Return the sum of products that an equation means; None where it means another thing."""
    given, arrow, wanted = str(equation).replace(" ", "").partition("->")
    left, comma, right = given.partition(",")
    names = set(left)
    alike = arrow and comma and names == set(right) and set(wanted) < names
    once = all(len(set(each)) == len(each) for each in (left, right, wanted)) and left.isalpha()
    if not (alike and once) or (len(left), len(right)) != (a.dim(), b.dim()):
        return None
    as_left = [right.index(name) for name in left]
    if a.shape != b.permute(as_left).shape:
        return None
    order = [*wanted, *(name for name in left if name not in wanted)]
    summed = tuple(range(len(wanted), len(left)))
    places = [left.index(name) for name in order]
    return lambda a, b: (a * b.permute(as_left)).permute(places).sum(summed)


class PairsByProduct(Way):
    """The similarities of all pairs are one product of normalised vectors."""

    callee = "torch.cosine_similarity"
    shown = "`torch.cosine_similarity()` of all pairs"
    functions = ("cosine_similarity",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, y = call.given(0, "x1"), call.given(1, "x2")
        dim, eps = call.given(2, "dim", 1), call.given(3, "eps", 1e-8)
        if not is_real(x, y) or x.dim() != y.dim() or x.dim() < 3 or dim not in (-1, x.dim() - 1):
            return None
        if (x.shape[-2], y.shape[-3]) == (1, 1):
            return in_place_of(call, lambda x, y: _all_pairs(x.squeeze(-2), y.squeeze(-3), eps))
        if (x.shape[-3], y.shape[-2]) == (1, 1):
            return in_place_of(call, lambda x, y: _all_pairs(y.squeeze(-2), x.squeeze(-3), eps))
        return None


def _all_pairs(rows: torch.Tensor, columns: torch.Tensor, eps: float) -> torch.Tensor:
    left, right = (functional.normalize(each, dim=-1, eps=eps) for each in (rows, columns))
    return left @ right.transpose(-1, -2)


class OtherDistances(Way):
    """Distances of all pairs from one product of matrices, and from differences where the product is made."""

    callee = "way:distances"
    shown = "`torch.cdist()`"
    functions = ("cdist",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, y = call.given(0, "x1"), call.given(1, "x2")
        chosen = call.kwargs.get("compute_mode", _BY_ITSELF) == _BY_ITSELF
        if not is_real(x, y) or not chosen or call.given(2, "p", 2.0) != 2:
            return None
        by_product = max(x.shape[-2], y.shape[-2]) > _PRODUCT_FROM
        mode = "donot_use_mm_for_euclid_dist" if by_product else "use_mm_for_euclid_dist"
        return in_place_of(call, functools.partial(torch.cdist, compute_mode=mode))


_BY_ITSELF = "use_mm_for_euclid_dist_if_necessary"
_PRODUCT_FROM = 25
"""Rows beyond which torch multiplies by itself (torch.cdist: use_mm_for_euclid_dist_if_necessary)."""


class SortedApart(Way):
    """The distances of all pairs of numbers, summed, follow from their ranks."""

    callee = "way:pairs-apart"
    shown = "the distances of all pairs of numbers"
    functions = ("sum", "mean")
    follows = ("abs", "sub")

    def instead(self, call: Call, made: Made) -> Instead | None:
        distance = made(call.given(0, "input"))
        apart = made(distance.args[0]) if distance is not None and distance.name == "abs" else None
        dims = call.given(1, "dim")
        if apart is None or apart.name != "sub" or distance is None or not isinstance(dims, (list, tuple)):
            return None
        a, b = apart.args[:2]
        if not is_real(a, b) or len(apart.args) != 2 or a.dim() != b.dim() or len(dims) != 2:
            return None
        if len(call.args) > 2 or call.kwargs.keys() - {"dim"} or a.data_ptr() != b.data_ptr():
            return None
        i, j = sorted(axis % a.dim() for axis in dims)
        if a.shape[i] != 1:
            a, b = b, a
        if a.shape[i] != 1 or b.shape[j] != 1 or a.squeeze(i).stride() != b.squeeze(j).stride():
            return None
        if a.squeeze(i).shape != b.squeeze(j).shape:
            return None
        count, axis = b.shape[i], i

        def own(x: torch.Tensor) -> torch.Tensor:
            pairs = (x.unsqueeze(i) - x.unsqueeze(j)).abs()
            return pairs.sum((i, j)) if call.name == "sum" else pairs.mean((i, j))

        def other(x: torch.Tensor) -> torch.Tensor:
            ranked = x.movedim(axis, -1).sort(-1).values
            weights = 2 * torch.arange(1 - count, count, 2, dtype=x.dtype, device=x.device)
            total = ranked @ weights
            return total if call.name == "sum" else total / count**2

        return Instead((b.squeeze(j),), own, (other,), (distance, apart))
