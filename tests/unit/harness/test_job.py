"""The account of a job, its file of steps and what a look sees: rows, samples and frames made by hand."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_bottleneck.harness import cores as cores_module
from torch_bottleneck.harness.cores import CoreShare
from torch_bottleneck.harness.job import beside as beside_module
from torch_bottleneck.harness.job import memory as memory_module
from torch_bottleneck.harness.job.account import Account, Counted, Evaluated, Sample, Stretch, waited_in
from torch_bottleneck.harness.job.beside import Beside
from torch_bottleneck.harness.job.looks import APART, LOOKS, Grown, Looks
from torch_bottleneck.harness.job.memory import MemoryWatch
from torch_bottleneck.harness.job.nvml import DeviceState
from torch_bottleneck.harness.job.series import POINTS, Series
from torch_bottleneck.harness.job.watch import JobWatch
from torch_bottleneck.harness.lines.sites import names_in
from torch_bottleneck.harness.windows.table import Row
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.watch import Growth, JobRecord
from torch_bottleneck.runs.store import Store

MS = 1_000_000
LINE = SourceSite(file="train.py", line=9, function="main")


def row(index: int, ms: float = 10.0, **phases_ms: float) -> Row:
    """A step of which 8 ms lie in phases."""
    phases = {"data": 1.0, "forward": 3.0, "backward": 3.0, "optimizer": 1.0, **phases_ms}
    return Row(
        index=index,
        start_ns=index * 1000 * MS,
        wall_ms=ms,
        phases_ns={name: round(value * MS) for name, value in phases.items()},
    )


def account_of(*odd: Stretch, samples: list[Sample] | None = None) -> dict[str, float]:
    """Return ms by part of 60 usual steps and these; and check that they add up."""
    account, total = Account(), 0.0
    for stretch in [Stretch(row(i)) for i in range(60)]:
        account.step(stretch, [])
        total += stretch.row.wall_ms
    for stretch in odd:
        account.step(stretch, samples or [])
        total += stretch.row.wall_ms
    account.settle()
    parts = account.parts()
    assert abs(sum(part.s for part in parts.values()) * 1e3 - total) < 0.01
    return {name: round(part.s * 1e3, 3) for name, part in parts.items()}


def test_usual_steps_are_training() -> None:
    assert account_of() == {"training steps": 600.0}


def test_a_step_keeps_its_usual_time_and_the_rest_goes_to_what_has_a_clock() -> None:
    save = row(60, 45.0, checkpoint=35.0)
    assert account_of(Stretch(save)) == {"training steps": 610.0, "checkpoints": 35.0}
    start = row(60, 210.0, data=201.0)
    assert account_of(Stretch(start, starting=(201 * MS, LINE))) == {
        "training steps": 610.0,
        "epoch starts": 200.0,
    }
    collected = row(60, 25.0)
    collected.gc_ms = 15.0
    assert account_of(Stretch(collected)) == {"training steps": 610.0, "garbage collections": 15.0}
    assert account_of(Stretch(row(60, 2010.0), paused_ns=2000 * MS))["pauses"] == 2000.0


def test_a_job_that_saves_in_every_step_has_a_usual_step() -> None:
    account = Account()
    took = [account.step(Stretch(row(i, 60.0, checkpoint=50.0)), []) for i in range(60)]
    assert took[-1] == account.usual_ms == pytest.approx(10.0)
    parts = {part: round(time.s * 1e3, 3) for part, time in account.parts().items()}
    assert parts == {"training steps": 600.0, "checkpoints": 3000.0}


def test_validation_takes_its_span_and_what_comes_after_it_does_not() -> None:
    validated = row(60, 510.0, evaluation=100.0)
    validated.validation = True
    evaluated = Evaluated(begin_ns=0, end_ns=400 * MS, saved_ns=0, outside_ns=300 * MS)
    parts = account_of(Stretch(validated, evaluated=evaluated))
    assert parts["validation"] == 400.0
    assert parts["between steps"] == 100.0
    assert parts["training steps"] == 610.0


def test_a_late_compilation_is_a_recompilation_and_an_early_one_is_of_the_first_steps() -> None:
    late = row(60, 310.0, forward=303.0)
    late.compiled = True
    assert account_of(Stretch(late))["recompilations"] == 300.0
    account = Account()
    for i in range(60):
        account.step(Stretch(row(i, 510.0 if i == 0 else 10.0, forward=503.0 if i == 0 else 3.0)), [])
    assert round(account.parts()["first steps"].s, 6) == 0.5


def test_a_slow_forward_stays_a_step_and_time_outside_of_phases_does_not() -> None:
    assert account_of(Stretch(row(60, 40.0, forward=33.0))) == {"training steps": 640.0}
    samples = [Sample(0, 50 * MS, "", LINE)]
    account = account_of(Stretch(row(60, 60.0)), samples=samples)
    assert account == {"training steps": 610.0, "between steps": 50.0}


def counted_in(account: Account, steps_ms: list[float], *samples: Sample, **more: Any) -> list[float]:
    """Add 60 usual steps, and steps of which only the ends are known; check that they add up."""
    for i in range(60):
        account.step(Stretch(row(i)), [])
    ends = [0]
    for step_ms in steps_ms:
        ends.append(ends[-1] + round(step_ms * MS))
    took = account.counted(Counted(60, ends, more.pop("garbage_ns", [])), list(samples), paused_ns=0, **more)
    assert abs(sum(part.s for part in account.parts().values()) * 1e3 - 600 - sum(steps_ms)) < 0.01
    assert account.steps == 60 + len(steps_ms)
    return took


def test_steps_of_which_only_the_ends_are_known_are_training_steps() -> None:
    account = Account()
    took = counted_in(account, [10.0, 11.0, 35.0], garbage_ns=[(15 * MS, 2 * MS)])
    assert took == [10.0, 9.0, 35.0]
    parts = account.parts()
    assert round(parts["training steps"].s * 1e3, 3) == 654.0
    assert round(parts["garbage collections"].s * 1e3, 3) == 2.0
    assert parts["training steps"].count == 63


def test_of_a_long_step_of_them_the_samples_tell_what_lies_outside() -> None:
    account = Account()
    logged = [Sample((20 + 50 * i) * MS, 50 * MS, "", LINE) for i in range(2, 6)]
    counted_in(account, [10.0, 10.0, 300.0], Sample(90 * MS, 50 * MS, "forward", None), *logged)
    parts = account.parts()
    assert 0.2 < parts["between steps"].s < 0.29
    assert parts["between steps"].places[0].site == LINE
    # The same line in a usual step: it is part of a step that was slow.
    account = Account()
    known = Sample(5 * MS, 5 * MS, "", LINE)
    account.step(Stretch(row(0)), [known])
    account = Account()
    for i in range(40):
        account.step(Stretch(row(i)), [known])
    account.counted(Counted(40, [0, 300 * MS], []), logged, paused_ns=0)
    assert "between steps" not in account.parts()


def test_looks_miss_most_of_what_is_short_and_those_that_do_not_stand_for_it() -> None:
    account, ends, seen = Account(), [0], []
    for i in range(400):
        ends.append(ends[-1] + (160 if i % 20 == 19 else 10) * MS)
    for at_ns in range(0, ends[-1], 310 * MS):
        step = next(i for i, end in enumerate(ends) if at_ns < end) - 1
        seen.append(Sample(at_ns, 310 * MS, "", LINE if step % 20 == 19 else None))
    for i in range(40):
        account.step(Stretch(row(i)), [Sample(0, MS, "", None)])
    account.counted(Counted(40, ends, []), seen, paused_ns=0)
    part = account.parts()["between steps"]
    assert 13 <= part.count < 20
    assert 0.65 * 20 * 150 < part.s * 1e3 <= 20 * 150


def test_a_step_that_waits_for_a_core_is_a_slower_one() -> None:
    new = Sample(30 * MS, 300 * MS, "", LINE, waited_ns=50 * MS)
    waits = waited_in([new, Sample(330 * MS, 300 * MS, "", LINE, waited_ns=50 * MS)], 0, 60 * MS)
    assert waits == 60 * MS
    waited = Stretch(row(60, 60.0), waited_ns=waits)
    assert account_of(waited, samples=[new]) == {"training steps": 660.0}


def memory_of(
    monkeypatch: pytest.MonkeyPatch, used: list[float], *, free: float = 1e10, steps: Sequence[int] = ()
) -> MemoryWatch:
    """Look at a process that uses so many bytes, four times a second."""
    watch = MemoryWatch()
    monkeypatch.setattr(memory_module, "_free", lambda where: int(free))
    for i, value in enumerate(used):
        monkeypatch.setattr(memory_module, "_used", lambda value=value: [("host", int(value))])
        watch.look(i * 250 * MS + 1, steps[i] if steps else i * 10)
    return watch


def test_memory_that_grows_is_told_with_the_time_until_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    wave = [1e6 * ((i * 7) % 5) for i in range(200)]
    watch = memory_of(monkeypatch, [3e8 + 1e6 * i + w for i, w in enumerate(wave)])
    (grown,) = watch.grown(200 * 250 * MS)
    assert grown.where == "host"
    assert grown.low < 4e6 < grown.high
    assert grown.bytes_per_step == pytest.approx(1e5, rel=0.1)
    assert grown.full_in_s == pytest.approx(2500, rel=0.1)
    assert grown.limit_bytes == grown.used_bytes + 10**10
    # It lasts for a year.
    assert not memory_of(monkeypatch, [3e8 + 1e6 * i for i in range(200)], free=1e15).grown(200 * 250 * MS)


def test_memory_that_grows_is_noticed_while_the_job_runs_however_long_the_machine_has_been_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clocks count from the machine's start, and a job is asked before its first look."""
    watch, up = MemoryWatch(), 10**16
    monkeypatch.setattr(memory_module, "_free", lambda where: 10**10)
    assert watch.grown(up) == []
    for i in range(60):
        monkeypatch.setattr(memory_module, "_used", lambda i=i: [("host", 3 * 10**8 + i * 10**6)])
        watch.look(up + i * 250 * MS, i * 10)
        watch.grown(up + i * 250 * MS)
    assert watch.grown(up + 60 * 250 * MS) != []


def test_memory_that_fills_up_at_the_beginning_is_no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    wave = [1e6 * ((i * 7) % 5) for i in range(700)]
    filled = [6e8 - 3e8 * 0.97**i + w for i, w in enumerate(wave)]
    assert not memory_of(monkeypatch, filled).grown(10**12)
    assert not memory_of(monkeypatch, [5e8 + w for w in wave]).grown(10**12)
    # A machine that becomes slower leaves the growth of a step as it is.
    slower = [3e8 + 1e6 * min(i, 175 + i // 4) + w for i, w in enumerate(wave)]
    steps = [10 * min(i, 175 + i // 4) for i in range(700)]
    assert memory_of(monkeypatch, slower, steps=steps).grown(10**12)
    assert not memory_of(monkeypatch, slower).grown(10**12)
    stepped = [3e8 + (2e8 if i > 300 else 0) + w for i, w in enumerate(wave)]
    assert not memory_of(monkeypatch, stepped).grown(10**12)


def test_the_memory_of_this_process_and_what_is_left_to_it_can_be_read() -> None:
    ((where, used),) = [found for found in memory_module._used() if found[0] == "host"]
    assert 10**6 < used < 10**12
    assert memory_module._free(where) > 0


def test_beside_a_change_of_pace_phases_and_load_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, busy = Beside(), 0.0
    monkeypatch.setattr(beside_module, "process_time_ns", lambda: 0)
    monkeypatch.setattr(beside_module, "_clock", lambda: 3000.0)
    for i in range(20):
        busy += 0.2 if i < 10 else 1.7
        monkeypatch.setattr(beside_module, "_busy", lambda busy=busy: busy)
        machine.add(row(i) if i < 11 else row(i, 16.0, forward=9.0))
        machine.look(i * 1000 * MS, i)
    forward, load = machine.told(10)
    assert forward == "forward takes 9 ms instead of 3"
    assert load.startswith("other processes use 1.7 of") and load.endswith("instead of 0.2")
    assert machine.told(1) == []


def test_beside_a_change_of_pace_batches_and_cores_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Beside()
    monkeypatch.setattr(beside_module, "_busy", lambda: None)
    for i in range(20):
        machine.batch = 4096 if i < 11 else 8192
        monkeypatch.setattr(beside_module, "_cores", lambda thread, i=i: 8 if i < 11 else 1)
        machine.look(i * 1000 * MS, i, thread=7, with_core=0.98 if i < 11 else 0.4)
    assert machine.told(10)[-3:] == [
        "a batch holds 8192 numbers instead of 4096",
        "cores that the training may use: 1 instead of 8",
        "the training waits for a core in 60% of the time instead of 2%",
    ]


def test_beside_a_change_nothing_is_told_that_did_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Beside()
    monkeypatch.setattr(beside_module, "_busy", lambda: None)
    for i in range(20):
        machine.add(row(i))
        machine.look(i * 1000 * MS, i)
    assert machine.told(10) == []


def test_few_long_steps_are_divided_before_the_job_ends() -> None:
    account = Account()
    for i in range(4):
        account.step(Stretch(row(i, 10_000.0, forward=9_000.0)), [])
    assert account.parts()["training steps"].s > 20


def test_outside_of_steps_samples_divide_and_what_none_covers_is_unexplained() -> None:
    account = Account()
    seen = [Sample(1, 300 * MS, "importing", LINE), Sample(2, 500 * MS, "", LINE)]
    account.outside(seen, part="set-up", took_ns=1000 * MS)
    parts = account.parts()
    assert parts["interpreter and imports"].s == 0.3
    assert parts["set-up"].s == 0.5
    assert parts["unexplained"].s == 0.2
    assert parts["set-up"].places[0].site == LINE


def test_after_the_last_step_a_whole_step_that_nothing_ended_counts() -> None:
    tail = Stretch(row(60, 110.0), tail=True, whole=True)
    parts = account_of(tail, samples=[Sample(0, 100 * MS, "", LINE)])
    assert parts["training steps"] == 608.0
    assert parts["after the last step"] == 100.0


def test_a_million_steps_take_less_than_a_megabyte(tmp_path: Path) -> None:
    series = Series(tmp_path / "steps.jsonl")
    for i in range(1_000_000):
        series.add(i, [123.4567 + i % 7])
        if i % 10_000 == 0:
            series.write()
    series.write()
    assert 0 < (tmp_path / "steps.jsonl").stat().st_size < 1_000_000
    assert len(series._points) < POINTS
    assert series.best_ms is not None and 123 < series.best_ms < 131


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_time_without_a_core_is_neither_growth_nor_its_end(
    tmp_path: Path, *, grows: bool, known: bool
) -> None:
    """For a quarter of the job another program has half of the core: twice."""
    series = Series(tmp_path / "steps.jsonl")
    noise = random.Random(7)
    for i in range(4000):
        alone_ms = (10.0 + 0.0004 * i * grows) * noise.gauss(1.0, 0.02)
        taken = 0.5 if 600 < i < 1100 or 2200 < i < 2700 else 1.0
        series.add(i, [alone_ms / taken], with_core=taken if known else 1.0)
    found = series.grown()
    assert (found is not None) == (grows and known), "without the share, it cannot be told"
    if found is not None:
        assert found.low < 0.4 < found.high
    change = series.change(last=True)
    assert change is None or change.ratio > 1.1, "a change of pace is told of the clock's time"


def test_a_growth_that_more_steps_do_not_confirm_is_none_at_the_end(tmp_path: Path) -> None:
    series = Series(tmp_path / "steps.jsonl")
    noise = random.Random(3)
    told = []
    for i in range(8000):
        series.add(i, [(10.0 + min(i, 600) / 600) * noise.gauss(1.0, 0.05)])
        told.append(series.grown() is not None)
    assert any(told), "it is told while it lasts"
    assert series.grown(last=True) is None


def test_a_job_that_warms_up_does_not_change_its_pace(tmp_path: Path) -> None:
    series = Series(tmp_path / "steps.jsonl")
    for i in range(3000):
        series.add(i, [2.0 if i < 600 else 1.4 if i < 2000 else 2.4])
        if i == 640:
            series.settled = series.steps
        if i == 1900:
            assert series.change(last=True) is None
    change = series.change(last=True)
    assert change is not None
    assert change.step == pytest.approx(2000, rel=0.02)
    assert change.ratio == pytest.approx(2.4 / 1.4, rel=0.01)


def test_the_share_of_a_core_is_of_the_time_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([1_000, 1_000, 4_000, None, 5_000, 9_000_000])
    monkeypatch.setattr(cores_module, "_waited_ns", lambda _: next(waited))
    cores = CoreShare()
    shares = [cores.since_last(3, now_ns) for now_ns in (10_000, 20_000, 30_000, 40_000, 50_000, 60_000)]
    assert shares == [1.0, 1.0, 0.7, 1.0, 1.0, 0.05]


def test_a_thread_of_this_process_has_a_share_of_a_core() -> None:
    cores, thread = CoreShare(), threading.get_ident()
    began_ns = time.perf_counter_ns()
    cores.since_last(thread, began_ns)
    sum(range(300_000))
    assert 0.05 <= cores.since_last(thread, time.perf_counter_ns()) <= 1.0
    assert cores.since_last(12345, time.perf_counter_ns()) == 1.0


class Program:
    """Grows in three ways."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.recent: deque[int] = deque(maxlen=3)
        self.model = torch.nn.Linear(2, 2)
        self.total = torch.zeros((), requires_grad=True) * 1.0

    def step(self) -> None:
        self.outputs.append(torch.zeros(1))
        self.recent.append(1)
        self.model.register_forward_hook(lambda *_: None)
        self.total = self.total + 1.0


class Told:
    """A job that wants looks."""

    wants_look = True

    def __init__(self) -> None:
        self.grown: list[Any] = []

    def found(self, grown: list[Any]) -> None:
        self.grown = grown


def test_looks_name_what_grows_with_the_line_that_adds(monkeypatch: Any) -> None:
    from torch_bottleneck.harness.job import looks as module

    monkeypatch.setattr(module, "is_library", lambda file: file != __file__)
    monkeypatch.setattr(module, "NAMED", 9)
    program, job, looks = Program(), Told(), Looks()
    for i in range(LOOKS * APART):
        program.step()
        if looks.wanted(job, i):  # type: ignore[arg-type]
            looks.look(job, sys._getframe(), i)  # type: ignore[arg-type]
    assert not job.wants_look
    found = {(grown.what, grown.kind): grown for grown in job.grown}
    lines = Path(__file__).read_text().splitlines()
    for key, words in (
        (("program.outputs", "tensors in list"), "self.outputs.append"),
        (("program.model", "hooks"), "register_forward_hook"),
        (("program.total", "autograd nodes"), "self.total = self.total"),
    ):
        assert found[key].per_step == 1.0
        assert words in lines[found[key].site.line - 1]
    assert not any("recent" in what for what, _ in found)


def test_looking_at_names_leaves_the_frame_as_it_is() -> None:
    def plain() -> None:
        kept = object()
        before = sys.getrefcount(kept)
        names = dict(names_in(sys._getframe()))
        assert names["kept"] is kept
        del names
        assert sys.getrefcount(kept) == before

    def asked() -> None:
        options = locals()
        before = dict(options)
        later = 1
        list(names_in(sys._getframe()))
        assert dict(options) == before, later

    plain()
    if sys.version_info < (3, 13):
        asked()
    assert gc.isenabled()


class FakeNvml:
    """The driver's library: a device that a power limit holds back from some look on."""

    def __init__(self, *, finds: int = 0) -> None:
        self.finds = finds
        self.calls: list[str] = []
        self.held_back = False

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any) -> int:
            self.calls.append(name)
            if name == "nvmlDeviceGetHandleByUUID":
                assert words[0] == b"GPU-3b1f"
                return self.finds
            if name.startswith("nvmlDeviceGet"):
                values = {
                    "nvmlDeviceGetClockInfo": (1980, 1200),
                    "nvmlDeviceGetTemperature": (61, 63),
                    "nvmlDeviceGetPowerUsage": (690_000, 400_000),
                    "nvmlDeviceGetCurrentClocksThrottleReasons": (0x1, 0x4),
                }
                words[-1]._obj.value = values[name][self.held_back]
            return 0

        return call


def with_device(monkeypatch: pytest.MonkeyPatch, library: FakeNvml) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2**20 * (device == 2))
    properties = type("Properties", (), {"uuid": "3b1f"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)


def test_beside_a_change_of_pace_the_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml()
    with_device(monkeypatch, library)
    monkeypatch.setattr(beside_module, "_busy", lambda: None)
    monkeypatch.setattr(beside_module, "_clock", lambda: None)
    machine = Beside()
    for second in range(21):
        library.held_back = second > 10
        # Called twenty times a second, and looks at the device once.
        for part in range(20):
            machine.look(second * 1000 * MS + part * 50 * MS, steps=second * 100)
    assert library.calls.count("nvmlDeviceGetPowerUsage") == 20
    assert machine.told(1000) == [
        "device 2 runs at 1200 MHz instead of 1980",
        "device 2's clock is held back by its power limit in 100% of the looks instead of 0%",
        "device 2 takes 400 W instead of 690",
    ]
    machine.close()
    assert library.calls[-1] == "nvmlShutdown"
    machine.look(99_000 * MS, steps=9900)
    assert library.calls[-1] == "nvmlShutdown"


def test_a_device_that_the_driver_does_not_know_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(finds=6)
    with_device(monkeypatch, library)
    state = DeviceState()
    assert [state.look() for _ in range(3)] == [None] * 3
    assert library.calls == ["nvmlInit_v2", "nvmlDeviceGetHandleByUUID", "nvmlShutdown"]


def test_without_a_device_the_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail(name))
    assert DeviceState().look() is None


def test_steps_that_are_added_together_are_the_same_as_one_by_one(tmp_path: Path) -> None:
    generator = random.Random(2)
    steps_ms = [generator.uniform(5, 15) for _ in range(5000)]
    alone, together = Series(tmp_path / "alone"), Series(tmp_path / "together")
    for i, step_ms in enumerate(steps_ms):
        alone.add(i, [step_ms], with_core=0.8)
    at = 0
    while at < len(steps_ms):
        count = generator.choice([0, 1, 3, 8, 30])
        together.add(at, steps_ms[at : at + count], with_core=0.8)
        at += count
    alone.write()
    together.write()
    assert together.steps == alone.steps == 5000
    assert together.best_ms == alone.best_ms
    lines = [(tmp_path / name).read_text().splitlines()[:500] for name in ("alone", "together")]
    assert lines[0] == lines[1]


def test_collections_are_taken_out_of_the_steps_that_they_lie_in() -> None:
    account = Account()
    # In the first, at the end of the second, and two in a long one.
    garbage = [(4 * MS, MS), (20 * MS, 2 * MS), (30 * MS, 3 * MS), (50 * MS, 4 * MS)]
    took = counted_in(account, [10.0, 10.0, 40.0, 10.0], garbage_ns=garbage)
    assert took == [9.0, 8.0, 33.0, 10.0]
    parts = account.parts()
    assert round(parts["garbage collections"].s * 1e3, 3) == 10.0
    assert parts["garbage collections"].count == 3
    assert round(parts["training steps"].s * 1e3, 3) == 660.0


def test_of_what_grows_it_is_told_whether_it_was_looked_for(tmp_path: Path) -> None:
    job = JobWatch(Store(tmp_path / "main"), told=lambda _: None)
    growth = Growth(what="step", ms_per_1000_steps=3.1, low=2.9, high=3.3, step_ms=100.0, at_step=2000)
    (told,) = job._named(growth)
    assert not told.looked
    job.found([])
    (told,) = job._named(growth)
    assert (told.looked, told.what) == (True, "step")
    job.found([Grown("self.outputs", "tensors in list", 1.0, LINE), Grown("seen", "items in set", 1.0, None)])
    assert [(told.what, told.site, told.looked) for told in job._named(growth)] == [
        ("self.outputs", LINE, True),
        ("seen", None, True),
    ]


def test_an_old_job_is_looked_at_and_written_down_less_often(tmp_path: Path) -> None:
    written: list[JobRecord] = []
    job = JobWatch(Store(tmp_path / "main"), told=written.append)
    job.account.usual_ms = 5.0

    def looks(count: int, *, apart_ms: int) -> int:
        """Return how many records are written within so many looks."""
        written.clear()
        now = time.perf_counter_ns()
        for i in range(1, count + 1):
            job.look(now + i * apart_ms * MS, apart_ms * MS, paused_ns=0)
        return len(written)

    assert looks(20, apart_ms=500) == pytest.approx(10, abs=1)
    longest = job._sampler.longest_seconds
    job._written_ns = time.perf_counter_ns()
    job.began_ns -= 3600 * 1000 * MS
    assert looks(32, apart_ms=500) == pytest.approx(4, abs=1)
    assert job._sampler.longest_seconds == pytest.approx(4 * longest)
