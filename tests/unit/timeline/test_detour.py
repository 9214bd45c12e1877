"""What goes from the device to the host and back, told from values that are only read; its price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import LoopTime, SourceSite
from torch_bottleneck.timeline.gpu.detour import Detours, detours
from torch_bottleneck.timeline.gpu.questions.circumstances import Circumstances
from torch_bottleneck.timeline.gpu.questions.host import operator_questions
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import EventKind, Program, build_program
from torch_bottleneck.timeline.lanes.questions import Question
from torch_bottleneck.timeline.lanes.replay import Replay
from torch_bottleneck.timeline.steps.facts import Facts
from torch_bottleneck.timeline.steps.loop_price import LoopPrice
from torch_bottleneck.timeline.steps.traced import find_steps

from .traces import BACKWARD, MAIN, TraceWriter

STEPS, STEP_US = 3, 4000.0
DOWN, UP = "Memcpy DtoH (Device -> Pageable)", "Memcpy HtoD (Pageable -> Device)"


def copy(writer: TraceWriter, at: float, way: str, dur: float = 20.0, tid: str = MAIN) -> None:
    """A copy of pageable memory: the call, its wait, the copy on the device."""
    writer.launch(
        at, 5, kernel=way, cat="gpu_memcpy", call="cudaMemcpyAsync", start=at + 6, length=3, tid=tid
    )
    writer.row("cudaStreamSynchronize", "cuda_runtime", at + 6, dur - 6, tid)


def read(
    *, between: str = "", back: str = MAIN, phase: str = "forward", label: float = 1900.0
) -> tuple[Program, Detours | None]:
    """A forward whose values go to the host for 1 ms; what is launched or begins there; and its backward."""
    writer = TraceWriter()
    edges = [STEP_US * k for k in range(STEPS + 1)]
    for at in edges[:-1]:
        writer.row(phase, "user_annotation", at + 10, label)
        writer.launch(at + 20, 5, start=at + 30, length=10)
        copy(writer, at + 100, DOWN)
        copy(writer, at + 150, DOWN)
        if between == "kernel":
            writer.launch(at + 600, 5, start=at + 610, length=10)
        if back:
            copy(writer, at + 1200, UP, tid=back)
            copy(writer, at + 1250, UP, tid=back)
        writer.launch(at + 1300, 5, start=at + 1310, length=10)
        if between == "forward":
            # What is sent at the end of one forward and comes at the begin of the next are two.
            copy(writer, at + 1880, DOWN)
            writer.row("forward", "user_annotation", at + 1920, 60)
            copy(writer, at + 1930, UP)
        writer.row("backward", "user_annotation", at + 2000, 500)
        writer.launch(at + 2010, 5, start=at + 2020, length=10)
        # Read to be shown, and the next batch behind it.
        copy(writer, at + 3000, DOWN)
        copy(writer, at + 3300, UP)
    writer.steps(edges)
    trace = writer.build()
    steps = find_steps(trace)
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    assert program is not None
    return program, detours(trace, program, None)


@pytest.mark.parametrize("between", ["", "forward"])
def test_what_is_sent_to_the_host_and_comes_back_is_a_detour_from_the_first_copy_to_the_last(
    between: str,
) -> None:
    program, found = read(between=between)
    assert found is not None and found.site is None
    waits = program.kind[found.events] == EventKind.SYNC
    assert waits.tolist() == STEPS * 4 * [False, True]
    assert found.begin.sum() == STEPS and not (found.begin & ~found.events).any()


@pytest.mark.parametrize(
    "otherwise",
    [{"between": "kernel"}, {"back": ""}, {"back": BACKWARD}, {"phase": "evaluation"}, {"label": 40.0}],
)
def test_a_value_that_is_read_while_the_device_goes_on_is_none(otherwise: dict[str, Any]) -> None:
    assert read(**otherwise)[1] is None


def asked(program: Program, found: Detours | None, loop: LoopPrice | None = None) -> list[Question]:
    known = Circumstances(facts=Facts(true_ms=4.0), detours=found, loop=loop)
    return list(operator_questions(program, known))


def test_the_step_is_replayed_without_what_the_host_does_in_between() -> None:
    program, found = read()
    (question,) = asked(program, found)
    assert (question.name, question.bound) == (WhatIf.OPERATORS_ON_DEVICE, True)
    replay = Replay(program)
    saved_us = (replay.run().step_ns - replay.run(question.edit).step_ns) / 1000
    assert saved_us == pytest.approx(1150, abs=60)


def test_two_that_follow_each_other_are_two() -> None:
    program, found = read()
    assert found is not None
    middle = int(np.flatnonzero(found.events)[4])
    begin = found.begin.copy()
    begin[middle] = True
    (one,), (two,) = (asked(program, each) for each in (found, replace(found, begin=begin)))
    assert one.edit.gone is not None and two.edit.gone is not None
    assert one.edit.gone[middle].sum() > 0 and two.edit.gone[middle].sum() == 0


@pytest.mark.parametrize(("operators_ms", "mostly"), [(0.2, True), (20.0, False)])
def test_beside_more_work_of_operators_it_names_no_line_and_makes_no_bound(
    operators_ms: float, mostly: bool
) -> None:
    program, found = read()
    assert found is not None
    here = replace(found, site=SourceSite(file="net.py", line=3, function="path"))
    work = program.work.copy()
    work[0, Work.OPERATORS] = operators_ms * 1e6
    (question,) = asked(replace(program, work=work), here)
    assert (question.bound, question.site is not None) == (mostly, mostly)


@pytest.mark.parametrize(
    ("carried", "function", "count"), [(True, "path", 0), (True, "other", 1), (False, "path", 1)]
)
def test_a_loop_whose_rounds_build_on_one_another_is_not_moved_to_the_device(
    carried: bool, function: str, count: int
) -> None:
    program, found = read()
    assert found is not None
    here = replace(found, site=SourceSite(file="net.py", line=3, function="path"))
    site = SourceSite(file="net.py", line=5, function=function)
    loop = LoopTime(site=site, last_line=9, carried=carried, seen={}, of={})
    assert len(asked(program, here, LoopPrice(loop=loop, spent_ms=1.0))) == count
