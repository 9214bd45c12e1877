"""Kernels that keep little of the device at work for long, told from small ones; the step without that."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torch_bottleneck.ingest import read_trace
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import LoopTime, SourceSite
from torch_bottleneck.timeline.gpu.device_work import filled_share, read_device_work
from torch_bottleneck.timeline.gpu.narrow import Narrow, narrow_kernels
from torch_bottleneck.timeline.gpu.questions.circumstances import Circumstances
from torch_bottleneck.timeline.gpu.questions.dispatch import dispatch_questions
from torch_bottleneck.timeline.lanes.calibrate import calibrate
from torch_bottleneck.timeline.lanes.program import build_program
from torch_bottleneck.timeline.lanes.replay import Replay
from torch_bottleneck.timeline.steps.facts import Facts
from torch_bottleneck.timeline.steps.loop_price import LoopPrice
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.table import FULL, NONE, Trace

from .readings import read as read_whole
from .traces import TraceWriter

STEPS, STEP_US = 3, 5000.0


def written(
    *, filled: int, length: float, other: float = 100.0, operators: bool = True, rounds: int = 1
) -> Trace:
    """Scans of so many warps (parts of `FULL`), a product on all of the device, a small sum."""
    writer = TraceWriter()
    edges = [STEP_US * k for k in range(STEPS + 1)]
    for at in edges[:-1]:
        behind = at + 30 + rounds * length
        for k in range(rounds):
            writer.row("aten::cumsum", "cpu_op", at + 1 + k, 0.8)
            start = at + 30 + k * length
            writer.launch(at + 1.1 + k, 0.5, kernel="scan_outer", start=start, length=length, filled=filled)
        writer.row("aten::mm", "cpu_op", at + 22, 8)
        writer.launch(at + 23, 5, kernel="gemm", start=behind, length=other, filled=FULL)
        writer.row("aten::sum", "cpu_op", at + 31, 8)
        writer.launch(at + 32, 5, kernel="reduce", start=behind + other, length=6, filled=8)
        # The host waits for all of it, and has nothing else to do.
        end = behind + other + 6
        writer.row("cudaDeviceSynchronize", "cuda_runtime", at + 40, end - at - 39)
    writer.steps(edges)
    if not operators:
        writer.rows = [row for row in writer.rows if row["cat"] != "cpu_op"]
    return writer.build()


def found(trace: Trace) -> Narrow | None:
    steps = find_steps(trace)
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    assert program is not None
    return narrow_kernels(trace, program, filled_share(trace, program), None)


def test_a_long_kernel_of_few_blocks_is_named_with_the_share_of_the_device_that_it_keeps_at_work() -> None:
    narrow = found(written(filled=FULL // 100, length=2000.0))
    assert narrow is not None
    assert (narrow.call.callee, narrow.call.count) == ("cumsum", 1.0)
    assert narrow.call.share == pytest.approx(0.01)
    assert narrow.call.ms == pytest.approx(2.0)
    assert sorted(set(narrow.left.tolist())) == [0.01, 1.0]


def test_small_kernels_and_full_ones_are_not_narrow() -> None:
    assert found(written(filled=FULL, length=2000.0)) is None
    assert found(written(filled=NONE, length=2000.0)) is None, "a trace that does not tell"
    assert found(written(filled=FULL // 100, length=2000.0, operators=False)) is None, "nor by whom"
    assert found(written(filled=FULL // 100, length=60.0)) is None, "0.6 us on all of it"


def test_the_step_is_replayed_with_its_work_on_all_of_the_device() -> None:
    trace = written(filled=FULL // 10, length=4000.0, other=500.0)
    timeline = read_whole(trace, find_steps(trace), true_ms=STEP_US / 1000)
    answer = timeline.what_ifs[WhatIf.KERNELS_SPREAD]
    assert answer.bound
    assert answer.saves_ms == pytest.approx(3.6, abs=0.1)
    assert timeline.narrow is not None


@pytest.mark.parametrize(("rounds", "left"), [(1, 1.0), (2, 0.5), (20, 0.1)])
def test_what_one_round_of_a_loop_leaves_of_the_device_the_others_take(rounds: int, left: float) -> None:
    """All of them take as long as one at least."""
    trace = written(filled=FULL // 10, length=2000.0 / rounds, other=2000.0, rounds=rounds)
    steps = find_steps(trace)
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    assert program is not None
    every = {"sampled forward": 100, "sampled between": 100}
    site = SourceSite(file="train.py", line=3, function="main")
    loop = LoopPrice(loop=LoopTime(site=site, last_line=7, seen=every, of=every), spent_ms=3.0)
    questions = dispatch_questions(
        program,
        calibrate(Replay(program), None),
        read_device_work(trace, program),
        Circumstances(facts=Facts(true_ms=STEP_US / 1000), loop=loop),
    )
    (edit,) = (each.edit for each in questions if each.name is WhatIf.LOOP_GONE)
    shortest = 6.0
    scan, product, total = np.asarray(edit.duration)[rounds - 1 : rounds + 2].tolist()
    assert scan == pytest.approx(left * (1 - shortest * rounds / 2000.0))
    assert (product, total) == pytest.approx((1 - shortest / 2000.0, 0.0))


@pytest.mark.parametrize("unreadable", [[], ["many"]])
def test_the_warps_of_a_kernel_are_read_however_they_are_written(
    tmp_path: Path, unreadable: list[str]
) -> None:
    each = [0.030303, 4, "0.5", None, 40.0, *unreadable]
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 10 * i, "dur": 5, "pid": 0, "tid": 7,
         "args": {} if value is None else {"warps per SM": value}}
        for i, value in enumerate(each)
    ]  # fmt: skip
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert np.asarray(read_trace(path).filled).tolist() == [
        8,
        FULL,
        125,
        NONE,
        FULL,
        *[NONE for _ in unreadable],
    ]
