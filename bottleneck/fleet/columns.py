"""Columns of integers in a file: differences of neighbours, compressed.

In: arrays. Out: bytes, and the arrays again.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ints", "packed", "unpacked"]

Ints = NDArray[np.int64]


def packed(column: Ints) -> bytes:
    """Return the differences byte by byte, the lowest bytes first: most of the others are alike."""
    flat = np.diff(column.ravel(), prepend=np.int64(0)).astype("<i8")
    return zlib.compress(flat.view(np.uint8).reshape(-1, 8).T.tobytes(), 6)


def unpacked(data: bytes, count: int) -> Ints:
    """Return so many values again; no more is decompressed than they need.

    Raises:
        ValueError: the bytes are not those of `packed`, or of another number of values.
    """
    try:
        shuffled = np.frombuffer(zlib.decompressobj().decompress(data, 8 * count + 1), dtype=np.uint8)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(shuffled) != 8 * count:
        raise ValueError("a column of another length")
    flat = np.ascontiguousarray(shuffled.reshape(8, -1).T).view("<i8").ravel()
    return np.cumsum(flat, dtype=np.int64)
