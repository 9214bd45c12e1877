"""A thread that works is told from one that waits by what it uses of the processor."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from torch_bottleneck.harness.lines.busy_threads import SHORTEST_SECONDS, BusyThreads
from torch_bottleneck.model.run import BUSY_THREAD


def _work(stop: threading.Event) -> None:
    counts: dict[int, int] = {}
    while not stop.is_set():
        for i in range(100):
            counts[i] = counts.get(i, 0) + i


def _wait(inbox: queue.Queue[None]) -> None:
    inbox.get()


def _look(busy: BusyThreads) -> None:
    busy.look(threading.get_ident(), but=0)


def test_a_thread_that_works_is_named_and_one_that_waits_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that stands still while other programs have the processors.
    monkeypatch.setattr("torch_bottleneck.harness.lines.busy_threads.monotonic", time.process_time)
    stop, inbox = threading.Event(), queue.Queue[None]()
    threads = [
        threading.Thread(target=_work, args=(stop,), daemon=True),
        threading.Thread(target=_wait, args=(inbox,), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        busy, until = BusyThreads(), time.process_time() + 8 * SHORTEST_SECONDS
        while time.process_time() < until:
            time.sleep(0.005)
            _look(busy)
        found = busy.entries()
    finally:
        stop.set()
        inbox.put(None)
        for thread in threads:
            thread.join(timeout=600)
    assert [(item.site.function, item.phase) for item in found] == [("_work", BUSY_THREAD)]
    # Of the processor time of all, by this clock; the looks take the rest.
    assert found[0].share is not None and 0.3 < found[0].share <= 1.0


def test_a_short_time_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("torch_bottleneck.harness.lines.busy_threads.monotonic", lambda: now[0])
    stop = threading.Event()
    thread = threading.Thread(target=_work, args=(stop,), daemon=True)
    thread.start()
    try:
        busy, began = BusyThreads(), time.process_time()
        _look(busy)
        while time.process_time() < began + 3 * SHORTEST_SECONDS:
            _look(busy)
        now[0] = SHORTEST_SECONDS / 3
        short = busy.entries()
        now[0] = SHORTEST_SECONDS
        assert busy.entries(), "or the thread did nothing"
    finally:
        stop.set()
        thread.join(timeout=600)
    assert short == []


def test_what_a_thread_used_is_known_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [0.0], [2_000_000_000]
    monkeypatch.setattr("torch_bottleneck.harness.lines.busy_threads.monotonic", lambda: now[0])
    monkeypatch.setattr(
        "torch_bottleneck.harness.lines.busy_threads.computing_waited_ns", lambda _training: waited[0]
    )
    stop, busy = threading.Event(), BusyThreads()
    assert busy.waited_share() is None
    thread = threading.Thread(target=_work, args=(stop,), daemon=True)
    thread.start()
    try:
        began = time.process_time()
        while time.process_time() < began + 3 * SHORTEST_SECONDS:
            _look(busy)
        busy.end()
        assert busy.waited_share() is None, "no time has passed"
        now[0], waited[0] = 1.0, 2_250_000_000
        busy.end()
    finally:
        stop.set()
        thread.join(timeout=600)
    now[0] = 50.0
    assert [item.site.function for item in busy.entries()] == ["_work"]
    assert busy.waited_share() == 0.25
