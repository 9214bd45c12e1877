"""What tests of the harness share."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.trials.patches import equivalents
from torch_bottleneck.harness.ways import timing, watch
from torch_bottleneck.harness.ways.timing import Timed, Took
from torch_bottleneck.harness.ways.way import Instead


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests of this process have compiled."""
    monkeypatch.setattr(torch_private, "dynamo_looks", lambda: False)


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
    if torch_private.dynamo_looks():
        torch._dynamo.utils.counters.clear()  # of what other tests compiled
    one = watch.WayWatch()
    yield one
    one.end()


def _half(instead: Instead) -> Timed | None:
    """Time a way as if it took half of what the call takes, wherever it gives the same."""
    graded = [each.detach().requires_grad_(each.requires_grad) for each in instead.inputs]
    own, other = (timing._Runs(each, tuple(graded)) for each in (instead.own, instead.others[0]))
    works = own.worked and other.worked and timing._agree(instead, own, other)
    return Timed(Took(2, 2, 2), Took(1, 1, 1), 0, instead.calls) if works else None


@pytest.fixture
def each_way_takes_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is faster on this machine, and how surely, is not asked here."""
    for module in (watch, equivalents):
        monkeypatch.setattr(module, "timed", _half)
