"""Which memory of the host is copied to the device and stays as it is: copied once, it could live there.

In: tensors that are copied while copies are labelled. Out: `CopyFacts` for run.json. What a loader makes for
one step is gone with that step, or overwritten by the next. A rollout that is passed over several times, a
dataset that is one tensor, a constant mask stay, and several steps copy from them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

import torch

from ...model.run import CopyFacts, SiteTime, SourceSite
from .. import torch_private

_MOST: Final = 2_000
"""Copies that are looked at."""
_PIECES, _PIECE_BYTES = 8, 16
"""Of a tensor's memory, as many pieces of this size tell whether it has changed."""
OUTLIVED: Final = 2
"""Steps: the batch of the last one still has its name in the script, and one may be prepared ahead."""


def _look_at(address: int, length: int) -> bytes:
    size = min(_PIECE_BYTES, length)
    places = {(length - size) * k // (_PIECES - 1) for k in range(_PIECES)}
    return b"".join(ctypes.string_at(address + place, size) for place in sorted(places))


@dataclass(frozen=True, slots=True)
class Source:
    """What a copy reads: a stretch of a storage, which this does not keep alive."""

    memory: torch_private.WeakStorage
    offset: int
    """Bytes, from the beginning of the storage."""
    length: int
    """Bytes, between the first and the last element."""
    look: bytes
    tensor: weakref.ref[torch.Tensor]
    version: int
    """Of the tensor; -1 for one that has none."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Source | None:
        """Return it, or None for a tensor without memory of its own here, or one that is trained."""
        if tensor.requires_grad or tensor.layout is not torch.strided or not tensor.numel():
            return None
        try:
            address, storage = tensor.data_ptr(), tensor.untyped_storage()
            begin = storage.data_ptr()
        except RuntimeError:  # fake tensors, and those inside vmap
            return None
        if not begin:
            return None
        steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        length = (steps + 1) * tensor.element_size()
        return cls(
            torch_private.WeakStorage(storage),
            address - begin,
            length,
            _look_at(address, length),
            weakref.ref(tensor),
            -1 if tensor.is_inference() else tensor._version,
        )

    def stays(self) -> int:
        """Return the bytes of the whole storage, or 0 if it is gone or this stretch has changed."""
        storage, tensor = self.memory.now(), self.tensor()
        if storage is None or storage.nbytes() < self.offset + self.length:
            return 0
        if tensor is not None and self.version not in (-1, tensor._version):
            return 0
        same = _look_at(storage.data_ptr() + self.offset, self.length) == self.look
        return storage.nbytes() if same else 0


@dataclass(frozen=True, slots=True)
class _Copy:
    step: int
    bytes: int
    source: Source
    site: SourceSite | None


class CopiedBook:
    """One per process."""

    def __init__(self) -> None:
        self._copies: list[_Copy] = []

    def note(self, tensor: torch.Tensor, step: int, site: SourceSite | None) -> None:
        """A tensor of the host is copied to the device in this step, at this line of the user's."""
        if len(self._copies) < _MOST:
            source = Source.of(tensor)
            if source is not None:
                size = tensor.numel() * tensor.element_size()
                self._copies.append(_Copy(step, size, source, site))

    def facts(self, step: int) -> CopyFacts | None:
        """Look at what has become of it in this step, and forget it; None where there is nothing to tell."""
        judged = [copy for copy in self._copies if copy.step <= step - OUTLIVED]
        self._copies = []
        if not judged:
            return None
        steps: defaultdict[int, set[int]] = defaultdict(set)
        for copy in judged:
            steps[copy.source.memory.key].add(copy.step)
        kept: list[_Copy] = []
        others: list[_Copy] = []
        held: dict[int, int] = {}
        for copy in judged:
            key = copy.source.memory.key
            # What a script collects, step by step, it may never copy again.
            size = copy.source.stays() if len(steps[key]) > 1 else 0
            (kept if size else others).append(copy)
            if size:
                held[key] = size
        lines = Counter(copy.site for copy in kept if copy.site is not None)
        return CopyFacts(
            calls=len(judged),
            bytes=sum(copy.bytes for copy in judged),
            kept_calls=len(kept),
            kept_bytes=sum(copy.bytes for copy in kept),
            kept_sizes=sorted({copy.bytes for copy in kept} - {copy.bytes for copy in others}),
            held_bytes=sum(held.values()),
            sites=[SiteTime(site=site, phase="h2d", count=count) for site, count in lines.most_common()],
        )
