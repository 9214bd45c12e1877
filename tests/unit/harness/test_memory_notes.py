"""What is noted beside a memory snapshot, and when. CUDA is stood in for: tensors are their addresses."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.facts.memory_notes import NoteBook, notes_path
from torch_bottleneck.harness.facts.out_of_memory import ARTEFACT, FailureWatch
from torch_bottleneck.harness.windows.phases import PhaseClock
from torch_bottleneck.harness.windows.table import Row
from torch_bottleneck.model.snapshot import MemoryNotes
from torch_bottleneck.runs.store import Store


class FakeTensor:
    """A CUDA tensor as far as the notes look at it."""

    def __init__(self, address: int, size: int, grad: FakeTensor | None = None) -> None:
        self.is_cuda = True
        self.device = SimpleNamespace(index=0)
        self.grad = grad
        self._storage = SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: size)

    def untyped_storage(self) -> Any:
        return self._storage


class Broken(FakeTensor):
    def untyped_storage(self) -> Any:
        raise NotImplementedError("Cannot access storage of a wrapper subclass")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _index: SimpleNamespace(total_memory=1000)
    )
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda *_device: 0.5, raising=False)


def optimizer_of(*parameters: FakeTensor) -> Any:
    return SimpleNamespace(param_groups=[{"params": list(parameters)}], state={})


def by_owner(notes: MemoryNotes) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for entry in notes.owners:
        found.setdefault(entry.owner, []).extend(zip(entry.address, entry.bytes, strict=True))
    return found


def test_addresses_of_parameters_gradients_and_state_are_noted(cuda: None) -> None:
    weight = FakeTensor(512, 400)
    optimizer = optimizer_of(weight, FakeTensor(512, 400), Broken(1, 1))
    book = NoteBook(PhaseClock(), lambda: [optimizer])
    book.start()
    weight.grad = FakeTensor(4096, 400)
    book.after_backward()
    weight.grad = None
    optimizer.state[weight] = {"step": 3, "exp_avg": torch.zeros(1)}
    notes = book.stop(ring_entries=9)
    found = by_owner(notes)
    assert set(found["parameters"]) == {(512, 400)}, "shared storages once, unreadable ones not at all"
    assert set(found["gradients"]) == {(4096, 400)}
    assert "optimizer state" not in found, "a state on the CPU holds no device memory"
    assert notes.capacity_bytes == 500, "the cap of the process counts"


def test_steps_and_phases_are_in_the_snapshots_clock(cuda: None) -> None:
    clock = PhaseClock()
    clock.enter("forward")
    clock.leave()
    book = NoteBook(clock, list)
    book.start()
    before = time.time()
    clock.enter("backward")
    clock.enter("data")
    clock.leave()
    clock.leave()
    book.rows = [Row(index=7, start_ns=1_000_000, wall_ms=2.5)]
    notes = book.stop(ring_entries=9)
    assert notes.phase == ["backward", "data"], "only the window's, outer before inner"
    assert notes.phase_end_us[0] >= notes.phase_end_us[1]
    # Two clocks, read one after the other.
    assert before - 0.1 <= notes.phase_begin_us[0] / 1e6 <= time.time() + 0.1
    assert notes.step_index == [7] and notes.step_end_us[0] - notes.step_begin_us[0] == 2500
    assert clock.log is None, "outside the window nothing is kept"


def test_a_closed_book_notes_no_gradients(cuda: None) -> None:
    book = NoteBook(PhaseClock(), lambda: [optimizer_of(FakeTensor(8, 8, FakeTensor(16, 8)))])
    book.after_backward()
    assert not book._owners


@pytest.fixture
def watched(
    cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[FailureWatch, Store, list[Any]]:
    observers: list[Any] = []

    def attach(observer: Any) -> bool:
        observers.append(observer)
        return True

    monkeypatch.setattr(torch_private, "watch_out_of_memory", attach)
    monkeypatch.setattr(
        torch.cuda.memory, "_dump_snapshot", lambda target: Path(target).write_bytes(b"snapshot")
    )
    store = Store(tmp_path / "run")
    book = NoteBook(PhaseClock(), lambda: [optimizer_of(FakeTensor(512, 400))])
    watch = FailureWatch(store, book, lambda: ("backward", 3, "baseline", threading.get_ident()))
    return watch, store, observers


def test_a_failed_allocation_leaves_a_snapshot_and_says_where(
    watched: tuple[FailureWatch, Store, list[Any]],
) -> None:
    watch, store, observers = watched
    watch.attach()
    watch.attach()
    assert len(observers) == 1
    observers[0](0, 700, 900, 50)
    artefact = store.run.artefacts[ARTEFACT]
    assert artefact.status == "ok" and artefact.path is not None
    snapshot = store.working / artefact.path
    notes = msgspec.json.decode(notes_path(snapshot).read_bytes(), type=MemoryNotes)
    failure = notes.failure
    assert failure is not None and notes.capacity_bytes == 900
    assert (failure.requested_bytes, failure.phase, failure.step) == (700, "backward", 3)
    assert failure.site is not None and failure.site.file == __file__
    assert by_owner(notes)["parameters"] == [(512, 400)]


def test_many_failures_are_dumped_a_few_times_into_one_file(
    watched: tuple[FailureWatch, Store, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, store, observers = watched
    watch.attach()
    dumped: list[str] = []
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dumped.append)
    for _ in range(9):
        observers[0](0, 1, 1, 1)
    assert len(dumped) == 3 and len(set(dumped)) == 1
    assert store.run.artefacts[ARTEFACT].status == "ok"


def test_what_goes_wrong_in_the_observer_never_reaches_the_script(
    watched: tuple[FailureWatch, Store, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, store, observers = watched

    def fail(target: str) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", fail)
    watch.attach()
    observers[0](0, 1, 1, 1)
    artefact = store.run.artefacts[ARTEFACT]
    assert artefact.status == "failed" and "disk full" in (artefact.reason or "")


def test_after_the_capture_the_observer_is_deaf(watched: tuple[FailureWatch, Store, list[Any]]) -> None:
    watch, store, observers = watched
    watch.attach()
    watch.detach()
    observers[0](0, 1, 1, 1)
    assert ARTEFACT not in store.run.artefacts


def test_without_an_observer_the_error_itself_leads_to_a_snapshot(
    watched: tuple[FailureWatch, Store, list[Any]],
) -> None:
    watch, store, _observers = watched
    try:
        raise torch.OutOfMemoryError("CUDA out of memory")
    except torch.OutOfMemoryError as error:
        watch.ended(error)
    snapshot = store.working / (store.run.artefacts[ARTEFACT].path or "")
    notes = msgspec.json.decode(notes_path(snapshot).read_bytes(), type=MemoryNotes)
    assert notes.failure is not None and notes.failure.site is not None
    assert notes.failure.site.file == __file__
