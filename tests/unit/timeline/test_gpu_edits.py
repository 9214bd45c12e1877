"""Edits that take more than a factor: seams gone, few launches for many, the profiler's cost by event."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.run import MaskFacts, RepeatFacts, Run
from torch_bottleneck.timeline.gpu.compiler_reach import Reach, host_left_ns
from torch_bottleneck.timeline.gpu.context import waits_for
from torch_bottleneck.timeline.gpu.device_masks import DeviceWork
from torch_bottleneck.timeline.gpu.edits import (
    few_launches,
    gradients_untouched,
    plans_gone,
    seams_gone,
    searches_gone,
)
from torch_bottleneck.timeline.gpu.questions.circumstances import Circumstances
from torch_bottleneck.timeline.gpu.questions.device import device_questions
from torch_bottleneck.timeline.lanes.calibrate import calibrate
from torch_bottleneck.timeline.lanes.host_work import HostWork
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import PARTS, EventKind, Program, build_program
from torch_bottleneck.timeline.lanes.questions import reads_again, shared_questions
from torch_bottleneck.timeline.lanes.replay import Edit, Replay
from torch_bottleneck.timeline.lanes.seam_prices import price_seams
from torch_bottleneck.timeline.steps.facts import Facts

from .programs import make_program
from .traces import MAIN, TraceWriter

US = 1_000.0


def seamed(
    *,
    seam_us: tuple[float, float] = (100, 50),
    device_us: float = 1.0,
    steps: int = 4,
    body_us: float = 10,
) -> Program:
    """Steps of three launches, the second behind a seam of group 0, the third behind one of group 1."""
    events: list[dict] = [{"kind": EventKind.MARK}]
    for _ in range(steps):
        for group in (None, 0, 1):
            work = {Work.DISPATCH: body_us * US}
            if group is not None:
                work[Work.SEAM] = seam_us[group] * US
            events.append({"kind": EventKind.LAUNCH, "work": work, "acts": [(0, device_us * US, 2, -1)]})
        events.append({"kind": EventKind.MARK})
    program = make_program(events, latency=0.0, spacing=0.0)
    seam_work = np.zeros((len(events), 2))
    launches = np.flatnonzero(program.kind == EventKind.LAUNCH)
    for group in (0, 1):
        at = launches[group + 1 :: 3]
        seam_work[at, group] = program.work[at, Work.SEAM]
    host = HostWork(
        edges=np.asarray([0, 1]),
        work=np.zeros(1, dtype=np.int8),
        group=np.full(1, -1, dtype=np.int16),
        seam_owners=((0,), (1,)),
        seam_count=(steps, steps),
    )
    return dataclasses.replace(program, seam_work=seam_work, host_work=host)


def device_work(
    program: Program, merged: np.ndarray | None = None, by: np.ndarray | None = None
) -> DeviceWork:
    m = len(program.event)
    no = np.zeros(m, dtype=bool)
    masks: dict[str, Any] = {field.name: no for field in dataclasses.fields(DeviceWork)}
    masks |= {"filled": np.ones(m), "alike": np.ones(m), "chains": np.ones(m)}
    masks |= {"relaunched": np.ones(m), "merged_by": np.full(m, -1, dtype=np.int16)}
    events = program.kind == EventKind.LAUNCH
    masks["reach"] = Reach(
        events=events,
        model=events,
        activities=~no,
        backward=np.zeros_like(events),
        regions=1,
        parameters=0,
        handed_within=0,
        compiled=events,
    )
    if merged is not None and by is not None:
        masks |= {"merged": merged, "merged_by": by}
    return DeviceWork(**masks)


def prices(program: Program, work: DeviceWork) -> list[tuple[float, float, float | None]]:
    replay = Replay(program)
    calibration = calibrate(replay, None)
    plain = replay.run(calibration.base).step_ns
    gone = replay.run(calibration.base.and_also(seams_gone(program, work))).step_ns
    found = price_seams(
        replay,
        calibration.base,
        lambda group: seams_gone(program, work, group),
        steps=program.steps,
        true_ms=plain / 1e6,
        together_ms=(plain - gone) / 1e6,
    )
    return [(p.per_step, p.host_ms, p.cost_ms) for p in found]


def test_in_a_step_that_the_host_decides_a_seam_costs_its_host_time() -> None:
    program = seamed()
    assert prices(program, device_work(program)) == [
        (1.0, pytest.approx(0.1), pytest.approx(0.1)),
        (1.0, pytest.approx(0.05), pytest.approx(0.05)),
    ]


def test_the_pieces_of_a_graph_cost_no_more_than_one_graph_of_as_many_kernels() -> None:
    """Pieces that take 1 ms per kernel beside their seams: whole, they would take 0.2 ms in all."""
    program = seamed(body_us=1000)
    work, calibration = device_work(program), calibrate(Replay(program), None)
    pieces = seams_gone(program, work)
    whole = seams_gone(program, work, calibration=calibration)
    assert pieces.gone is not None
    assert whole.gone is not None
    left = (program.work - whole.gone)[:, Work.DISPATCH].sum() / program.steps
    assert left == pytest.approx(host_left_ns(work.reach, len(program.event) / program.steps, graphs=False))
    assert (program.work - pieces.gone)[:, Work.DISPATCH].sum() / program.steps > 2 * left


def test_pieces_that_cost_less_than_one_graph_should_stay_as_they_are() -> None:
    program = seamed()
    work, calibration = device_work(program), calibrate(Replay(program), None)
    pieces, whole = seams_gone(program, work), seams_gone(program, work, calibration=calibration)
    assert pieces.gone is not None
    assert whole.gone is not None
    np.testing.assert_array_equal(pieces.gone, whole.gone)


def test_behind_a_busy_device_seams_cost_nothing() -> None:
    program = seamed(device_us=1000)
    assert [cost for _, _, cost in prices(program, device_work(program))] == [
        pytest.approx(0.0, abs=1e-3),
        pytest.approx(0.0, abs=1e-3),
    ]


def test_a_kernel_that_a_seam_keeps_apart_goes_with_its_launch() -> None:
    program = seamed()
    merged = np.zeros(len(program.event), dtype=bool)
    merged[1::3] = True  # the one behind the first seam is computed with its neighbour
    work = device_work(program, merged, np.where(merged, 0, -1).astype(np.int16))
    edit = seams_gone(program, work, 0)
    schedule = Replay(program).run(edit)
    # 10 us of dispatch three times and two seams before; one launch and one seam are gone.
    assert schedule.step_ns == pytest.approx(10 * US + 10 * US + 50 * US)
    other = seams_gone(program, work, 1)
    assert Replay(program).run(other).step_ns == pytest.approx(30 * US + 100 * US)


def test_a_value_read_behind_another_costs_nothing_where_nothing_is_launched_in_between() -> None:
    """Each read: a copy behind what picks the value, and a wait; other launches need a read of their own."""
    copies = PARTS.index(Part.COPIES)
    launch = {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: 7}, "acts": [(0, 100, 2, -1)]}
    read = [
        {"kind": EventKind.LAUNCH, "work": {Work.DISPATCH: 10, Work.HOST: 3}, "acts": [(0, 1, copies, -1)]},
        {"kind": EventKind.SYNC, "work": {Work.SYNC: 2}},
    ]
    mark = {"kind": EventKind.MARK}
    program = make_program([mark, launch, *read, *read, *read, launch, *read, mark, *read, mark])
    assert np.flatnonzero(reads_again(program)).tolist() == [4, 5, 6, 7]
    edit = next(q.edit for q in shared_questions(program, Facts(true_ms=1.0)) if q.key is WhatIf.SYNCS_GONE)
    assert edit.gone is not None
    assert edit.gone.sum(axis=0)[[Work.DISPATCH, Work.HOST]].tolist() == [20, 0]
    assert np.asarray(edit.duration).tolist() == [1, 1, 0, 0, 1, 1, 1]


def test_a_wait_that_the_script_asks_for_is_no_read() -> None:
    wait = {"kind": EventKind.SYNC, "work": {Work.SYNC: 2, Work.DISPATCH: 5}}
    program = make_program([{"kind": EventKind.MARK}, wait, wait, wait, {"kind": EventKind.MARK}])
    assert not reads_again(program).any()


def test_many_small_kernels_become_few_with_their_traffic_and_one_floor_each() -> None:
    program = seamed(device_us=3.0)
    mask = np.ones(len(program.event), dtype=bool)
    factor = few_launches(program, mask, launches=1, traffic=0.5)
    left = (factor * program.duration).reshape(-1, 3)
    # All take the floor: no traffic is left, and of each step's three one floor stays.
    assert left.tolist() == [[pytest.approx(3 * US), 0.0, 0.0]] * 4
    assert (few_launches(program, ~mask, launches=1, traffic=0.5) == 1.0).all()


def test_traffic_beyond_the_floor_is_scaled() -> None:
    program = seamed(device_us=3.0)
    program.duration[:] = np.tile([2.0, 10.0, 10.0], 4) * US
    factor = few_launches(program, np.ones(12, dtype=bool), launches=2, traffic=0.25)
    left = (factor * program.duration).reshape(-1, 3).sum(axis=1)
    assert left == pytest.approx(np.full(4, 0.25 * 16 * US + 2 * 2 * US))


@pytest.mark.parametrize(("sends", "kept"), [(True, [1.0, 0.0, 1.0]), (False, None)])
def test_broadcasts_are_ddp_s_buffers_and_other_collectives_its_gradients(
    sends: bool, kept: list[float] | None
) -> None:
    program = seamed(device_us=3.0)
    sent = np.full(12, PARTS.index(Part.COMMUNICATION), dtype=np.int8)
    sent[::3] = PARTS.index(Part.OTHER_MATH)
    program = dataclasses.replace(program, part=sent, broadcast=np.tile([False, True, False], 4))
    run = Run(settings={"distributed.module": "ddp", "distributed.sends_buffers": sends})
    found = {each.name: each.edit for each in shared_questions(program, Facts(true_ms=1.0, run=run))}
    assert np.asarray(found[WhatIf.COMM_OVERLAPPED].duration).tolist() == [1.0, 0.0, 0.0] * 4
    gradients = [1.0, 1.0, 0.0] if sends else [1.0, 0.0, 0.0]
    assert np.asarray(found[WhatIf.GRADIENTS_OVERLAPPED].duration).tolist() == gradients * 4
    buffers = found.get(WhatIf.BUFFERS_KEPT)
    assert (None if buffers is None else np.asarray(buffers.duration).tolist()) == (kept and kept * 4)


def test_calls_that_repeat_others_take_their_share_of_launches_and_kernels_along() -> None:
    program = seamed(device_us=3.0)
    update = np.tile([False, False, True], 4)
    work = dataclasses.replace(device_work(program), optimizer=update)
    run = Run(repeats=RepeatFacts(calls=4, share=0.5, graded_share=0.25))
    known = Circumstances(facts=Facts(true_ms=1.0, run=run))
    found = {each.name: each for each in device_questions(program, work, known)}[WhatIf.FORWARD_ONCE]
    assert np.asarray(found.edit.duration).tolist() == [0.75, 0.75, 1.0] * 4
    assert found.edit.work == {Work.DISPATCH: 0.75}
    assert found.bound
    later = dataclasses.replace(known, later=np.tile([False, True, False], 4))
    found = {each.name: each for each in device_questions(program, work, later)}[WhatIf.FORWARD_ONCE]
    assert np.asarray(found.edit.duration).tolist() == [0.75, 1.0, 1.0] * 4


@pytest.mark.parametrize(("timed_ms", "left"), [((8.0, 2.0), 0.625), ((2.0, 8.0), 1.0), (None, None)])
def test_without_masks_that_mask_nothing_attention_is_as_much_shorter_as_it_was_timed(
    timed_ms: tuple[float, float] | None, left: float | None
) -> None:
    program = seamed(device_us=3.0)
    attention = np.tile([True, False, False], 4)
    run = Run(masks=MaskFacts(calls=4, masked=2, idle=2, timed_ms=timed_ms))
    known = Circumstances(facts=Facts(true_ms=1.0, run=run))
    work = dataclasses.replace(device_work(program), attention=attention)
    found = {question.name: question for question in device_questions(program, work, known)}
    if left is None:
        assert WhatIf.MASKS_GONE not in found
        return
    factor = found[WhatIf.MASKS_GONE].edit.duration
    assert factor == pytest.approx(np.where(attention, left, 1.0))


def test_the_profiler_s_cost_lies_where_it_recorded() -> None:
    """Seams hold half of the host's time and a tenth of the events: they lose a tenth of the cost."""
    program = seamed(seam_us=(15, 15))
    program = dataclasses.replace(
        program, recorded=np.bincount([Work.DISPATCH] * 90 + [Work.SEAM] * 10, minlength=len(Work))
    )
    profiled_ms = Replay(program).run(Edit(work={Work.OVERHEAD: 0.0})).step_ns / 1e6
    found = calibrate(Replay(program), 0.8 * profiled_ms)
    factors = found.base.factors()
    assert found.replayed_true_ms == pytest.approx(0.8 * profiled_ms, rel=1e-3)
    assert 1 - factors[Work.SEAM] == pytest.approx((1 - factors[Work.DISPATCH]) / 9, rel=1e-3)


def test_without_counts_every_category_is_scaled_alike() -> None:
    program = seamed(seam_us=(15, 15))
    profiled_ms = Replay(program).run(Edit(work={Work.OVERHEAD: 0.0})).step_ns / 1e6
    factors = calibrate(Replay(program), 0.8 * profiled_ms).base.factors()
    assert factors[Work.SEAM] == pytest.approx(factors[Work.DISPATCH])


@pytest.mark.parametrize("clips", [True, False])
def test_what_stands_between_backward_and_update_goes_with_all_that_it_launches(clips: bool) -> None:
    writer = TraceWriter()
    for k in range(4):
        at = 1000.0 * k
        for name, begin, length in (("forward", 0, 100), ("backward", 100, 300), ("optimizer", 700, 100)):
            writer.row(name, "user_annotation", at + begin, length)
        for begin in (50.0, 200.0, 750.0, *((400.0, 500.0, 600.0) if clips else ())):
            writer.row("aten::mul", "cpu_op", at + begin, 60)
            writer.launch(at + begin, 50, start=at + begin + 60, length=30)
    writer.steps([1000.0 * k for k in range(5)])
    trace = writer.build()
    program = build_program(trace, np.arange(5) * 1_000_000)
    assert program is not None
    edit = gradients_untouched(trace, program, thread=trace.tids.index(MAIN))
    gone = np.broadcast_to(edit.duration, len(program.event)) == 0.0
    assert gone.sum() == (12 if clips else 0)
    replay = Replay(program)
    saved_us = (replay.run().step_ns - replay.run(edit).step_ns) / US
    # From the end of the backward to the update; without a call there the pause between them.
    assert saved_us == pytest.approx(300.0, abs=20.0)


@pytest.mark.parametrize("operator", ["aten::cudnn_convolution", "aten::convolution_backward", "aten::mul"])
def test_a_convolution_that_waits_for_the_device_times_its_algorithms_until_then(operator: str) -> None:
    writer = TraceWriter()
    for at in (0.0, 2000.0, 4000.0, 6000.0):
        writer.row("forward", "user_annotation", at, 1900)
        writer.row(operator, "cpu_op", at + 100, 1500)
        for begin in (200.0, 500.0, 800.0):
            writer.launch(at + begin, 20, start=at + begin + 30, length=150)
            writer.row("cudaEventSynchronize", "cuda_runtime", at + begin + 30, 160)
        writer.row("cudaMalloc", "cuda_runtime", at + 1100, 300)
        # The convolution itself.
        writer.launch(at + 1450, 20, start=at + 1480, length=50)
    writer.steps([0.0, 2000.0, 4000.0, 6000.0, 8000.0])
    trace = writer.build()
    program = build_program(trace, np.arange(5) * 2_000_000)
    assert program is not None
    edit = searches_gone(trace, program)
    if operator == "aten::mul":
        assert edit is None
        return
    assert edit is not None
    launched = np.broadcast_to(edit.duration, len(program.event)) > 0.0
    assert launched.sum() == 4
    replay = Replay(program)
    saved_us = (replay.run().step_ns - replay.run(edit).step_ns) / US
    # From the operator's begin to its last wait (890 us), and the allocation afterwards.
    assert saved_us == pytest.approx(1190.0, abs=60.0)


@pytest.mark.parametrize(
    ("operator", "asks", "saves_us"),
    [
        ("aten::_cudnn_attention_forward", True, 1250.0),
        ("aten::_cudnn_attention_forward", False, None),
        ("aten::mul", True, None),
    ],
)
def test_attention_in_cudnn_plans_from_where_it_asks_for_the_version_to_its_launches(
    operator: str, asks: bool, saves_us: float | None
) -> None:
    writer = TraceWriter()
    for at in (0.0, 2000.0, 4000.0, 6000.0):
        writer.row("forward", "user_annotation", at, 1900)
        for first in (100.0, 1500.0):
            writer.row(operator, "cpu_op", at + first, 1360 if first == 100.0 else 100)
            if asks and first == 100.0:
                writer.row("cudaRuntimeGetVersion", "cuda_runtime", at + 150, 1)
            writer.launch(at + (1400 if first == 100.0 else 1520), 20, start=at + first + 1380, length=50)
    writer.steps([0.0, 2000.0, 4000.0, 6000.0, 8000.0])
    trace = writer.build()
    program = build_program(trace, np.arange(5) * 2_000_000)
    assert program is not None
    edit = plans_gone(trace, program)
    assert (edit is None) == (saves_us is None)
    if edit is not None:
        assert (np.broadcast_to(edit.duration, len(program.event)) == 1.0).all()
        replay = Replay(program)
        saved_us = (replay.run().step_ns - replay.run(edit).step_ns) / US
        assert saved_us == pytest.approx(saves_us, abs=30.0)


@pytest.mark.parametrize(
    ("operator", "copied", "what"),
    [
        ("aten::nonzero", False, "sizes"),
        ("aten::item", False, "values"),
        ("aten::copy_", True, "copies"),
        ("aten::copy_", False, "values"),
    ],
)
def test_what_waits_are_for_is_told_by_the_operator_and_by_what_was_sent_before(
    operator: str, copied: bool, what: str
) -> None:
    writer = TraceWriter()
    for at in (0.0, 1000.0, 2000.0):
        writer.row("forward", "user_annotation", at, 800)
        writer.launch(at + 10, 20, start=at + 40, length=300)
        writer.row(operator, "cpu_op", at + 100, 300)
        if copied:
            # A small copy is on its way when its call returns; then the host waits for it.
            writer.launch(
                at + 102,
                5,
                start=at + 345,
                length=3,
                kernel="Memcpy HtoD (Pageable -> Device)",
                cat="gpu_memcpy",
                call="cudaMemcpyAsync",
            )
        writer.row("cudaStreamSynchronize", "cuda_runtime", at + 110, 250)
    writer.steps([0.0, 1000.0, 2000.0, 3000.0])
    trace = writer.build()
    program = build_program(trace, np.arange(4) * 1_000_000)
    assert program is not None
    assert (program.kind == EventKind.SYNC).sum() == 3
    assert waits_for(trace, program, np.zeros(len(program.event), dtype=bool)) == what
