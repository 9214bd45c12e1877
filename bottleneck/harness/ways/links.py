"""Ways of graphs: what goes along few links, among many that there could be.

In: calls. Out: products with a sparse matrix of the links, which is made once.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from .way import Call, Instead, Made, Way, is_plain, is_real


class NearlyEmpty(Way):
    """A product with a matrix of zeros, nearly all of them, leaves the zeros out."""

    callee = "way:zeros"
    shown = "a product with a matrix of zeros"
    functions = ("matmul", "mm", "spmm")

    def __init__(self) -> None:
        self._packed: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def instead(self, call: Call, made: Made) -> Instead | None:
        if len(call.args) != 2:
            return None
        left, right = call.args
        if not is_real(left, right) or left.requires_grad or left.dim() != 2 or right.dim() not in (2, 3):
            return None
        # One that is new in each step would have to be looked through in each.
        packed = self._without_zeros(left) if call.stays(left) else ()
        if not packed:
            return None
        others = tuple(functools.partial(_by_rows, each) for each in packed)
        return Instead((right,), lambda right: call.function(left, right), others)

    def _without_zeros(self, matrix: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return it in sparse layouts, as long as it stays as it is; none where too much of it is no zero."""
        packed: tuple[torch.Tensor, ...]
        version, packed = self._packed.get(matrix, (-1, ()))
        if version != matrix._version:
            few = int(matrix.count_nonzero()) <= _FEW * matrix.numel()
            packed = (matrix.to_sparse_csr(), matrix.to_sparse_coo().coalesce()) if few else ()
            self._packed[matrix] = matrix._version, packed
        return packed


_FEW = 0.2
"""Of a matrix, above which no sparse product was ever faster."""


def _by_rows(packed: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if right.dim() == 2:
        return torch.sparse.mm(packed, right)
    batch, _, width = right.shape
    out = torch.sparse.mm(packed, right.movedim(0, 1).flatten(1))
    return out.unflatten(1, (batch, width)).movedim(1, 0)


_LOOK_UP = ("index_select", "__getitem__")


class AlongLinks(Way):
    """Rows that are looked up, weighted and added up for each target are a product with a sparse matrix."""

    callee = "way:bag"
    shown = "rows that are looked up and added up"
    functions = (
        "scatter_add", "scatter_add_", "index_add", "index_add_", "scatter_reduce", "scatter_reduce_",
    )  # fmt: skip
    follows = (*_LOOK_UP, "mul")

    def instead(self, call: Call, made: Made) -> Instead | None:
        if call.given(4, "reduce" if "reduce" in call.name else "alpha", 1) not in (1, "sum"):
            return None
        base, index, message = call.given(0, "input"), call.given(2, "index"), call.tensors()[-1]
        if call.given(1, "dim") != 0 or not is_real(base, message) or base.dim() != 2 or base.requires_grad:
            return None
        looked, weighted, weight = _looked_up(message, made)
        if looked is None or looked.args[0].dim() != 2:
            return None
        x, source = looked.args[0], _rows(looked)
        target = _of_rows(index)
        known = [each for each in (source, target, weight) if each is not None]
        if source is None or target is None or not is_real(base, x) or not all(map(call.stays, known)):
            return None
        if weight is not None and (weight.requires_grad or weight.shape not in ((len(source), 1), (1,), ())):
            return None

        def own(x: torch.Tensor) -> torch.Tensor:
            rows = looked.on(x, *looked.tensors()[1:])
            if weighted is not None:
                rows = weighted.on(*(rows if each is not weight else each for each in weighted.tensors()))
            return call.on(base.clone(), index, rows)

        @functools.cache
        def both() -> tuple[torch.Tensor, torch.Tensor]:
            """Return the matrix and its transpose, made where the way is timed and not for each call."""
            matrix = _matrix(source, target, weight, (len(base), len(x)), base)
            return matrix.to_sparse_csr(), matrix.t().coalesce().to_sparse_csr()

        def other(x: torch.Tensor) -> torch.Tensor:
            return base + _Along.apply(x, *both())

        return Instead((x,), own, (other,), tuple(each for each in (looked, weighted) if each is not None))


class _Along(torch.autograd.Function):
    """A product with a sparse matrix; the backward takes its transpose, which is made once, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrix: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.transposed @ gradients[0].contiguous(), None, None


def _looked_up(message: torch.Tensor, made: Made) -> tuple[Call | None, Call | None, torch.Tensor | None]:
    """Return the call that looks rows up, the one that weights them, and the weight."""
    call = made(message)
    if call is None or call.name != "mul":
        return (call if call is not None and call.name in _LOOK_UP else None), None, None
    for rows, weight in (call.tensors(), call.tensors()[::-1]) if len(call.tensors()) == 2 else ():
        looked = made(rows)
        if looked is not None and looked.name in _LOOK_UP:
            return looked, call, weight
    return None, None, None


def _rows(looked: Call) -> torch.Tensor | None:
    """Return the numbers of the rows that are looked up."""
    index = looked.args[1] if looked.name == "__getitem__" else looked.given(2, "index")
    first = looked.name == "__getitem__" or looked.given(1, "dim") == 0
    return index if first and is_plain(index) and index.dim() == 1 and index.dtype is torch.long else None


def _of_rows(index: torch.Tensor) -> torch.Tensor | None:
    """Return the row that each row is added to, where whole rows are."""
    if index.dim() == 2 and index.stride(1) == 0:
        index = index[:, 0]
    return index if is_plain(index) and index.dim() == 1 else None


def _matrix(
    source: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    size: tuple[int, int],
    like: torch.Tensor,
) -> torch.Tensor:
    values = like.new_ones(len(source)) if weight is None else weight.detach().expand(len(source), 1)[:, 0]
    places = torch.stack([target, source])
    return torch.sparse_coo_tensor(places, values, size, check_invariants=True).coalesce()
