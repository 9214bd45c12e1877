"""When the gradients of a rank come, which DistributedDataParallel sends in buckets.

In: where gradients and buckets stand in own work, what DDP tells of its buckets. Out: `Gradients`, and its
form in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ..timeline.lanes.alone import Alone
from ..timeline.trace.table import NONE
from .collectives import Collectives
from .columns import Ints, packed, unpacked

__all__ = ["Gradients", "PackedGradients", "gradients_of", "pack_gradients", "unpack_gradients"]

_MOST = 4096
_LAUNCH, _DONE = 0, 1
"""Columns of `Alone.places` that `Alone.gradients` has, too."""


class PackedGradients(msgspec.Struct, frozen=True, kw_only=True):
    """Columns as bytes."""

    count: int = 0
    columns: dict[str, bytes] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Of one backward pass, in the order in which they are sent, (g,)."""

    size: Ints
    """Bytes."""
    bucket: Ints
    """Position of its bucket in the backward pass."""
    before_ns: Ints
    """(g, 2): own work between this gradient and its bucket being sent, at the pace of the host and of the
    device; 0 for the last one of a bucket."""

    def __len__(self) -> int:
        return len(self.size)


def gradients_of(alone: Alone | None, found: Collectives, buckets: Sequence[Sequence[int]]) -> Gradients:
    """Return the gradients of the last backward pass; none where they cannot be told.

    Args:
        alone: where gradients stand in own work.
        found: the collectives, among them the buckets.
        buckets: `Run.gradient_buckets`.
    """
    size = np.asarray([each for bucket in buckets for each in bucket], dtype=np.int64)
    bucket = np.repeat(np.arange(len(buckets)), [len(each) for each in buckets])
    nothing = Gradients(size=size[:0], bucket=bucket[:0], before_ns=np.zeros((0, 2), dtype=np.int64))
    if alone is None or not 0 < len(size) <= min(len(alone.gradients), _MOST):
        return nothing
    inside = (found.backward != NONE) & (found.alone[:, _LAUNCH] > alone.edges[-2, 0])
    last = found.backward[inside].max(initial=NONE)
    sent = found.alone[inside & (found.backward == last)]
    if len(sent) != len(buckets):
        return nothing
    there = alone.gradients[-len(size) :]
    before = np.maximum(sent[bucket][:, [_LAUNCH, _DONE]] - there, 0.0)
    # The hook of the last one sends the bucket.
    before[np.flatnonzero(np.diff(bucket, append=len(buckets)))] = 0.0
    return Gradients(size=size, bucket=bucket, before_ns=np.round(before).astype(np.int64))


def pack_gradients(found: Gradients) -> PackedGradients:
    """Return the columns as bytes."""
    if not len(found):
        return PackedGradients()
    columns = {"size": found.size, "bucket": found.bucket, "before": found.before_ns.T}
    return PackedGradients(
        count=len(found), columns={name: packed(column) for name, column in columns.items()}
    )


def unpack_gradients(stored: PackedGradients) -> Gradients:
    """Return the columns again.

    Raises:
        ValueError: the bytes are not those of `pack_gradients`.
    """
    n = stored.count
    if not 0 <= n <= _MOST or (n and not stored.columns.keys() >= {"size", "bucket", "before"}):
        raise ValueError("not the columns of gradients")
    if not n:
        none = np.zeros(0, dtype=np.int64)
        return Gradients(size=none, bucket=none, before_ns=np.zeros((0, 2), dtype=np.int64))
    found = Gradients(
        size=unpacked(stored.columns["size"], n),
        bucket=unpacked(stored.columns["bucket"], n),
        before_ns=unpacked(stored.columns["before"], 2 * n).reshape(2, n).T,
    )
    if found.size.min() < 0 or found.bucket[0] != 0 or not np.isin(np.diff(found.bucket), (0, 1)).all():
        raise ValueError("not the columns of gradients")
    return found
