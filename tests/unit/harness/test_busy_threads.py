"""A thread that works is told from one that waits by what it uses of the processor."""

from __future__ import annotations

import queue
import sys
import threading
import time

from torch_bottleneck.harness.lines.busy_threads import SHORTEST_SECONDS, BusyThreads
from torch_bottleneck.model.run import BUSY_THREAD


def _work(stop: threading.Event) -> None:
    counts: dict[int, int] = {}
    while not stop.is_set():
        for i in range(100):
            counts[i] = counts.get(i, 0) + i


def _wait(inbox: queue.Queue[None]) -> None:
    inbox.get()


def _looks(seconds: float) -> BusyThreads:
    busy = BusyThreads()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.005)
        busy.look(sys._current_frames(), but=(threading.get_ident(),))
    return busy


def test_a_thread_that_works_is_named_and_one_that_waits_is_not() -> None:
    stop, inbox = threading.Event(), queue.Queue[None]()
    threads = [
        threading.Thread(target=_work, args=(stop,), daemon=True),
        threading.Thread(target=_wait, args=(inbox,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        found = _looks(8 * SHORTEST_SECONDS).entries()
    finally:
        stop.set()
        inbox.put(None)
        for thread in threads:
            thread.join(timeout=5)
    assert [(item.site.function, item.phase) for item in found] == [("_work", BUSY_THREAD)]


def test_a_short_time_says_nothing() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=_work, args=(stop,), daemon=True)
    thread.start()
    try:
        found = _looks(SHORTEST_SECONDS / 3).entries()
    finally:
        stop.set()
        thread.join(timeout=5)
    assert found == []
