"""How large a batch is: bytes and elements of the tensors in it.

In: whatever a loader yields. Out: two numbers. Looks at no more than 256 objects and never reads
tensor data.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["measure"]

MAX_OBJECTS = 256


def measure(batch: object) -> tuple[int, int]:
    """Return (bytes, elements) of the tensors in nested lists, tuples, mappings and dataclasses."""
    if isinstance(batch, torch.Tensor):
        count = batch.numel()
        return count * batch.element_size(), count
    total = elements = seen = 0
    stack = [batch]
    while stack and seen < MAX_OBJECTS:
        item = stack.pop()
        seen += 1
        if isinstance(item, torch.Tensor):
            count = item.numel()
            elements += count
            total += count * item.element_size()
        elif isinstance(item, (list, tuple)):
            stack.extend(item[:MAX_OBJECTS])
        elif isinstance(item, Mapping):
            stack.extend(item.values())
        elif hasattr(item, "__dataclass_fields__"):
            stack.extend(vars(item).values() if hasattr(item, "__dict__") else ())
    return total, elements
