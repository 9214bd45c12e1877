"""What tests of the harness share."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.ways import timing, watch


@pytest.fixture
def own_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ways are timed by what this thread works: who else uses the machine takes no part in it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for module in (timing, watch):
        monkeypatch.setattr(module, "perf_counter_ns", time.thread_time_ns)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(name="watch")
def _watch(own_clock: None) -> Iterator[watch.WayWatch]:
    if torch_private.dynamo_counter("stats", "unique_graphs"):
        torch._dynamo.utils.counters.clear()  # of what other tests compiled
    one = watch.WayWatch()
    yield one
    one.end()
