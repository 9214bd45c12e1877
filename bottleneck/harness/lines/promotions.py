"""The user's lines at which 16 bits become 32: a factor in float32 makes all that comes of it float32.

In: the calls of torch's functions of a step, with what they return. Out: the lines where tensors of both
kinds meet and the result is float32, those with most elements first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any

import torch

from ...model.run import SourceSite
from .chains import sites_leading_to
from .functions import tensors_of

_HALVES = {torch.float16, torch.bfloat16}
_ASKS_FOR_IT = ("to", "type_as")
"""Names of functions that are told which type to make."""
_MOST_ARGUMENTS = 8
_MOST_LINES = 5


class Promotions:
    """On while steps are looked at."""

    def __init__(self) -> None:
        self._elements: Counter[SourceSite] = Counter()

    def note(self, caller: FrameType, function: Callable[..., Any], args: Any, output: Any) -> None:
        """A function has returned."""
        # What a script's own kind of tensor does when it is asked is not to happen.
        with torch._C.DisableTorchFunctionSubclass():
            if getattr(function, "__name__", "") in _ASKS_FOR_IT or not self._becomes_full(args, output):
                return
            elements = output.numel()
        for site in sites_leading_to(caller)[:1]:
            self._elements[site] += elements

    @staticmethod
    def _becomes_full(args: Any, output: Any) -> bool:
        if not isinstance(output, torch.Tensor) or output.dtype is not torch.float32 or not output.dim():
            return False
        given = list(islice(tensors_of(args), _MOST_ARGUMENTS))
        # A number decides about no type, also in a tensor; a sum that is kept in float32 is meant to be.
        kinds = {each.dtype for each in given if each.dim()}
        return torch.float32 in kinds and bool(kinds & _HALVES) and all(each is not output for each in given)

    def found(self) -> list[SourceSite]:
        """Return the lines."""
        return [site for site, _ in self._elements.most_common(_MOST_LINES)]

    def forget(self) -> None:
        """Let go of what is known of the script."""
        self._elements = Counter()
