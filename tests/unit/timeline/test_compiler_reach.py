"""What a compiled model would run itself, and what the host keeps to do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import CompileFacts, LoopTime, Run, SourceSite
from torch_bottleneck.timeline.gpu.compiler_reach import (
    ENTRY_NS,
    GRAPH_NS,
    PER_GRADIENT_NS,
    PER_KERNEL_NS,
    PER_NODE_NS,
    PER_PARAMETER_NS,
    PER_STATIC_TENSOR_NS,
    Reach,
    host_left_ns,
    read_reach,
)
from torch_bottleneck.timeline.gpu.device_work import read_device_work
from torch_bottleneck.timeline.gpu.questions import gpu_questions
from torch_bottleneck.timeline.gpu.questions.circumstances import Circumstances
from torch_bottleneck.timeline.gpu.questions.dispatch import dispatch_questions
from torch_bottleneck.timeline.lanes.ask import Answers, Asker
from torch_bottleneck.timeline.lanes.calibrate import calibrate
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import EventKind, Program, build_program
from torch_bottleneck.timeline.lanes.questions import Question, shared_questions
from torch_bottleneck.timeline.lanes.replay import Replay
from torch_bottleneck.timeline.steps.facts import Facts
from torch_bottleneck.timeline.steps.loop_price import LoopPrice

from .traces import BACKWARD, TraceWriter

EDGES = [0.0, 1000.0, 2000.0]


def eager(*, labels: bool = True, wait: str = "", loss_module: bool = False) -> TraceWriter:
    """Two steps of a model of one layer: forward, loss, backward, the optimizer; a norm is logged."""
    writer = TraceWriter()
    for k, begin in enumerate(EDGES[:-1]):
        at, first = begin, 10 * k
        if labels:
            writer.row("forward", "user_annotation", at + 10, 200)
        if loss_module:
            writer.row("forward", "user_annotation", at + 215, 70)
        writer.row("aten::linear", "cpu_op", at + 20, 60, sequence=first)
        writer.launch(at + 60, 10, start=at + 75, length=20, kernel="sm90_gemm")
        writer.row("aten::relu", "cpu_op", at + 100, 60, sequence=first + 1)
        writer.launch(at + 140, 10, start=at + 155, length=20)
        if wait == "model":
            writer.row("cudaStreamSynchronize", "cuda_runtime", at + 170, 20, correlation=900 + k)
        writer.row("aten::mse_loss", "cpu_op", at + 220, 60, sequence=first + 2)
        writer.launch(at + 260, 10, start=at + 275, length=20)
        for name, node, offset in (
            ("MseLossBackward0", first + 2, 300),
            ("ReluBackward0", first + 1, 360),
            ("AddmmBackward0", first, 420),
        ):
            label = f"autograd::engine::evaluate_function: {name}"
            writer.row(label, "cpu_op", at + offset, 50, BACKWARD, sequence=node)
            writer.launch(at + offset + 30, 10, start=at + offset + 45, length=20, tid=BACKWARD)
            if node == first + 1:
                accumulate = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
                writer.row(accumulate, "cpu_op", at + offset + 52, 4, BACKWARD)
        accumulate = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        writer.row(accumulate, "cpu_op", at + 480, 5, BACKWARD)
        writer.row("aten::linalg_vector_norm", "cpu_op", at + 520, 40)
        writer.launch(at + 540, 10, start=at + 555, length=20)
        writer.row("Optimizer.step#SGD.step", "user_annotation", at + 600, 200)
        writer.launch(at + 700, 10, start=at + 715, length=20)
    return writer


def read(writer: TraceWriter) -> tuple[Program, Reach, list[float]]:
    writer.steps(EDGES)
    trace = writer.build()
    program = build_program(trace, np.asarray([round(e * 1000) for e in EDGES]))
    assert program is not None
    reach = read_reach(trace, program)
    called = program.row[reach.events & (program.kind == EventKind.LAUNCH)]
    return program, reach, sorted((trace.ts_ns[called] / 1000 % 1000).tolist())


def test_with_a_label_the_loss_the_logging_and_the_optimizer_stay_outside() -> None:
    _, reach, launches = read(eager())
    assert launches == [60, 60, 140, 140, 390, 390, 450, 450]
    assert reach.regions == 1
    assert reach.activities.sum() == len(launches)


def test_a_loss_that_is_a_module_is_no_part_of_the_model() -> None:
    program, reach, launches = read(eager(loss_module=True))
    assert launches == [60, 60, 140, 140, 390, 390, 450, 450]
    assert reach.regions == 1
    # What the host does in it is a module's all the same.
    assert (reach.model & (program.kind == EventKind.LAUNCH)).sum() == len(launches) + 4


def test_a_gradient_that_the_forward_asks_for_is_the_models_both_ways_but_no_compilers() -> None:
    writer = eager()
    for k, begin in enumerate(EDGES[:-1]):
        # In the forward, on the thread of the backwards; its operators record nodes, too.
        label = "autograd::engine::evaluate_function: "
        writer.row(f"{label}PowBackward0", "cpu_op", begin + 162, 20, BACKWARD, sequence=10 * k + 5)
        writer.row("aten::mul", "cpu_op", begin + 164, 16, BACKWARD, sequence=100 + k)
        writer.launch(begin + 166, 10, start=begin + 180, length=5, tid=BACKWARD)
        writer.row(f"{label}MulBackward0", "cpu_op", begin + 490, 20, BACKWARD, sequence=100 + k)
        writer.launch(begin + 495, 10, start=begin + 506, length=5, tid=BACKWARD)
    program, reach, launches = read(writer)
    assert launches == [60, 60, 140, 140, 390, 390, 450, 450]
    model = reach.model & (program.kind == EventKind.LAUNCH)
    assert model.sum() == len(launches) + 4


def test_without_a_label_autograd_tells_the_forward_pass_and_the_loss_counts_as_well() -> None:
    _, reach, launches = read(eager(labels=False))
    assert launches == [60, 60, 140, 140, 260, 260, 330, 330, 390, 390, 450, 450]
    assert reach.regions == 1


def recurrent(*, reached: bool) -> TraceWriter:
    """The model's second layer is an nn.LSTM, or an operator like others."""
    writer = eager()
    for begin in EDGES[:-1]:
        writer.row("aten::dropout" if reached else "aten::lstm", "cpu_op", begin + 95, 70)
    return writer


def test_recurrent_layers_and_their_backward_stay_as_they_are() -> None:
    _, reach, launches = read(recurrent(reached=False))
    assert launches == [60, 60, 450, 450]
    assert (reach.recurrent, reach.regions) == (1, 2)
    _, reach, launches = read(recurrent(reached=True))
    assert launches == [60, 60, 140, 140, 390, 390, 450, 450]
    assert (reach.recurrent, reach.regions) == (0, 1)


def test_a_promise_for_a_model_with_recurrent_layers_is_a_bound() -> None:
    for reached in (True, False):
        _, questions, _ = asked(recurrent(reached=reached))
        for name in (WhatIf.ONE_LAUNCH, WhatIf.COMPILED):
            assert questions[name].bound is not reached
            assert ("recurrent layers" in questions[name].basis) is not reached


def test_without_backward_and_label_all_dispatch_is_the_model() -> None:
    writer = TraceWriter()
    for begin in EDGES[:-1]:
        writer.launch(begin + 100, 10, start=begin + 120, length=20)
        writer.launch(begin + 300, 10, start=begin + 320, length=20)
    _, reach, launches = read(writer)
    assert launches == [100, 100, 300, 300]
    assert (reach.parameters, reach.handed_within) == (0, 0)


def test_gradients_are_counted_where_their_time_is() -> None:
    """One is handed over between two nodes, the other after the last: then its time is not the model's."""
    _, reach, _ = read(eager())
    assert (reach.parameters, reach.handed_within) == (2, 1)


def test_the_host_keeps_the_entry_the_parameters_the_gradients_and_a_price_per_kernel() -> None:
    nothing = np.zeros(0, dtype=bool)
    reach = Reach(
        events=nothing,
        model=nothing,
        activities=nothing,
        backward=nothing,
        regions=2,
        parameters=100,
        handed_within=60,
        compiled=nothing,
    )
    shared = 2 * ENTRY_NS + 100 * PER_PARAMETER_NS + 60 * PER_GRADIENT_NS
    assert host_left_ns(reach, 300, graphs=False) == pytest.approx(shared + 300 * PER_KERNEL_NS)
    graphs = shared + 2 * GRAPH_NS + 100 * PER_STATIC_TENSOR_NS + 300 * PER_NODE_NS
    assert host_left_ns(reach, 300, graphs=True) == pytest.approx(graphs)
    slower = dataclasses.replace(reach, slowness=1.5)
    assert host_left_ns(slower, 300, graphs=True) == pytest.approx(1.5 * graphs)


def test_the_hosts_speed_is_told_by_the_nodes_that_keep_gradients() -> None:
    def slowness(keeps_us: float, count: int) -> float:
        writer = eager()
        for i in range(count):
            writer.row("torch::autograd::AccumulateGrad", "cpu_op", 820 + 10 * i, keeps_us, BACKWARD)
        return read(writer)[1].slowness

    assert slowness(2.8, 8) == pytest.approx(2.0)
    assert slowness(0.7, 8) == pytest.approx(0.5)
    assert slowness(1.6, 8) == 1.0  # the spread of one host
    assert slowness(2.8, 3) == 1.0  # too few to tell


def answered(writer: TraceWriter) -> Answers:
    writer.steps(EDGES)
    trace = writer.build()
    program = build_program(trace, np.asarray([round(e * 1000) for e in EDGES]))
    assert program is not None
    replay = Replay(program)
    work = read_device_work(trace, program)
    calibration, facts = calibrate(replay, None), Facts(true_ms=1.0)
    questions = gpu_questions(program, calibration, work, Circumstances(facts=facts))
    asker = Asker(replay, calibration.base, true_ms=1.0)
    return asker.ask((*shared_questions(program, facts), *questions))


def test_a_node_that_adds_to_a_gradient_tells_nothing_of_the_hosts_speed() -> None:
    writer = eager()
    for i in range(8):
        writer.row("torch::autograd::AccumulateGrad", "cpu_op", 820 + 20 * i, 15.0, BACKWARD)
        writer.launch(824 + 20 * i, 5, start=835 + 20 * i, length=2, tid=BACKWARD)
    assert read(writer)[1].slowness == 1.0


def asked(
    writer: TraceWriter, *, compiled: bool = False, run: Run | None = None, loop: LoopPrice | None = None
) -> tuple[Program, dict[WhatIf, Question], Replay]:
    writer.steps(EDGES)
    trace = writer.build()
    program = build_program(trace, np.asarray([round(e * 1000) for e in EDGES]))
    assert program is not None
    replay = Replay(program)
    facts = Facts(true_ms=1.0, compile_facts=CompileFacts(used=compiled), run=run)
    known = Circumstances(facts=facts, loop=loop)
    work = read_device_work(trace, program)
    questions = dispatch_questions(program, calibrate(replay, None), work, known)
    return program, {q.name: q for q in questions}, replay


def test_what_lies_outside_the_model_keeps_its_host_time() -> None:
    program, questions, _ = asked(eager())
    gone = questions[WhatIf.ONE_LAUNCH].edit.gone
    assert gone is not None
    reach = gone.sum(axis=1) != 0
    assert reach.sum() == 8
    assert gone[:, Work.OPTIMIZER].sum() == 0
    outside = program.work[~reach].sum()
    assert (program.work - gone)[~reach].sum() == outside


def test_a_loop_takes_its_share_of_the_dispatch_with_it_and_anomaly_detection_at_most_all() -> None:
    place = SourceSite(file="net.py", line=3, function="forward")
    loop = LoopTime(site=place, last_line=7, seen={"sampled forward": 30}, of={"sampled forward": 100})
    price = LoopPrice(loop=loop, spent_ms=0.3)
    program, questions, replay = asked(eager(), run=Run(settings={"anomaly_mode": True}), loop=price)
    plain = replay.run().step_ns
    part = plain - replay.run(questions[WhatIf.LOOP_GONE].edit).step_ns
    all_of_it = plain - replay.run(questions[WhatIf.ANOMALIES_IGNORED].edit).step_ns
    assert 0 < part < all_of_it
    gone = questions[WhatIf.LOOP_GONE].edit.gone
    assert gone is not None
    model = questions[WhatIf.ONE_LAUNCH].edit.gone.sum(axis=1) != 0
    assert gone[model, Work.DISPATCH] == pytest.approx(0.3 * program.work[model, Work.DISPATCH])
    assert not gone[~model].any()
    assert "30 of 100 samples" in questions[WhatIf.LOOP_GONE].basis
    _, questions, _ = asked(eager())
    assert not {WhatIf.LOOP_GONE, WhatIf.ANOMALIES_IGNORED} & questions.keys()


def test_a_loop_of_the_loss_takes_its_kernels_and_its_part_of_the_backward_along() -> None:
    place = SourceSite(file="train.py", line=3, function="main")
    seen, of = {"sampled between": 90}, {"sampled between": 100, "sampled forward": 10}
    price = LoopPrice(loop=LoopTime(site=place, last_line=7, seen=seen, of=of), spent_ms=0.3)
    program, questions, _ = asked(eager(), loop=price)
    edit = questions[WhatIf.LOOP_GONE].edit
    assert edit.gone is not None
    starts = program.observed_start / 1000 % 1000
    factors = dict(zip(starts.round().tolist(), np.asarray(edit.duration).round(3).tolist(), strict=True))
    # The loss, its node of the backward and the norm behind that; not the model, nor the update.
    assert factors == {75: 1.0, 155: 1.0, 275: 0.1, 345: 0.1, 405: 1.0, 465: 1.0, 555: 0.1, 715: 1.0}
    assert (np.asarray(edit.spacing) == np.asarray(edit.duration)).all(), "and the pauses between them"
    model = questions[WhatIf.ONE_LAUNCH].edit.gone.sum(axis=1) != 0
    assert not edit.gone[model].any()


def test_the_model_keeps_exactly_what_is_left_to_the_host() -> None:
    program, questions, _ = asked(eager())
    for question, graphs in ((WhatIf.ONE_LAUNCH, True), (WhatIf.COMPILED, False)):
        gone = questions[question].edit.gone
        assert gone is not None
        reach = gone.sum(axis=1) != 0
        kept = (program.work - gone)[reach][:, Work.DISPATCH].sum() / 2
        per_kernel = PER_NODE_NS if graphs else PER_KERNEL_NS
        each = 2 * (PER_PARAMETER_NS + (PER_STATIC_TENSOR_NS if graphs else 0))
        entry = ENTRY_NS + (GRAPH_NS if graphs else 0)
        assert kept == pytest.approx(entry + each + PER_GRADIENT_NS + 3 * per_kernel)


def test_a_wait_in_a_model_that_is_not_compiled_makes_the_answer_a_bound() -> None:
    _, plain, _ = asked(eager())
    _, waiting, _ = asked(eager(wait="model"))
    assert not plain[WhatIf.ONE_LAUNCH].bound
    assert not plain[WhatIf.COMPILED].bound
    assert waiting[WhatIf.ONE_LAUNCH].bound
    assert waiting[WhatIf.COMPILED].bound


def test_a_wait_that_the_compiler_kept_in_one_graph_goes_with_cuda_graphs() -> None:
    program, questions, _ = asked(eager(wait="model"), compiled=True)
    question = questions[WhatIf.ONE_LAUNCH]
    assert not question.bound
    assert question.edit.drop_at is not None
    assert (program.kind[question.edit.drop_at] == EventKind.SYNC).all()
    assert question.edit.drop_at.sum() == 2
    assert WhatIf.COMPILED not in questions


def test_a_model_too_small_to_be_compiled_loses_and_the_answer_says_so() -> None:
    """Its two kernels take the host 0.1 ms; entering compiled code alone takes more."""
    writer = TraceWriter()
    for k, begin in enumerate(EDGES[:-1]):
        writer.launch(begin + 5, 5, start=begin + 12, length=10)
        writer.row("forward", "user_annotation", begin + 20, 60)
        writer.row("aten::linear", "cpu_op", begin + 25, 40, sequence=k)
        writer.launch(begin + 50, 5, start=begin + 60, length=10, kernel="sm90_gemm")
        writer.launch(begin + 100, 5, start=begin + 110, length=10)
        label = "autograd::engine::evaluate_function: AddmmBackward0"
        writer.row(label, "cpu_op", begin + 120, 50, BACKWARD, sequence=k)
        writer.launch(begin + 140, 5, start=begin + 150, length=10, tid=BACKWARD)
    answers = answered(writer)
    compiled = answers.results[WhatIf.COMPILED]
    assert compiled.step_ms > 1.0
    assert compiled.saves_ms == pytest.approx(1.0 - compiled.step_ms)
    assert not any(WhatIf.COMPILED in pair for pair in answers.after)
