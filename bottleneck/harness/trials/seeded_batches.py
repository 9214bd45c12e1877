"""Random numbers that depend on the samples of a batch, not on the process that makes it.

In: the indices that a fetcher is asked for. Out: the same random transforms with 0 workers and with
8. For runs that compare losses: a moved random stream is no fault of a fix. Workers that are forked
inherit it; a dataset with a generator of its own keeps that.
"""

from __future__ import annotations

import contextlib
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data._utils import fetch as torch_fetch

from ..events.replacing import Replacements


class SeededBatches:
    """Seeds random, numpy and torch around each batch, and puts the main streams back."""

    def __init__(self) -> None:
        self._replaced = Replacements()

    def install(self) -> None:
        """Put it in, before any loader exists."""
        fetcher = getattr(torch_fetch, "_MapDatasetFetcher", None)
        if fetcher is not None:
            self._replaced.put(fetcher, "fetch", self._make_fetch)

    def uninstall(self) -> None:
        """Take it out."""
        self._replaced.undo()

    def _make_fetch(self, original: Any) -> Any:
        def fetch(fetcher: Any, indices: Any) -> Any:
            seed = zlib.crc32(repr(indices).encode())
            numpy = sys.modules.get("numpy")
            with random_numbers_kept():
                random.seed(seed)
                torch.random.default_generator.manual_seed(seed)
                if numpy is not None:
                    numpy.random.seed(seed)
                return original(fetcher, indices)

        return fetch


@contextlib.contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Put the streams of random, torch (CPU) and numpy back afterwards."""
    kept = random_states()
    try:
        yield
    finally:
        put_back_random(*kept)


def random_states() -> tuple[Any, Any, Any]:
    """Return where the streams of random, torch (CPU) and numpy stand; the last is None without numpy."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state(), None if numpy is None else numpy.random.get_state()


def put_back_random(of_python: Any, of_torch: Any, of_numpy: Any) -> None:
    """Put the streams back to what `random_states` returned."""
    random.setstate(of_python)
    torch.set_rng_state(of_torch)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)
