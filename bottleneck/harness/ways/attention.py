"""Ways of attention: products with a softmax between them are one call, and masks need not be read.

In: calls. Out: `scaled_dot_product_attention` of the same queries, keys and values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from .way import Call, Instead, Made, Way, is_plain, is_real, once

_PRODUCTS = ("matmul", "bmm")
_SAME = ("to", "float", "half", "bfloat16", "type_as", "contiguous")
"""What only changes the type of the scores."""


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores before the softmax: the calls that make them, the first one of queries and keys."""

    calls: tuple[Call, ...]
    queries: torch.Tensor
    keys: torch.Tensor
    """(..., width, length), as a product takes them."""
    scale: float = 1.0
    mask: torch.Tensor | None = None


class Attended(Way):
    """Scores are not written to memory."""

    callee = "way:attention"
    shown = "attention written out"
    functions = _PRODUCTS
    follows = ("softmax", *_PRODUCTS, "baddbmm", "mul", "div", "add", "masked_fill", *_SAME)

    def instead(self, call: Call, made: Made) -> Instead | None:
        weights, values = call.args[:2]
        if not is_plain(weights, values) or weights.dim() not in (3, 4) or values.dim() != weights.dim():
            return None
        after: list[Call] = []
        last = made(weights)
        while last is not None and last.name in _SAME:
            after.insert(0, last)
            last = made(last.args[0])
        if last is None or last.name != "softmax" or last.given(1, "dim") not in (-1, weights.dim() - 1):
            return None
        after.insert(0, last)
        scores = _scores(last.args[0], made)
        if scores is None or not is_real(scores.queries, scores.keys):
            return None
        chain = (*scores.calls, *after)

        def own(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
            first = chain[0]
            out = first.on(*(() if first.name != "baddbmm" else first.tensors()[:1]), queries, keys)
            for each in chain[1:]:
                out = each.on(out, *each.tensors()[1:])
            return call.on(out, values)

        def other(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            alone = queries.dim() == 3
            three = (queries, keys.transpose(-1, -2), values)
            q, k, v = (
                each.to(values.dtype).unsqueeze(0) if alone else each.to(values.dtype) for each in three
            )
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=scores.mask, scale=scores.scale)
            return out.squeeze(0) if alone else out

        return Instead((scores.queries, scores.keys, values), own, (other,), chain)


def _scores(x: Any, made: Made) -> _Scores | None:
    call = made(x)
    if call is None:
        return None
    if call.name in _PRODUCTS and len(call.args) == 2:
        return _Scores((call,), *call.args)
    if call.name == "baddbmm" and call.kwargs.get("beta") == 0 and len(call.args) == 3:
        return _Scores((call,), *call.args[1:], scale=call.kwargs.get("alpha", 1.0))
    before = _scores(call.args[0], made) if call.args else None
    if before is None:
        return None
    before = replace(before, calls=(*before.calls, call))
    if call.name in _SAME:
        return before
    if len(call.args) < 2 or before.mask is not None:
        return None
    by = call.args[1]
    if call.name in ("mul", "div") and isinstance(by, (int, float)):
        return replace(before, scale=before.scale * (by if call.name == "mul" else 1 / by))
    if call.name == "add" and is_plain(by) and not by.requires_grad:
        return replace(before, mask=by.to(before.queries.dtype))
    hides = call.name == "masked_fill" and isinstance(call.args[2], (int, float)) and call.args[2] < _HIDDEN
    return replace(before, mask=by.logical_not()) if hides and is_plain(by) else None


_HIDDEN = -math.log(2.0**24) * 64
"""A score this low has no weight."""


class MaskSkipped(Way):
    """A mask that hides what comes later, or other windows, is said in a way that skips what it hides."""

    callee = "way:mask"
    shown = "attention with a mask"
    functions = ("scaled_dot_product_attention",)

    def instead(self, call: Call, made: Made) -> Instead | None:
        mask, rest = call.given(3, "attn_mask"), call.kwargs.keys() - {"attn_mask", "scale"}
        q, k, v = call.args[:3] if len(call.args) in (3, 4) else (None, None, None)
        if not is_real(q, k, v) or not is_plain(mask) or any(call.kwargs[name] for name in rest):
            return None
        allowed = _allowed(mask)
        if allowed is None or q.dim() < 3 or allowed.shape != (q.shape[-2], k.shape[-2]):
            return None
        scale = call.kwargs.get("scale")
        if len(allowed) == k.shape[-2] and bool((allowed == torch.ones_like(allowed).tril()).all()):
            return Instead((q, k, v), _with(call, mask), (_causal(scale),))
        width = int(allowed[0].sum())
        blocks = len(allowed) // max(width, 1)
        if blocks < 2 or blocks * width != len(allowed) or len(allowed) != k.shape[-2]:
            return None
        in_window = torch.arange(len(allowed), device=allowed.device) // width
        if not bool((allowed == (in_window[:, None] == in_window)).all()):
            return None
        return Instead((q, k, v), _with(call, mask), (_in_windows(blocks, scale),))


def _allowed(mask: torch.Tensor) -> torch.Tensor | None:
    """Return the pairs that a mask leaves, (length, length); None where samples differ, or it weighs."""
    pairs = once(mask)
    if math.prod(pairs.shape[:-2]) != 1 or mask.requires_grad:
        return None
    pairs = pairs.reshape(pairs.shape[-2:])
    if pairs.dtype is torch.bool:
        return pairs
    hidden = pairs < _HIDDEN
    return hidden.logical_not() if bool((hidden | (pairs == 0)).all()) else None


def _with(call: Call, mask: torch.Tensor) -> Any:
    scale = call.kwargs.get("scale")
    return lambda q, k, v: call.function(q, k, v, attn_mask=mask, scale=scale)


def _causal(scale: float | None) -> Any:
    return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


def _in_windows(blocks: int, scale: float | None) -> Any:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shape = (*q.shape[:-1], v.shape[-1])
        # (..., heads, length, width) -> (..., windows, heads, length of one, width)
        parts = [each.unflatten(-2, (blocks, -1)).transpose(-3, -4) for each in (q, k, v)]
        q, k, v = (each.reshape(-1, *each.shape[-3:]) for each in parts)
        out = functional.scaled_dot_product_attention(q, k, v, scale=scale)
        return out.unflatten(0, (-1, blocks)).transpose(-3, -4).reshape(shape)

    return attend
