"""Fused attention where modules that are known can be told to use it.

In: root modules. Out: their attention through `scaled_dot_product_attention`: by the switch of timm, of
transformers, or of GPTs after nanoGPT's pattern, and in `nn.MultiheadAttention` by not asking for weights
that most callers drop. Attention that is written out in the script is left alone: it has no switch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...facts.masks import MASK, mask_of, masks_nothing, replace_attention
from .base import NotSwitchable, Patch, Program, plural
from .roots import RootPatch

_FLAGS = ("fused_attn", "flash")
"""Attributes by which an attention module chooses: timm's, and nanoGPT's."""
_IMPLEMENTATION = "_attn_implementation"
"""Of a configuration of transformers."""


class NoIdleMask(Patch):
    """Masks that mask nothing are not passed on to fused attention."""

    fix = "FX323"
    live = True
    for_ranks = True
    is_guarded = True
    says = ("no mask in {} of fused attention", "call")
    nothing_to_do = "no call of fused attention outside compiled code had a mask that masks nothing"

    def install(self) -> None:
        replace_attention(self.replaced, self._make)

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            mask = mask_of(args, kwargs)
            if mask is not None and masks_nothing(mask):
                self.acted_here()
                kwargs.pop("attn_mask", None)
                if len(args) > MASK:
                    args = (*args[:MASK], None, *args[MASK + 1 :])
            return original(*args, **kwargs)

        return scaled_dot_product_attention


class HalvedAttention(Patch):
    """Fused attention gets 16 bits where its inputs have come to float32, and hands out float32."""

    fix = "FX345"
    live = True
    for_ranks = True
    is_guarded = True
    says = ("16 bits in {} of fused attention", "call")
    nothing_to_do = "no call of fused attention outside compiled code got float32"

    def install(self) -> None:
        self._half = torch.bfloat16
        replace_attention(self.replaced, self._make)

    def put_in(self, program: Program) -> None:
        super().put_in(program)
        kinds = [each.dtype for root in program.roots for each in root.parameters()]
        if torch.float16 in kinds and torch.bfloat16 not in kinds:
            self._half = torch.float16

    def _make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            floats = [each for each in given if each.is_floating_point()]
            full = bool(floats) and all(each.dtype is torch.float32 for each in floats)
            # Autocast casts them itself.
            if not full or torch.is_autocast_enabled(floats[0].device.type):
                return original(*args, **kwargs)
            self.acted_here()
            args = tuple(self._halved(each) for each in args)
            kwargs = {name: self._halved(each) for name, each in kwargs.items()}
            return original(*args, **kwargs).float()

        return scaled_dot_product_attention

    def _halved(self, value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(self._half) if is_float else value


class FusedAttention(RootPatch):
    """One call in place of matmul, softmax, matmul."""

    fix = "FX306"
    for_ranks = True
    nothing_to_do = "no attention module with a switch is called: it is written out in the script"

    def _watch(self, kinds: set[type]) -> None:
        super()._watch(kinds)
        self._undo: list[Callable[[], None]] = []
        self._without_weights = 0
        self.replaced.put(torch.nn.MultiheadAttention, "forward", self._make_forward)

    def put_in(self, program: Program) -> None:
        """Switch the modules between two steps."""
        super().put_in(program)
        for root in program.roots:
            self._roots[root] = self.takes(root)
        parts = (part for root in program.roots for part in root.modules())
        if not self.count and not any(isinstance(part, torch.nn.MultiheadAttention) for part in parts):
            raise NotSwitchable("; ".join(self.reasons) or self.nothing_to_do)

    def uninstall(self) -> None:
        super().uninstall()
        while self._undo:
            self._undo.pop()()

    def takes(self, module: torch.nn.Module) -> bool:
        if not super().takes(module):
            return False
        for part in module.modules():
            for use, undo in _switches(part):
                try:
                    use()
                except ValueError as error:
                    # Transformers: this model has no such implementation.
                    self.passed(str(error).split(".")[0])
                else:
                    self._undo.append(undo)
                    self.acted(None)
        return bool(self._undo)

    def _make_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            if len(args) < 2 and kwargs.get("need_weights", True):
                self._without_weights += 1
                self.count += 1
                kwargs["need_weights"] = False
            return original(module, query, key, value, *args, **kwargs)

        return forward

    def evidence(self) -> str:
        calls = plural(self._without_weights, "call")
        return f"fused attention switched on in {plural(len(self._undo), 'module')}, no weights in {calls}"


def _switches(part: Any) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Yield what turns fused attention on in a module, and what turns it off again."""
    for name in _FLAGS:
        if vars(part).get(name) is False:
            yield functools.partial(setattr, part, name, True), functools.partial(setattr, part, name, False)
    choose, config = getattr(part, "set_attn_implementation", None), getattr(part, "config", None)
    if choose is not None and getattr(config, _IMPLEMENTATION, "") == "eager":
        yield functools.partial(choose, "sdpa"), functools.partial(choose, "eager")
