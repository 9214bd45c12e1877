"""Ways of windows over a signal: convolutions, pooling, Fourier transforms.

In: calls. Out: what gives the same by another algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from .way import Call, Instead, Made, Way, in_place_of, is_plain, is_real, same


class RealTransform(Way):
    """The transform of real numbers has each value twice: half of them are enough."""

    callee = "way:real-fft"
    shown = "a transform of real numbers"
    functions = ("fft_fft", "fft_fft2")
    stands_in = False

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, half = call.given(0, "input"), torch.fft.rfft if call.name == "fft_fft" else torch.fft.rfft2
        if not is_real(x):
            return None
        return in_place_of(call, lambda x: half(x, *call.args[1:], **call.kwargs), alike=_half)


def _half(own: torch.Tensor, other: torch.Tensor) -> bool:
    return same(own[tuple(map(slice, other.shape))], other)


class RealPart(Way):
    """An inverse transform of which the real part is read is made for real numbers."""

    callee = "way:real-fft"
    shown = "the real part of a transform"
    functions = ("real",)
    follows = ("fft_ifft",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        inverse = made(call.args[0])
        if inverse is None or inverse.name not in self.follows or len(inverse.args) > 1:
            return None
        if inverse.kwargs.keys() - {"dim"}:
            return None
        x, axis = inverse.args[0], inverse.kwargs.get("dim", -1)
        if not is_plain(x) or not x.is_complex():
            return None
        length = x.shape[axis]
        return Instead(
            (x,),
            lambda x: inverse.on(x).real,
            (lambda x: torch.fft.irfft(x.narrow(axis, 0, length // 2 + 1), length, axis),),
            (inverse,),
        )


class OtherConvolution(Way):
    """A convolution by Fourier transforms, by a matrix product, over fewer axes, or without groups."""

    callee = "way:convolution"
    shown = "a convolution"
    functions = ("conv1d", "conv2d", "conv3d")

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, weight, bias = call.given(0, "input"), call.given(1, "weight"), call.given(2, "bias")
        rank = int(call.name[4])
        if not is_real(x, weight, *([] if bias is None else [bias])) or x.dim() != rank + 2:
            return None
        step, pad, spread = _geometry(call, rank)
        groups, kernel = call.given(6, "groups", 1), weight.shape[2:]
        if step is None or pad is None or spread is None:
            return None
        others: list[Callable[..., Any]] = []
        plain = set(step) == {1} and set(spread) == {1}
        if plain and max(kernel) >= _LONG and x.dtype in (torch.float32, torch.float64):
            others.append(lambda x, w, b=None: _by_transform(x, w, b, pad, groups))
        if plain and set(kernel) == {1} and groups == 1 and set(pad) == {0}:
            others.append(_by_product)
        apart = tuple(step) == tuple(kernel) and set(pad) == {0} and set(spread) == {1} and groups == 1
        if apart and all(n % k == 0 for n, k in zip(x.shape[2:], kernel, strict=True)):
            others.append(_patches)
        if groups > 1:
            function = call.function
            others.append(
                lambda x, w, b=None: function(x, _dense(w, groups), b, tuple(step), tuple(pad), tuple(spread))
            )
        return in_place_of(call, *others) if others else None


_LONG = 16
"""A kernel shorter than this is never faster by transforms."""


class AxisByAxis(Way):
    """A kernel that is the product of one for each axis, as a box or a bell, runs along each of them."""

    callee = "way:convolution"
    shown = "a convolution"
    functions = ("conv2d", "conv3d")

    def instead(self, call: Call, made: Made) -> Instead | None:
        x, weight, bias = call.given(0, "input"), call.given(1, "weight"), call.given(2, "bias")
        rank = int(call.name[4])
        step, pad, spread = _geometry(call, rank)
        if not is_real(x, weight) or weight.requires_grad or weight.shape[1] != 1 or x.dim() != rank + 2:
            return None
        if step is None or pad is None or spread is None or bias is not None:
            return None
        groups = call.given(6, "groups", 1)
        lines = _lines_of(weight)
        if lines is None:
            return None

        def other(x: torch.Tensor, _weight: torch.Tensor) -> torch.Tensor:
            for axis, line in enumerate(lines):
                along = [[value if at == axis else rest for at in range(rank)] for value, rest in (
                    (step[axis], 1), (pad[axis], 0), (spread[axis], 1),
                )]  # fmt: skip
                x = call.function(x, line, None, *along, groups if axis == 0 else len(line))
            return x

        return in_place_of(call, other)


def _lines_of(weight: torch.Tensor) -> list[torch.Tensor] | None:
    """Return kernels (out, 1, ...) of one axis each whose product is the weight, or None."""
    rank = weight.dim() - 2
    if math.prod(n > 1 for n in weight.shape[2:]) != 1:
        return None
    place = weight.abs().flatten(1).argmax(1)
    largest = weight.flatten(1).gather(1, place[:, None])
    if bool((largest == 0).any()):
        return None
    at = torch.unravel_index(place, weight.shape[1:])[1:]
    rows = torch.arange(len(weight), device=weight.device)
    lines = []
    for axis in range(rank):
        along = torch.arange(weight.shape[2 + axis], device=weight.device)[None]
        where = (rows[:, None], *(along if k == axis else at[k][:, None] for k in range(rank)))
        line = weight[:, 0][where]
        line = line if axis == 0 else line / largest
        lines.append(line.view(len(weight), 1, *(-1 if k == axis else 1 for k in range(rank))))
    whole = lines[0]
    for line in lines[1:]:
        whole = whole * line
    return lines if same(whole, weight) else None


class FramesAsViews(Way):
    """Windows that overlap are a view of the signal; F.unfold copies them number by number."""

    callee = "way:frames"
    shown = "`F.unfold()`"
    functions = ("unfold",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        x = call.given(0, "input")
        kernel, spread, pad, step = (
            _for_each(call.given(place, name, default), 2)
            for place, name, default in (
                (1, "kernel_size", None), (2, "dilation", 1), (3, "padding", 0), (4, "stride", 1),
            )
        )  # fmt: skip
        # Of a tensor's own method three numbers are given.
        if (
            not is_real(x)
            or x.dim() != 4
            or kernel is None
            or step is None
            or pad is None
            or spread != [1, 1]
        ):
            return None
        if call.function is torch.Tensor.unfold:
            return None

        def other(x: torch.Tensor) -> torch.Tensor:
            wide = functional.pad(x, (pad[1], pad[1], pad[0], pad[0])) if any(pad) else x
            views = wide.unfold(2, kernel[0], step[0]).unfold(3, kernel[1], step[1])
            return views.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)

        return in_place_of(call, other)


def _geometry(call: Call, rank: int) -> list[list[int] | None]:
    """Return stride, padding and dilation of a convolution, a number for each axis; None for words."""
    known = ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
    return [_for_each(call.given(place, name, default), rank) for place, name, default in known]


def _for_each(value: Any, rank: int) -> list[int] | None:
    if isinstance(value, int):
        return [value] * rank
    if isinstance(value, (list, tuple)) and all(isinstance(each, int) for each in value):
        return list(value) * (rank if len(value) == 1 else 1)
    return None


def _by_transform(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, pad: list[int], groups: int
) -> torch.Tensor:
    axes = tuple(range(2, x.dim()))
    length = [n + 2 * p for n, p in zip(x.shape[2:], pad, strict=True)]
    padded = functional.pad(x, [each for p in reversed(pad) for each in (p, p)])
    size = [_fast_length(n) for n in length]
    there = torch.fft.rfftn(padded, size, axes)
    over = torch.fft.rfftn(weight, size, axes).conj()
    if groups == 1:
        out = torch.einsum("bi...,oi...->bo...", there, over)
    else:
        there, over = there.unflatten(1, (groups, -1)), over.unflatten(0, (groups, -1))
        out = torch.einsum("bgi...,goi...->bgo...", there, over).flatten(1, 2)
    found = torch.fft.irfftn(out, size, axes)
    for axis, n, k in zip(axes, length, weight.shape[2:], strict=True):
        found = found.narrow(axis, 0, n - k + 1)
    return found if bias is None else found + bias.view(-1, *[1] * len(axes))


def _fast_length(n: int) -> int:
    """Return the next number that has no prime factor but 2, 3 and 5."""
    while True:
        left = n
        for prime in (2, 3, 5):
            while left % prime == 0:
                left //= prime
        if left == 1:
            return n
        n += 1


def _by_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return functional.linear(x.movedim(1, -1), weight.flatten(1), bias).movedim(-1, 1)


def _patches(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    kernel, rank = weight.shape[2:], x.dim() - 2
    split = x.reshape(*x.shape[:2], *(n for pair in _split(x.shape[2:], kernel) for n in pair))
    outer, inner = [2 + 2 * k for k in range(rank)], [3 + 2 * k for k in range(rank)]
    rows = split.permute(0, *outer, 1, *inner).flatten(1 + rank)
    return functional.linear(rows, weight.flatten(1), bias).movedim(-1, 1)


def _split(sizes: Any, kernel: Any) -> list[tuple[int, int]]:
    return [(n // k, k) for n, k in zip(sizes, kernel, strict=True)]


def _dense(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Return weights (out, in / groups, ...) for all inputs: zeros, but for those of the own group."""
    own = weight.unflatten(0, (groups, -1))
    eye = torch.eye(groups, dtype=weight.dtype, device=weight.device)
    full = torch.einsum("goi...,gh->gohi...", own, eye)
    return full.flatten(2, 3).flatten(0, 1)


class MeanOfAll(Way):
    """Pooling to one number is a mean, and its like."""

    callee = "way:convolution"
    shown = "pooling"
    functions = ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate")

    def instead(self, call: Call, made: Made) -> Instead | None:
        x = call.given(0, "input")
        if not is_real(x) or x.dim() < 3:
            return None
        if call.name.startswith("adaptive") and _is_one(call.given(1, "output_size")):
            axes = tuple(range(x.dim() - int(call.name[-2]), x.dim()))
            return in_place_of(call, lambda x: x.mean(axes, keepdim=True))
        times = call.given(2, "scale_factor")
        nearest = call.name == "interpolate" and call.given(3, "mode", "nearest") == "nearest"
        if (
            nearest
            and isinstance(times, (int, float))
            and times == int(times)
            and call.given(1, "size") is None
        ):
            return in_place_of(call, lambda x: _repeated(x, int(times)))
        return None


def _is_one(size: Any) -> bool:
    return size == 1 or (isinstance(size, (list, tuple)) and math.prod(n or 0 for n in size) == 1)


def _repeated(x: torch.Tensor, times: int) -> torch.Tensor:
    shape = [n for size in x.shape[2:] for n in (size, times)]
    wide = x.reshape(*x.shape[:2], *(n for size in x.shape[2:] for n in (size, 1)))
    return wide.expand(*x.shape[:2], *shape).reshape(*x.shape[:2], *(n * times for n in x.shape[2:]))
