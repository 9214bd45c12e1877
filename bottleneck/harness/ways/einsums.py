"""Ways of products over many axes: matrices that are repeated, sums in Einstein's notation.

In: calls. Out: the products of matrices that they come to, in the order that costs least.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from .algebra import operands
from .way import Call, Instead, Made, Way, in_place_of, is_plain, is_real


class RowsOfAll(Way):
    """A product with matrices that are the same for some axes of the other takes those axes as rows.

    `matmul` writes such matrices out, once for each.
    """

    callee = "way:layout"
    shown = "a product with matrices that are repeated"
    functions = ("matmul",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        a, b = operands(call)
        if not is_plain(a, b) or call.kwargs or min(a.dim(), b.dim()) < 3 or a.dtype is not b.dtype:
            return None
        axes = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        names = _LETTERS[: len(axes)]
        mine, its = (
            [name for name, size in zip(names[::-1], x.shape[-3::-1], strict=False) if size > 1][::-1]
            for x in (a, b)
        )
        if mine == its:
            return None
        rule = f"{''.join(mine)}XY,{''.join(its)}YZ->{''.join(sorted({*mine, *its}))}XZ"

        def rows_of_all(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            left, right = (
                x.reshape(*(size for size in x.shape[:-2] if size > 1), *x.shape[-2:]) for x in (a, b)
            )
            return torch.einsum(rule, left, right).reshape(*axes, a.shape[-2], b.shape[-1])

        return in_place_of(call, rows_of_all)


_LETTERS = "abcdefghijklmnopqrstuvw"


class PairByPair(Way):
    """An einsum of three and more tensors takes two at a time, those first that leave the least work."""

    callee = "way:order-of-products"
    shown = "`einsum()` of several tensors"
    functions = ("einsum",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        names, out, terms = _einsum(call)
        if not 3 <= len(names) <= 5 or not is_real(*terms):
            return None
        orders = sorted(_orders(names, out, _sizes(names, terms)), key=lambda order: order[0])
        return in_place_of(call, *(steps for _, steps in orders[:2]))


def _einsum(call: Call) -> tuple[list[str], str, Any]:
    """Return the axes of each tensor, those of the result, and the tensors; none where they are not plain."""
    terms = call.args[1:] if len(call.args) > 2 else call.args[1] if len(call.args) > 1 else ()
    if not isinstance(call.args[0], str):
        return [], "", ()
    given, arrow, out = call.args[0].replace(" ", "").partition("->")
    names = given.split(",")
    if not arrow or "." in call.args[0] or any(len(set(each)) < len(each) for each in names):
        return [], "", ()
    return names, out, terms


class OneProduct(Way):
    """An einsum of two tensors that share what is added up, and nothing else, is a product of matrices."""

    callee = "way:sum-of-products"
    shown = "`einsum()` of two tensors"
    functions = ("einsum",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        names, out, terms = _einsum(call)
        if len(names) != 2 or not is_plain(*terms):
            return None
        left, right = names
        one, other = _product_of(left, right, out), _product_of(right, left, out)
        return in_place_of(call, one, lambda a, b: other(b, a)) if one and other else None


def _product_of(
    left: str, right: str, out: str
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
    """Return the einsum of two tensors as a product of matrices; None where an axis of both stays."""
    summed = [name for name in left if name in right]
    kept = [name for name in left + right if name not in summed]
    if not summed or sorted(kept) != sorted(out):
        return None
    axes = [left.index(name) for name in summed], [right.index(name) for name in summed]
    order = [kept.index(name) for name in out]
    return lambda a, b: torch.tensordot(a, b, axes).permute(order)


def _sizes(names: list[str], terms: Any) -> dict[str, int]:
    return {name: size for its, term in zip(names, terms, strict=True) for name, size in zip(its, term.shape)}  # noqa: B905


def _orders(
    names: list[str], out: str, sizes: dict[str, int]
) -> list[tuple[float, Callable[..., torch.Tensor]]]:
    """Return (operations, function of the tensors) for each order of pairs."""
    if len(names) == 2:
        cost = math.prod(sizes[name] for name in set("".join(names)))
        return [(cost, lambda a, b: torch.einsum(f"{names[0]},{names[1]}->{out}", a, b))]
    found: list[tuple[float, Callable[..., torch.Tensor]]] = []
    for i, j in itertools.combinations(range(len(names)), 2):
        rest = [names[k] for k in range(len(names)) if k not in (i, j)]
        wanted = set(out).union(*rest)
        between = "".join(name for name in dict.fromkeys(names[i] + names[j]) if name in wanted)
        cost = math.prod(sizes[name] for name in set(names[i] + names[j]))
        first = f"{names[i]},{names[j]}->{between}"
        for more, then in _orders([*rest, between], out, sizes):
            found.append((cost + more, _pair_first(first, i, j, then)))
    return found


def _pair_first(first: str, i: int, j: int, then: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(*terms: torch.Tensor) -> torch.Tensor:
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        return then(*rest, torch.einsum(first, terms[i], terms[j]))

    return run
