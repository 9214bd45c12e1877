"""Ways of decompositions: other drivers, cheaper decompositions, small matrices by formula.

In: calls. Out: what gives the same values with less work on the matrices at hand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .way import Call, Instead, Made, Way, in_place_of, is_real, same


class _OfMatrices(Way):
    callee = "way:decomposition"

    def instead(self, call: Call, made: Made) -> Instead | None:
        if not call.args or not is_real(call.args[0]) or call.args[0].dim() < 2 or not call.args[0].numel():
            return None
        return self.of(call, call.args[0])

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        raise NotImplementedError


def _second(own: Any, other: Any) -> bool:
    """Compare singular values: vectors may differ by a sign."""
    return same(own[1], other[1])


class OtherDriver(_OfMatrices):
    """Another driver of cuSOLVER's; the small side's eigenvectors; no vectors beyond the rank."""

    shown = "`torch.linalg.svd()`"
    functions = ("linalg_svd", "svd")

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        full = call.name == "linalg_svd" and call.given(1, "full_matrices", True)
        if call.kwargs.get("driver") is not None or (
            call.name == "svd" and len(call.args) + len(call.kwargs) > 1
        ):
            return None
        others: list[Callable[..., Any]] = []
        if x.device.type == "cuda":
            others += [_with_driver(driver, full=bool(full)) for driver in ("gesvd", "gesvdj", "gesvda")]
        if max(x.shape[-2:]) > 2 * min(x.shape[-2:]) and not full:
            others.append(_by_small_side)
        if call.name == "svd":
            others = [functools.partial(_with_v, other) for other in others]
        return in_place_of(call, *others, alike=_second) if others else None


def _with_driver(driver: str, *, full: bool) -> Callable[[torch.Tensor], Any]:
    return lambda x: torch.linalg.svd(x, full_matrices=full, driver=driver)


def _with_v(other: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    """Return it as torch.svd does: V, not its transpose."""
    u, s, v = other(x)
    return torch.return_types.svd((u, s, v.mT))


def _by_small_side(x: torch.Tensor) -> Any:
    tall = x.shape[-2] > x.shape[-1]
    thin = x if tall else x.mT
    squares, v = torch.linalg.eigh(thin.mT @ thin)
    s = squares.flip(-1).clamp(min=0).sqrt()
    v = v.flip(-1)
    u = (thin @ v) / s.clamp(min=torch.finfo(s.dtype).tiny).unsqueeze(-2)
    return torch.return_types.linalg_svd((u, s, v.mT) if tall else (v, s, u.mT))


class FewerVectors(_OfMatrices):
    """Vectors beyond the smaller side belong to no singular value."""

    shown = "`torch.linalg.svd()`"
    functions = ("linalg_svd",)
    stands_in = False

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        if not call.given(1, "full_matrices", True) or x.shape[-1] == x.shape[-2]:
            return None
        return in_place_of(call, lambda x: torch.linalg.svd(x, full_matrices=False), alike=_second)


class SingularValues(_OfMatrices):
    """Singular values from the eigenvalues of the smaller of its products with itself."""

    shown = "singular values"
    functions = ("linalg_svdvals",)

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        return in_place_of(call, _singular_values)


def _singular_values(x: torch.Tensor) -> torch.Tensor:
    square = x.mT @ x if x.shape[-2] > x.shape[-1] else x @ x.mT
    return torch.linalg.eigvalsh(square).flip(-1).clamp(min=0).sqrt()


class LargestSingularValue(_OfMatrices):
    """The norm of a matrix from these eigenvalues."""

    shown = "`torch.linalg.matrix_norm()`"
    functions = ("linalg_matrix_norm", "linalg_norm")

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        order = call.given(1, "ord")
        if len(call.args) > 2 or call.kwargs.keys() - {"ord"} or order not in (2, "nuc"):
            return None
        if call.name == "linalg_norm" and x.dim() != 2:
            return None
        if order == "nuc":
            return in_place_of(call, lambda x: _singular_values(x).sum(-1))
        return in_place_of(call, lambda x: _singular_values(x).amax(-1))


class Symmetric(_OfMatrices):
    """The eigenvalues of what is symmetric come from eigh."""

    shown = "`torch.linalg.eig()`"
    functions = ("linalg_eig", "linalg_eigvals")

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        if not same(x, x.mT):
            return None
        other = torch.linalg.eigh if call.name == "linalg_eig" else torch.linalg.eigvalsh
        return in_place_of(call, other, alike=_same_values)


def _same_values(own: Any, other: Any) -> bool:
    values = [each if isinstance(each, torch.Tensor) else each[0] for each in (own, other)]
    return same(values[0].real.sort(-1).values, values[1].sort(-1).values)


class PseudoInverse(_OfMatrices):
    """The pseudo-inverse of a matrix of full rank by a solve."""

    shown = "`torch.linalg.pinv()`"
    functions = ("linalg_pinv", "pinverse")

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        return in_place_of(call, _pinv) if len(call.args) == 1 and not call.kwargs else None


def _pinv(x: torch.Tensor) -> torch.Tensor:
    if x.shape[-2] == x.shape[-1]:
        return torch.linalg.inv(x)
    if x.shape[-2] > x.shape[-1]:
        return torch.linalg.solve(x.mT @ x, x.mT)
    return torch.linalg.solve(x @ x.mT, x, left=True).mT


class PositiveDefinite(_OfMatrices):
    """Systems, inverses and determinants of positive definite matrices by Cholesky."""

    shown = "a decomposition of a positive definite matrix"
    functions = (
        "linalg_solve",
        "linalg_inv",
        "inverse",
        "linalg_slogdet",
        "slogdet",
        "logdet",
        "linalg_det",
        "det",
    )

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        if x.shape[-1] < 4 or not call.kwargs.get("left", True) or not same(x, x.mT):
            return None
        if bool(torch.linalg.cholesky_ex(x.detach()).info.any()):
            return None
        return in_place_of(call, _BY_CHOLESKY[call.name], alike=_values)


def _values(own: Any, other: Any) -> bool:
    """Compare values alone: the gradient of a symmetric matrix may be that of its lower half."""
    return same(own, other)


def _log_det(x: torch.Tensor) -> torch.Tensor:
    return 2 * torch.linalg.cholesky_ex(x).L.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    alone = b.dim() == a.dim() - 1
    out = torch.cholesky_solve(b.unsqueeze(-1) if alone else b, torch.linalg.cholesky_ex(a).L)
    return out.squeeze(-1) if alone else out


def _signed(x: torch.Tensor) -> Any:
    value = _log_det(x)
    return torch.ones_like(value), value


def _inverse(x: torch.Tensor) -> torch.Tensor:
    return torch.cholesky_inverse(torch.linalg.cholesky_ex(x).L)


_BY_CHOLESKY: dict[str, Callable[..., Any]] = {
    "linalg_solve": _solve,
    **dict.fromkeys(("linalg_inv", "inverse"), _inverse),
    **dict.fromkeys(("linalg_slogdet", "slogdet"), _signed),
    **dict.fromkeys(("linalg_det", "det"), lambda x: _log_det(x).exp()),
    "logdet": _log_det,
}


class SmallByFormula(_OfMatrices):
    """Inverses, determinants and systems of two or three rows by their formulas, all matrices at once."""

    callee = "way:small-matrices"
    shown = "a decomposition of small matrices"
    functions = (
        "linalg_inv",
        "inverse",
        "linalg_det",
        "det",
        "linalg_solve",
        "logdet",
        "linalg_slogdet",
        "slogdet",
    )

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        if x.shape[-1] not in (2, 3) or x.dim() < 3 or not call.kwargs.get("left", True):
            return None
        return in_place_of(call, _BY_FORMULA[call.name])


def _adjugate(x: torch.Tensor) -> torch.Tensor:
    """Return the adjugate of (..., n, n), n = 2 or 3."""
    if x.shape[-1] == 2:
        (a, b), (c, d) = (row.unbind(-1) for row in x.unbind(-2))
        return torch.stack([torch.stack([d, -b], -1), torch.stack([-c, a], -1)], -2)
    a, b, c = x.unbind(-2)
    return torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], -1)


def _formula_inverse(x: torch.Tensor) -> torch.Tensor:
    """By Cramer's rule."""
    return _adjugate(x) / _formula_det(x)[..., None, None]


def _formula_solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    inverse = _formula_inverse(a)
    return (inverse @ b.unsqueeze(-1)).squeeze(-1) if b.dim() == a.dim() - 1 else inverse @ b


def _formula_det(x: torch.Tensor) -> torch.Tensor:
    if x.shape[-1] == 2:
        (a, b), (c, d) = (row.unbind(-1) for row in x.unbind(-2))
        return a * d - b * c
    a, b, c = x.unbind(-2)
    return (a * torch.linalg.cross(b, c)).sum(-1)


def _formula_signed(x: torch.Tensor) -> Any:
    det = _formula_det(x)
    return det.sign(), det.abs().log()


_BY_FORMULA: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("linalg_inv", "inverse"), _formula_inverse),
    **dict.fromkeys(("linalg_det", "det"), _formula_det),
    **dict.fromkeys(("linalg_slogdet", "slogdet"), _formula_signed),
    "linalg_solve": _formula_solve,
    "logdet": lambda x: _formula_det(x).log(),
}


class Rotation(_OfMatrices):
    """The exponential of a skew-symmetric matrix of three rows is a rotation, by Rodrigues' formula."""

    callee = "way:small-matrices"
    shown = "`torch.linalg.matrix_exp()`"
    functions = ("linalg_matrix_exp", "matrix_exp")

    def of(self, call: Call, x: torch.Tensor) -> Instead | None:
        if x.shape[-1] != 3 or not same(x, -x.mT):
            return None
        return in_place_of(call, _rodrigues)


def _rodrigues(x: torch.Tensor) -> torch.Tensor:
    # The axis is in three of the nine numbers.
    angle = torch.stack([x[..., 2, 1], x[..., 0, 2], x[..., 1, 0]], -1).square().sum(-1)
    angle = angle.clamp(min=torch.finfo(x.dtype).tiny).sqrt()[..., None, None]
    eye = torch.eye(3, dtype=x.dtype, device=x.device)
    return eye + angle.sin() / angle * x + (1 - angle.cos()) / angle.square() * (x @ x)
