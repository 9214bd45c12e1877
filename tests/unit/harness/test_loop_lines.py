"""The lines of the training loop are told apart by where they stand around forward and update."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

import pytest
from unit.harness.samplers import wait_for_samplers

from torch_bottleneck.harness.lines.loop_lines import LoopLines
from torch_bottleneck.harness.lines.switching import SWITCH_SECONDS, short_switches
from torch_bottleneck.harness.windows.phases import PhaseClock

SAMPLES = 5
"""What each part of a step goes on for: on a busy machine the sampler may come late."""


def make_batch(lines: LoopLines) -> None:
    enough = lines._taken + SAMPLES
    while lines._wanted and lines._taken < enough:
        pass


def loss_by_hand(lines: LoopLines) -> None:
    enough = lines._taken + SAMPLES
    while lines._wanted and lines._taken < enough:
        pass


def metrics(lines: LoopLines) -> None:
    enough = lines._taken + SAMPLES
    while lines._wanted and lines._taken < enough:
        pass


def model(clock: PhaseClock, lines: LoopLines) -> None:
    lines.forward()
    clock.enter("forward")
    enough = lines._taken + SAMPLES
    while lines._wanted and lines._taken < enough:
        pass
    clock.leave()


def update(clock: PhaseClock, lines: LoopLines) -> None:
    lines.update()
    clock.enter("optimizer")
    enough = lines._taken + SAMPLES
    while lines._wanted and lines._taken < enough:
        pass
    clock.leave()


def train(clock: PhaseClock, lines: LoopLines, steps: int) -> None:
    for step in range(steps):
        lines.at_cut()
        if step:
            lines.begin()
        make_batch(lines)
        model(clock, lines)
        loss_by_hand(lines)
        update(clock, lines)
        metrics(lines)
    lines.end()


def _counts(lines: LoopLines) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for item in lines.entries():
        function = out.setdefault(item.phase, {})
        function[item.site.function] = function.get(item.site.function, 0) + item.count
    return out


def test_lines_before_the_forward_between_and_after_the_update():
    clock = PhaseClock()
    lines = LoopLines(clock)
    train(clock, lines, steps=8)
    counts = _counts(lines)
    # The last sample of a part may fall late; the bulk of each part may not.
    bulk = {part: max(lines, key=lines.__getitem__) for part, lines in counts.items()}
    assert bulk == {
        "sampled before": "make_batch",
        "sampled between": "loss_by_hand",
        "sampled after": "metrics",
        "sampled forward": "model",
        "sampled update": "update",
    }


def test_without_a_module_all_before_the_update_is_between_and_its_loops_are_known():
    clock = PhaseClock()
    lines = LoopLines(clock)
    for step in range(8):
        lines.at_cut()
        if step:
            lines.begin()
        for _ in range(3):
            loss_by_hand(lines)
        update(clock, lines)
        metrics(lines)
    lines.end()
    counts = _counts(lines)
    bulk = {part: max(lines, key=lines.__getitem__) for part, lines in counts.items()}
    assert bulk == {
        "sampled between": "loss_by_hand",
        "sampled after": "metrics",
        "sampled update": "update",
    }
    found = {loop.site.function: max(loop.seen, key=loop.seen.__getitem__) for loop in lines.loops()}
    assert found["test_without_a_module_all_before_the_update_is_between_and_its_loops_are_known"] == (
        "sampled between"
    )


def test_a_loop_whose_rounds_ask_for_gradients_is_seen_while_they_are_made():
    clock = PhaseClock()
    lines = LoopLines(clock)

    def gradient() -> None:
        clock.enter("backward")
        until = time.monotonic() + 0.05  # dozens of samples
        while time.monotonic() < until:
            pass
        clock.leave()

    for step in range(4):
        lines.at_cut()
        if step:
            lines.begin()
        model(clock, lines)
        for _row in range(3):
            gradient()
        gradient()
        update(clock, lines)
    lines.end()
    wait_for_samplers()
    (loop,) = [each for each in lines.loops() if "test_a_loop_whose" in each.site.function]
    seen, every = loop.seen["sampled backward"], loop.of["sampled backward"]
    assert SAMPLES <= seen < every
    assert not any("backward" in item.phase for item in lines.entries()), "the loop's own parts only"


def test_nothing_is_sampled_after_the_end():
    clock = PhaseClock()
    lines = LoopLines(clock)
    lines.begin()
    lines.end()
    wait_for_samplers()
    lines.begin()
    assert not [thread for thread in threading.enumerate() if thread.name == "bottleneck-loop-lines"]
    time.sleep(0.03)
    assert lines.entries() == []


def test_the_switch_interval_is_the_programs_own_again_after_the_last_sampler():
    wait_for_samplers()
    before = sys.getswitchinterval()
    with short_switches():
        with short_switches():
            assert sys.getswitchinterval() <= SWITCH_SECONDS * 1.01
        assert sys.getswitchinterval() <= SWITCH_SECONDS * 1.01
    assert sys.getswitchinterval() == before


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's timers")
def test_the_waits_of_a_sampler_end_on_time_and_those_of_the_program_as_ever():
    libc, late = ctypes.CDLL(None), 30  # PR_GET_TIMERSLACK
    usual, seen = libc.prctl(late, 0, 0, 0, 0), []

    def sample() -> None:
        with short_switches():
            seen.append(libc.prctl(late, 0, 0, 0, 0))

    sampler = threading.Thread(target=sample)
    sampler.start()
    sampler.join()
    assert seen == [1]
    assert libc.prctl(late, 0, 0, 0, 0) == usual


def test_a_forked_child_has_the_programs_own_switch_interval():
    wait_for_samplers()
    with short_switches():
        child = os.fork()
        if not child:
            os._exit(0 if sys.getswitchinterval() > SWITCH_SECONDS * 1.01 else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_sampler_ends_with_the_warm_up():
    clock = PhaseClock()
    lines = LoopLines(clock)
    lines.begin()
    lines.end()
    for thread in threading.enumerate():
        if thread.name == "bottleneck-loop-lines":
            thread.join(timeout=600)
            assert not thread.is_alive()
