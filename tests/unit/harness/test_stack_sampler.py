"""Whose code runs: stacks of a thread, each with the time that it stands for."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import itertools
import mmap
import resource
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from unit.harness.samplers import wait_for_samplers

from torch_bottleneck.harness.lines.stack_sampler import StackSampler
from torch_bottleneck.harness.windows.phases import PhaseClock
from torch_bottleneck.model.stacks import Stacks

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD = [{"a": [i]} for i in range(50_000)]
"""A collection takes a while, and keeps the interpreter lock."""


def model(clock: PhaseClock, sampler: StackSampler) -> None:
    sampler.note("forward")
    clock.enter("forward")
    until = time.perf_counter() + 0.02
    while time.perf_counter() < until:
        pass
    clock.leave()


def update(clock: PhaseClock, sampler: StackSampler) -> None:
    sampler.note("optimizer")
    clock.enter("optimizer")
    time.sleep(0.01)
    clock.leave()


def collect() -> float:
    began = time.perf_counter()
    gc.collect()
    return time.perf_counter() - began


def train(steps: int) -> tuple[Stacks, float, PhaseClock]:
    clock = PhaseClock()
    sampler = StackSampler(clock)
    sampler.begin()
    bounds, collected = [], 0.0
    for _ in range(steps):
        begin = time.perf_counter_ns()
        model(clock, sampler)
        update(clock, sampler)
        collected += collect()
        bounds.append((begin, time.perf_counter_ns()))
    sampler.stop()
    return sampler.seen(bounds), collected, clock


def time_of(stacks: Stacks, function: str) -> float:
    return sum(
        us / 1e6
        for stack, us in zip(stacks.stack, stacks.us, strict=True)
        if any(stacks.frames[k].function == function for k in stacks.stacks[stack])
    )


def test_a_call_that_keeps_the_lock_has_all_its_time_though_it_is_seen_once() -> None:
    wait_for_samplers()
    stacks, collected, _ = train(12)
    whole = sum(stacks.us) / 1e6
    assert whole > 0.5 * sum(stacks.step_ms) / 1e3
    share = collected / (sum(stacks.step_ms) / 1e3)
    # Where others hold the sampler up, the line behind it has the rest. By counts it would be 12 samples.
    assert 0.5 * share < time_of(stacks, "collect") / whole < share + 0.25
    assert any(frame.call == "gc.collect()" for frame in stacks.frames) or sys.version_info < (3, 11)


def test_each_sample_knows_its_step_its_phase_and_what_had_ended() -> None:
    wait_for_samplers()
    stacks, _, _ = train(8)
    assert len(stacks.step_ms) == 8
    assert set(stacks.step) <= set(range(8))
    for stack, phase, after in zip(stacks.stack, stacks.phase, stacks.after, strict=True):
        functions = {stacks.frames[k].function for k in stacks.stacks[stack]}
        if stacks.phases[phase] == "forward":
            assert "model" in functions
        if "collect" in functions and not stacks.phases[phase]:
            assert stacks.phases[after] == "optimizer"


def test_beginnings_of_phases_are_noted_with_their_stack_and_take_no_time() -> None:
    wait_for_samplers()
    stacks, _, _ = train(6)
    noted = [k for k, counts in enumerate(stacks.counts) if not counts]
    assert {stacks.phases[stacks.phase[k]] for k in noted} == {"forward", "optimizer"}
    assert all(stacks.us[k] == 0 for k in noted)


def test_many_beginnings_at_one_line_leave_room_for_those_at_another() -> None:
    """A Jacobian is made by a backward pass for each of its rows, before the loss has its own."""
    wait_for_samplers()
    sampler = StackSampler(PhaseClock())
    sampler.begin()
    began = time.perf_counter_ns()
    for _ in range(20):
        sampler.note("backward")
    sampler.note("backward")
    ended = time.perf_counter_ns()
    sampler.stop()
    stacks = sampler.seen([(began, ended)])
    lines = [
        stacks.frames[stacks.stacks[at][-1]].line
        for at, n in zip(stacks.stack, stacks.counts, strict=True)
        if not n
    ]
    assert len(set(lines)) == 2
    assert len(lines) == 5


def noted(stacks: Stacks) -> set[int]:
    """Return the stacks with which phases begin: the others were seen by chance."""
    return {at for at, counts in zip(stacks.stack, stacks.counts, strict=True) if not counts}


TRAINER = """\
class Trainer:
    def fit(self, note, through):
        note("backward")  # of the loss
        note(
            "optimizer"
        )
        through.run(self.step, note)

    def step(self, note):
        note("forward")


def helped(wait):
    wait(0.05)
"""
WRITER = """\
def fit(note):
    with kept(note):
        pass


@contextlib.contextmanager
def kept(note):
    yield
    note("backward")
"""


def test_lines_of_a_package_are_told_below_the_line_that_trains_by_it_and_below_no_other(
    tmp_path: Path,
) -> None:
    wait_for_samplers()
    file = tmp_path / "site-packages" / "trainer.py"
    file.parent.mkdir()
    file.write_text(TRAINER)
    package: dict[str, Any] = {"__name__": "trainer"}
    exec(compile(TRAINER, str(file), "exec"), package)
    sampler = StackSampler(PhaseClock())
    sampler.begin()
    began = time.perf_counter_ns()
    package["Trainer"]().fit(sampler.note, contextvars.copy_context())
    package["helped"](time.sleep)
    ended = time.perf_counter_ns()
    sampler.stop()
    stacks = sampler.seen([(began, ended)])
    told = [stacks.frames[k] for at in noted(stacks) for k in stacks.below[at]]
    assert {(frame.line, frame.call) for frame in told} == {
        (3, 'note("backward")'), (4, "note(...)"),
        (7, "through.run(self.step, note)"), (10, 'note("forward")'),
    }  # fmt: skip
    for users, below in zip(stacks.stacks, stacks.below, strict=True):
        assert not below or stacks.frames[users[-1]].call == "package['Trainer']().fit()"
    functions = {frame.function for frame in stacks.frames if frame.file == str(file)}
    qualified = sys.version_info >= (3, 11)
    assert functions == ({"Trainer.fit", "Trainer.step"} if qualified else {"fit", "step"})


def test_a_package_s_line_knows_what_it_calls_in_another_library_and_what_calls_it(tmp_path: Path) -> None:
    """By these the end of a `with`, a scheduler and a collection are what they are in the user's code."""
    wait_for_samplers()
    file = tmp_path / "site-packages" / "writer.py"
    file.parent.mkdir()
    file.write_text(WRITER)
    package: dict[str, Any] = {"__name__": "writer", "contextlib": contextlib}
    exec(compile(WRITER, str(file), "exec"), package)
    sampler = StackSampler(PhaseClock())
    sampler.begin()
    began = time.perf_counter_ns()
    package["fit"](sampler.note)
    ended = time.perf_counter_ns()
    sampler.stop()
    stacks = sampler.seen([(began, ended)])
    (at,) = noted(stacks)
    outer, inner = (stacks.frames[k] for k in stacks.below[at])
    assert outer.callee.startswith("contextlib.")
    assert inner.via == outer.callee
    assert outer.via == ""


def test_nothing_stays_behind() -> None:
    wait_for_samplers()
    before = sys.getswitchinterval()
    _, _, clock = train(2)
    wait_for_samplers()
    assert clock.log is None
    assert sys.getswitchinterval() == before
    abandoned = StackSampler(clock)
    abandoned.begin()
    abandoned.abandon()
    wait_for_samplers()
    assert clock.log is None
    assert abandoned._rows == []


class Slow:
    """Draws the rows of a batch one by one, by code of the user's."""

    def __iter__(self) -> Iterator[int]:
        for row in range(8):
            time.sleep(0.01)
            yield row


@pytest.mark.parametrize("way", ["enumerate", "zip", "next"])
def test_a_builtin_that_asks_a_loader_for_its_batches_calls_the_loader(way: str) -> None:
    """`for k, batch in enumerate(loader)` waits for the loader, not for `enumerate`."""
    wait_for_samplers()
    data: TensorDataset = TensorDataset(torch.zeros(8, 1))
    loader = DataLoader(data, batch_size=4, sampler=Slow())
    sampler = StackSampler(PhaseClock())
    sampler.begin()
    begin = time.perf_counter_ns()
    if way == "enumerate":
        for _ in enumerate(loader):
            pass
    elif way == "zip":
        for _ in zip(loader, range(2), strict=True):
            pass
    else:
        batches = iter(loader)
        for _ in range(2):
            next(batches)
    end = time.perf_counter_ns()
    sampler.stop()
    stacks = sampler.seen([(begin, end)])
    chains = [[stacks.frames[k] for k in stack] for stack in stacks.stacks]
    asking = [
        above.callee
        for chain in chains
        for above, below in itertools.pairwise(chain)
        if below.function == "__iter__" and below.file == __file__
    ]
    assert asking
    assert all(callee.startswith("torch.utils.data.") for callee in asking)


def _blocked() -> dict[str, int]:
    """Return the signals that each thread of this process blocks, as a mask."""
    masks = {}
    for status in Path("/proc/self/task").glob("*/status"):
        text = status.read_text()
        masks[status.parent.name] = int(text.partition("SigBlk:")[2].split()[0], 16)
    return masks


def test_no_signal_of_the_script_s_is_delivered_to_the_sampler() -> None:
    """A script may block a signal and wait for it: one that went to our thread never comes."""
    sampler = StackSampler(PhaseClock())
    before = _blocked()
    sampler.begin()
    try:
        ours = [mask for thread, mask in _blocked().items() if thread not in before]
    finally:
        sampler.stop()
    assert ours
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
        assert all(mask >> (number - 1) & 1 for mask in ours)


def test_a_sample_knows_what_the_system_did_meanwhile() -> None:
    """Memory that is mapped anew has faults, and what holds the interpreter lock has none."""
    clock = PhaseClock()
    sampler = StackSampler(clock)
    sampler.begin()
    while not sampler._rows:
        time.sleep(0.001)
    begin = time.perf_counter_ns()
    system_s = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    pages = 0
    # The clock of system time may go on in ticks.
    while pages < 4096 or resource.getrusage(resource.RUSAGE_SELF).ru_stime == system_s:
        clock.enter("forward")
        with mmap.mmap(-1, 256 * mmap.PAGESIZE) as fresh:
            for page in range(256):
                fresh[page * mmap.PAGESIZE] = 1
        clock.leave()
        pages += 256
        clock.enter("optimizer")
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass
        clock.leave()
    sampler.stop()
    stacks = sampler.seen([(begin, time.perf_counter_ns())])
    faults = dict.fromkeys(stacks.phases, 0)
    for phase, count in zip(stacks.phase, stacks.faults, strict=True):
        faults[stacks.phases[phase]] += count
    assert sum(faults.values()) > pages / 2, "but for those before the first sample and behind the last"
    assert sum(stacks.system_us) > 0
    assert len(stacks.system_us) == len(stacks.us)
