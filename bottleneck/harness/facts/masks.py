"""Which calls of fused attention get a mask, and whether it masks anything.

In: the calls of `torch.nn.functional.scaled_dot_product_attention` while FLOPs are counted, when nothing is
timed. Out: `MaskFacts` for run.json. Nothing is looked at where dynamo has compiled anything: the call is
part of a graph there.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch.nn import functional

from ...model.run import AttentionCall, MaskFacts, SiteTime, SourceSite
from .. import torch_private
from ..events.replacing import Replacements
from ..lines.sites import user_site
from ..ways.way import once

MASK = 3
"""Place of the mask among the arguments of fused attention."""
MOST_SHAPES = 4
"""As of matrix products; each is timed."""


def masks_nothing(mask: torch.Tensor) -> bool:
    """Return whether a mask leaves all scores as they are: True everywhere, or 0 where it is added."""
    numbers = once(mask)
    return bool(numbers.all()) if numbers.dtype is torch.bool else not bool(numbers.any())


def mask_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the mask of a call, or None where it has none or one that needs a gradient."""
    mask = args[MASK] if len(args) > MASK else kwargs.get("attn_mask")
    return mask if isinstance(mask, torch.Tensor) and not mask.requires_grad else None


def replace_attention(replaced: Replacements, make: Callable[[Any], Callable[..., Any]]) -> None:
    """Replace fused attention, in torch and in modules that have imported it by its name."""
    original = functional.scaled_dot_product_attention
    replaced.put(functional, "scaled_dot_product_attention", make)
    ours = functional.scaled_dot_product_attention
    for module, name in list(_bound_to(original)):
        replaced.set(module, name, ours)


def _bound_to(function: Any) -> Iterator[tuple[Any, str]]:
    for known_as, module in list(sys.modules.items()):
        if known_as.partition(".")[0] != "torch":
            names = getattr(module, "__dict__", {})
            yield from ((module, name) for name, value in list(names.items()) if value is function)


def _call(
    mask: torch.Tensor | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> AttentionCall:
    """Return what a call is known by."""
    _mask, dropout_p, is_causal = (
        args[i] if len(args) > i else kwargs.get(name, 0)
        for i, name in enumerate(("attn_mask", "dropout_p", "is_causal"))
    )
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    known_mask: dict[str, Any] = {"mask": ()}
    if mask is not None:
        kind = mask.dtype if mask.dtype is torch.bool else dtype
        sizes = zip(mask.shape, mask.stride(), strict=True)
        known_mask["mask"] = tuple(1 if step == 0 else size for size, step in sizes)
        known_mask["mask_dtype"] = str(kind).removeprefix("torch.")
    return AttentionCall(
        **known_mask,
        query=tuple(query.shape),
        key=tuple(key.shape),
        value=tuple(value.shape),
        dtype=str(dtype).removeprefix("torch."),
        gradients=torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)),
        dropout=float(dropout_p),
        causal=bool(is_causal),
    )


def _is_nested(query: torch.Tensor, *_args: object, **_kwargs: object) -> bool:
    return bool(query.is_nested)


def _most_work(calls: Counter[AttentionCall]) -> list[AttentionCall]:
    def work(call: AttentionCall) -> int:
        return calls[call] * math.prod(call.query) * call.key[-2]

    most = sorted(calls, key=work, reverse=True)[:MOST_SHAPES]
    return [msgspec.structs.replace(call, count=calls[call]) for call in most]


class MaskWatch:
    """One per process, on while steps are looked at."""

    def __init__(self) -> None:
        self._replaced = Replacements()
        self._calls = self._masked = 0
        self._idle: Counter[SourceSite | None] = Counter()
        self._shapes: Counter[AttentionCall] = Counter()
        self._single: Counter[AttentionCall] = Counter()

    def begin(self) -> None:
        """Look at calls from now on."""
        if not self._replaced.entries and not torch_private.dynamo_looks():
            replace_attention(self._replaced, self._make)

    def end(self) -> MaskFacts | None:
        """Look no more; None where attention was not called."""
        self._replaced.undo()
        if not self._calls:
            return None
        found = [(site, count) for site, count in self._idle.most_common() if site is not None]
        return MaskFacts(
            calls=self._calls,
            masked=self._masked,
            idle=self._idle.total(),
            sites=[SiteTime(site=site, phase="attention", count=count) for site, count in found],
            shapes=_most_work(self._shapes),
            single=_most_work(+self._single),
        )

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            mask = mask_of(args, kwargs)
            if torch_private.device_kind() != "cpu" and not _is_nested(*args, **kwargs):
                call = _call(mask, *args, **kwargs)
                self._single[call] += call.dtype == "float32"
            if mask is not None:
                self._masked += 1
                if masks_nothing(mask):
                    self._idle[user_site()] += 1
                    self._shapes[_call(mask, *args, **kwargs)] += 1
            return original(*args, **kwargs)

        return scaled_dot_product_attention
