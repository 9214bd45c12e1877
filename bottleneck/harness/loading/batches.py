"""What a typical batch is: its tensors, their size, padding, and whether workers duplicate samples.

In: batches as the loader hands them over, of any nesting. Out: `BatchFacts`. Every batch is walked
once, which for a pair of tensors takes a microsecond; values are read only for the first few, and
only where they lie in host memory.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from msgspec.structs import replace

from ...model.run import BatchFacts

MAX_TENSORS = 256
MAX_DEPTH = 4
MASKS_READ = 16
HASHED_BATCHES = 32
HASHED_BYTES = 4096
_SHORTEST = 8
"""Columns from which a table of integers may be one of sequences."""
_HARDLY = 0.01
FEW_SAMPLES = 16
"""Fewer samples than this tell nothing about duplicates."""


class BatchBook:
    """Keeps the facts of one loader's batches."""

    def __init__(self) -> None:
        self._count = 0
        self._first: BatchFacts | None = None
        self._shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._masked = 0
        self._mask_total = 0
        self._beyond = 0
        self._hashes: dict[int, int] = {}
        self._hashed = 0

    def note(self, batch: object, tensors: list[Any], *, several_workers: bool) -> None:
        """Look at one batch.

        `tensors` are those in it, as `tensors_of` gives them. Batches of an iterable dataset that several
        workers read are checked for duplicates.
        """
        self._count += 1
        if len(self._shapes) < 1024:
            self._shapes.add(tuple([tensor.shape for tensor in tensors]))
        if self._count <= 2:
            # The second one: the first may be special (a warm-up batch, an odd sampler).
            self._first = BatchFacts(
                bytes=sum(t.numel() * t.element_size() for t in tensors),
                memory_bytes=_memory_bytes(tensors),
                tensors=[_describe(t) for t in tensors],
                device=str(tensors[0].device) if tensors else "cpu",
                pinned=_is_pinned(tensors),
            )
        if self._count <= MASKS_READ:
            self._read_padding(batch, tensors)
        if several_workers and self._hashed < HASHED_BATCHES:
            self._hash_samples(tensors)

    def facts(self) -> BatchFacts | None:
        """Return the facts, or None when no batch was seen."""
        if self._first is None:
            return None
        return replace(
            self._first,
            distinct_shapes=len(self._shapes),
            padding_share=(round(1 - self._masked / self._mask_total, 4) if self._mask_total else None),
            beyond_share=(round(self._beyond / self._mask_total, 4) if self._mask_total else None),
        )

    def duplicated_share(self, *, workers: int) -> float | None:
        """Return the share of samples seen before, if workers of an iterable dataset repeat them.

        Workers that do not divide the data among themselves each yield all of it, so a sample
        comes once per worker. Constant synthetic data repeats far more often, which tells nothing.
        """
        total = sum(self._hashes.values())
        if total < FEW_SAMPLES or max(self._hashes.values(), default=0) > workers:
            return None
        return round(1 - len(self._hashes) / total, 4)

    def _read_padding(self, batch: object, tensors: list[Any]) -> None:
        """Count padded positions: by the mask under its usual name, by a mask's shape, or by the numbers."""
        named = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if isinstance(named, torch.Tensor) and named.device.type == "cpu" and named.numel():
            self._count_real(named != 0)
            return
        # A causal mask has the shape of nothing else.
        masks = (m for m in tensors if any(t is not m and t.shape[:2] == m.shape for t in tensors))
        found = chain(map(_real_positions, masks), map(_real_numbers, tensors))
        real = next((each for each in found if each is not None), None)
        if real is not None:
            self._count_real(real)

    def _count_real(self, real: Any) -> None:
        self._masked += int(real.sum())
        self._mask_total += real.numel()
        if real.dim() == 2:
            self._beyond += int((~real.any(0)).sum()) * len(real)

    def _hash_samples(self, tensors: list[Any]) -> None:
        self._hashed += 1
        for tensor in tensors[:1]:
            if tensor.device.type != "cpu" or tensor.dim() == 0:
                return
            for sample in tensor:
                flat = sample.detach().reshape(-1)[: HASHED_BYTES // max(1, tensor.element_size())]
                code = zlib.crc32(flat.contiguous().view(torch.uint8).numpy().tobytes())
                self._hashes[code] = self._hashes.get(code, 0) + 1


def tensors_of(batch: object) -> list[Any]:
    """Return the tensors of a nested batch: the first MAX_TENSORS, no deeper than MAX_DEPTH."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    found: list[Any] = []
    _collect(batch, found, MAX_DEPTH)
    return found


def size_of(tensors: list[Any]) -> tuple[int, int]:
    """Return (bytes, elements) of these tensors."""
    return sum([tensor.nbytes for tensor in tensors]), sum([tensor.numel() for tensor in tensors])


def _memory_bytes(tensors: list[Any]) -> int:
    """Return the size of what strided tensors are slices of."""
    storages = [t.untyped_storage() for t in tensors if t.layout is torch.strided]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _real_positions(mask: Any) -> Any | None:
    """Return the positions that a boolean mask marks as real; None if it marks no padding.

    A padding mask is one run per row, then the other value to the row's end (or the other way round), and
    the longest row has no padding. Whether True means real or padded differs between programs, so the value
    of that row is taken for real.
    """
    if mask.dtype != torch.bool or mask.dim() != 2 or mask.device.type != "cpu" or mask.shape[1] < 2:
        return None
    changes = mask[:, 1:] != mask[:, :-1]
    whole = ~changes.any(1)
    if bool((changes.sum(1) > 1).any()) or not bool(whole.any()) or bool(whole.all()):
        return None
    real = mask[whole, 0]
    value = real[0]
    begins, ends = mask[:, 0] == value, mask[:, -1] == value
    if bool((real != value).any()) or not (bool(begins.all()) or bool(ends.all())):
        return None
    return mask == value


def _real_numbers(numbers: Any) -> Any | None:
    """Return the positions before the ends of rows of integers; None where these do not look padded.

    Rows of tokens or neighbours that are padded end in one number, which hardly occurs before, and not all
    in as many of it.
    """
    if numbers.dtype != torch.int64 or numbers.dim() != 2 or numbers.device.type != "cpu":
        return None
    if numbers.shape[0] < 2 or numbers.shape[1] < _SHORTEST:
        return None
    filled = numbers == numbers[:, -1].mode().values
    padded = filled.flip(1).cumprod(1).flip(1).bool()
    length = (~padded).sum(1)
    ends = length < numbers.shape[1]
    inside = int((filled & ~padded).sum())
    if 2 * int(ends.sum()) < len(ends) or inside > _HARDLY * int(length.sum()) or len(length.unique()) == 1:
        return None
    return ~padded


def _collect(batch: object, found: list[Any], depth: int) -> None:
    inside: Iterable[object]
    # Exact types first: asking an abstract class takes a microsecond.
    if type(batch) in (list, tuple):
        inside = batch  # type: ignore[assignment]
    elif isinstance(batch, (str, bytes)):
        return
    elif isinstance(batch, Mapping):
        inside = batch.values()
    elif isinstance(batch, Sequence):
        inside = batch
    elif hasattr(batch, "__dict__"):
        # Objects such as torch_geometric's Batch or a dataclass of the user's.
        inside = list(vars(batch).values())
    else:
        return
    for number, value in enumerate(inside):
        if number >= MAX_TENSORS or len(found) >= MAX_TENSORS:
            return
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif depth and not isinstance(value, (int, float)):
            _collect(value, found, depth - 1)


def _describe(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _is_pinned(tensors: list[Any]) -> bool | None:
    # Asking creates a CUDA context where there is none yet.
    if not tensors or not torch.cuda.is_initialized() or tensors[0].device.type != "cpu":
        return None
    with contextlib.suppress(Exception):
        return bool(tensors[0].is_pinned())
    return None
