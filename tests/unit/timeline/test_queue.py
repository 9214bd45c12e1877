"""What a launch call waits for room in the queue is no work of the host's."""

from __future__ import annotations

import numpy as np
import pytest

from torch_bottleneck.timeline.lanes.program import QUEUE_DEPTH
from torch_bottleneck.timeline.lanes.waits import Activities, EventKind, limit_full_queue

US = 1_000
KERNEL = 100 * US
PLAIN = 5 * US


def own_work(count: int, *, since: int, blocked: slice, first: int = PLAIN) -> np.ndarray:
    """Return each launch call's own work, ns: of so many, whose first kernel begins at `since` ns.

    A call takes 5 us, and one that is blocked as long as a kernel.
    """
    own = np.full(count, PLAIN, dtype=np.float64)
    own[blocked] = KERNEL
    own[0] = first
    start = np.concatenate([[0], own.cumsum()[:-1]]).astype(np.int64)
    begin = since + KERNEL * np.arange(count)
    numbers = np.arange(count)
    device = Activities(
        call_row=numbers, row=numbers, start=begin, end=begin + KERNEL, busy=np.full(count, float(KERNEL)),
        lane=np.zeros(count, dtype=np.int64), part=np.zeros(count, dtype=np.int8),
    )  # fmt: skip
    kind = np.full(count, EventKind.LAUNCH, dtype=np.int8)
    limit_full_queue(own, kind, start, device, numbers)
    return own


def test_a_queue_that_is_filled_here_blocks_the_calls_behind() -> None:
    own = own_work(2000, since=PLAIN, blocked=slice(1100, None))
    assert (own == PLAIN).all()


@pytest.mark.parametrize("count", [300, 700])
def test_a_queue_that_was_full_before_blocks_from_the_first_calls_on(count: int) -> None:
    """1,024 kernels from before lie ahead: fewer calls than fill a queue are blocked all the same."""
    own = own_work(count, since=QUEUE_DEPTH * KERNEL, blocked=slice(count // 5, None))
    assert (own == PLAIN).all()


def test_a_first_call_that_takes_long_did_not_wait_for_room() -> None:
    """20 ms before the first kernel begins are the call's own."""
    own = own_work(500, since=20_000 * US, blocked=slice(0), first=20_000 * US)
    assert own[0] == 20_000 * US


def test_calls_that_take_long_by_themselves_do_work() -> None:
    own = own_work(500, since=PLAIN, blocked=slice(100, 200))
    assert (own[100:200] == KERNEL).all()
