"""Which of the user's lines the device works for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec
import pytest
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.ingest import read_trace
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.run import GraphLines, Run
from torch_bottleneck.timeline.gpu.by_line import NO_LINE, lines_of_activities
from torch_bottleneck.timeline.lanes.program import Program, build_program
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.table import Trace

CASE = CASES["thread-index-rows-h100"]


@cache
def diagnosis() -> Diagnosis:
    return diagnose_paths([CASE.folder])


@cache
def recorded() -> tuple[Trace, Program, GraphLines]:
    trace = read_trace(CASE.traces[0])
    steps = find_steps(trace)
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    run = msgspec.json.decode((CASE.folder / "run.json").read_bytes(), type=Run)
    assert program is not None and run.graph is not None
    return trace, program, run.graph


def test_the_first_line_is_the_one_whose_cure_was_measured_and_has_its_price() -> None:
    first = diagnosis().device_lines[0]
    assert (first.name, first.line, first.role) == ("context = pooled[pillar]", 45, "device")
    assert first.callee == "IndexBackward0"
    assert first.price_ms is not None
    step = diagnosis().step.true_ms
    assert step is not None
    assert step - first.price_ms == pytest.approx(float(CASE.facts["measured_fixed_ms"]), rel=0.05)
    assert diagnosis().causes[0].sites[0].line == 45
    assert "`context = pooled[pillar]` at" in diagnosis().verdict.headline


def test_the_fix_of_the_thread_is_first_and_promises_what_was_measured() -> None:
    first = diagnosis().suggestions[0]
    assert (first.fix, first.bound) == ("FX327", True)
    assert first.predicted_ms == pytest.approx(float(CASE.facts["measured_fixed_ms"]), rel=0.1)


def test_nearly_all_of_forward_and_backward_has_a_line() -> None:
    trace, program, graph = recorded()
    line, node = lines_of_activities(trace, program, graph)
    known = line != NO_LINE
    assert program.duration[known].sum() > 0.9 * program.duration.sum()
    assert (known == (node != NO_LINE)).all()


@pytest.mark.parametrize(
    "change",
    [lambda name: name != "IndexBackward0", lambda name: name == "IndexBackward0"],
    ids=["fewer", "none else"],
)
def test_nodes_of_which_another_number_was_noted_have_no_line(change: Callable[[str], bool]) -> None:
    trace, program, graph = recorded()
    kept = [at for at, name in enumerate(graph.node) if change(graph.names[name])]
    fewer = msgspec.structs.replace(
        graph, node=[graph.node[at] for at in kept], line=[graph.line[at] for at in kept]
    )
    line, node = lines_of_activities(trace, program, fewer)
    whole_line, whole_node = lines_of_activities(trace, program, graph)
    index = graph.names.index("IndexBackward0")
    mine = (whole_node == index) if change("IndexBackward0") else (whole_node != index)
    assert (line[mine] == whole_line[mine]).all()
    assert (line[~mine] == NO_LINE).all()
    assert (node[~mine] == NO_LINE).all()
