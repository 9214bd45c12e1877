"""Functions that copy most of what they have made before, to add a little.

In: calls of torch's functions. Out: those whose result is for more than a half what an earlier call on the
same line has returned.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from ..lines.backward_graph import sequence_number
from ..lines.functions import tensors_of
from .seen_calls import Place, SeenCall

COPYING = frozenset({"cat", "concat", "concatenate", "hstack", "roll", "stack", "vstack"})
"""Functions that move numbers and compute none."""


class CopiesAgain:
    """Knows what each line has made by copying."""

    def __init__(self) -> None:
        self._made: defaultdict[Place | None, dict[int, Callable[[], object]]] = defaultdict(dict)
        """Weak references, by id."""
        self.carried: list[SeenCall] = []
        self.joins: dict[int, Place] = {}
        """Where a node of `torch.cat` was recorded, by its number. Whether it is needed shows the graph."""

    def note(self, call: SeenCall, inputs: Any, output: Any) -> None:
        """Note a call of one of `COPYING`. Of the first step it tells what was made, and no more."""
        if not isinstance(output, torch.Tensor):
            return
        if output.requires_grad:
            number = sequence_number(output.grad_fn) if output.grad_fn is not None else None
            if number is not None and call.at is not None:
                self.joins[number] = call.at
            return
        made = self._made[call.at]
        for tensor in tensors_of(inputs):
            whole = tensor if tensor._base is None else tensor._base
            is_own = id(whole) in made and made[id(whole)]() is whole
            if is_own and call.later and 2 * tensor.numel() > output.numel():
                self.carried.append(call)
        made[id(output)] = weakref.ref(output)
