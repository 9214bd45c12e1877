"""Which of the user's lines the device works for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.ingest import read_trace
from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.run import GraphLines, LoopTime, OperatorLines, Run, SourceSite
from torch_bottleneck.reporters.rows.code import code_rows
from torch_bottleneck.timeline.gpu.by_line import NO_LINE, _leads_on, asked_by
from torch_bottleneck.timeline.gpu.questions.dispatch import _of_loop, _without_loop
from torch_bottleneck.timeline.lanes.labels import Work
from torch_bottleneck.timeline.lanes.program import PARTS, EventKind, Program, build_program
from torch_bottleneck.timeline.lanes.questions import EAGER
from torch_bottleneck.timeline.steps.loop_lines import LoopShares
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.dialect import Kind
from torch_bottleneck.timeline.trace.table import Trace

CASE = CASES["thread-index-rows-h100"]


@cache
def diagnosis() -> Diagnosis:
    return diagnose_paths([CASE.folder])


@cache
def recorded(name: str = CASE.name) -> tuple[Trace, Program, GraphLines]:
    case = CASES[name]
    trace = read_trace(case.traces[0])
    steps = find_steps(trace)
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    run = msgspec.json.decode((case.folder / "run.json").read_bytes(), type=Run)
    assert program is not None and run.graph is not None
    return trace, program, run.graph


UNGRADED = "thread-adjacency-h100"
"""Half of the device's time in it no node asks for."""
MADE = SourceSite(file="train.py", line=9, function="made")
CALLED = SourceSite(file="train.py", line=70, function="main")


def operators_of(trace: Trace, program: Program, *, first: SourceSite = MADE) -> OperatorLines:
    """Return what would be noted of the first traced step if one function called all of its operators."""
    begin, end = program.mark_ns[:2]
    rows = trace.rows(Kind.OP)
    rows = rows[(trace.ts_ns[rows] >= begin) & (trace.ts_ns[rows] < end)]
    outer = np.isin(rows, trace.outermost(rows)) & np.array(
        [trace.name_of(row).startswith("aten::") for row in rows.tolist()]
    )
    names = [trace.name_of(row) for row in rows.tolist()]
    calls: dict[str, list[int]] = {}
    for name, is_outer in zip(names, outer.tolist(), strict=True):
        calls.setdefault(name, []).append(0 if is_outer else -1)
    return OperatorLines(
        calls={name: its for name, its in calls.items() if 0 in its},
        chains=[(0, 1)],
        inner=[-1],
        sites=[first, CALLED],
        texts=["out = made(x)", "loss = step(x)"],
    )


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


def test_where_the_host_decides_a_line_costs_what_it_launches_and_the_cause_names_it() -> None:
    found = diagnose_paths([CASES["thread-triplets-h200"].folder])
    (dispatch,) = [finding for finding in found.findings if finding.code == "BN501"]
    first = found.device_lines[0]
    assert first.price_ms is not None
    assert first.price_ms > 2 * first.ms, "its kernels alone would be half of that at most"
    assert dispatch.cost_ms is not None
    assert first.price_ms < dispatch.cost_ms
    assert f"{first.price_ms:.1f} ms of it for spore_volumes.py:{first.line}" in dispatch.title


def test_the_fix_of_the_thread_is_first_and_promises_what_was_measured() -> None:
    first = diagnosis().suggestions[0]
    assert (first.fix, first.bound) == ("FX327", True)
    assert first.predicted_ms == pytest.approx(float(CASE.facts["measured_fixed_ms"]), rel=0.1)


def test_nearly_all_of_forward_and_backward_has_a_line() -> None:
    trace, program, graph = recorded()
    asked = asked_by(trace, program, graph)
    known = asked.line != NO_LINE
    assert program.duration[known].sum() > 0.9 * program.duration.sum()
    assert (known == (asked.node != NO_LINE)).all()
    assert (asked.inner == NO_LINE).all()


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
    found, whole = asked_by(trace, program, fewer), asked_by(trace, program, graph)
    index = graph.names.index("IndexBackward0")
    mine = (whole.node == index) if change("IndexBackward0") else (whole.node != index)
    assert (found.line[mine] == whole.line[mine]).all()
    assert (found.line[~mine] == NO_LINE).all()
    assert (found.node[~mine] == NO_LINE).all()


def test_what_no_node_asks_for_belongs_to_the_line_that_calls_the_operator() -> None:
    trace, program, graph = recorded(UNGRADED)
    without = asked_by(trace, program, graph)
    found = asked_by(trace, program, graph, operators_of(trace, program))
    spent, updates = program.duration, program.launch_work == Work.OPTIMIZER

    def share(mine: Any) -> float:
        return float(spent[mine].sum() / spent.sum())

    unknown = without.line == NO_LINE
    assert share(unknown & ~updates) > 0.4
    assert share((found.line == NO_LINE) & ~updates) < 0.02
    assert (found.line[~unknown] == without.line[~unknown]).all(), "a node tells more"
    assert (found.line[updates] == without.line[updates]).all(), "the update is priced by itself"
    new = unknown & (found.line != NO_LINE)
    assert {found.lines.sites[line] for line in found.line[new].tolist()} == {MADE}
    assert {found.lines.names[name].split("::")[0] for name in found.node[new].tolist()} == {"aten"}
    assert (found.place == without.place).all(), "no part of the graph"
    loop = LoopTime(site=CALLED, last_line=71)
    events = found.events_of(loop)
    assert events[program.event[new]].all()
    launches = np.diff(program.first_activity) > 0
    others = set(np.flatnonzero(events & launches)) - set(program.event[new].tolist())
    assert others <= set(program.event[updates].tolist()), "they are called there, too"
    waits = program.kind == EventKind.SYNC
    assert events[waits].any() and not without.events_of(loop).any(), "what launches nothing, as well"


def test_the_line_of_a_package_that_calls_an_operator_is_known() -> None:
    trace, program, graph = recorded(UNGRADED)
    noted = operators_of(trace, program)
    package = SourceSite(file="/lib/site-packages/layers/norm.py", line=5, function="forward")
    inside = msgspec.structs.replace(
        noted, inner=[2], sites=[*noted.sites, package], texts=[*noted.texts, ""]
    )
    found = asked_by(trace, program, graph, inside)
    new = (found.place == NO_LINE) & (found.line != NO_LINE)
    assert {found.lines.sites[at] for at in found.inner[new].tolist()} == {package}
    assert (found.inner[~new] == NO_LINE).all()


def test_lines_that_a_graph_knows_too_are_the_same_ones() -> None:
    trace, program, graph = recorded(UNGRADED)
    found = asked_by(trace, program, graph, operators_of(trace, program, first=graph.sites[0]))
    assert found.lines.sites == [*graph.sites, CALLED]
    assert found.lines.texts == [*graph.texts, "loss = step(x)"]


def test_operators_of_which_another_number_was_noted_have_no_line() -> None:
    trace, program, graph = recorded(UNGRADED)
    noted = operators_of(trace, program)
    whole = asked_by(trace, program, graph, noted)
    new = (whole.place == NO_LINE) & (whole.line != NO_LINE)
    dearest = whole.lines.names[int(np.bincount(whole.node[new], weights=program.duration[new]).argmax())]
    more = msgspec.structs.replace(noted, calls={**noted.calls, dearest: [*noted.calls[dearest], 0]})
    found = asked_by(trace, program, graph, more)
    mine = new & (np.array(whole.lines.names)[whole.node] == dearest)
    assert mine.any()
    assert (found.line[mine] == NO_LINE).all()
    assert (found.line[~mine] != NO_LINE).sum() == (whole.line[~mine] != NO_LINE).sum()


def test_the_report_names_the_line_of_what_runs_without_gradients(tmp_path: Path) -> None:
    trace, program, _ = recorded(UNGRADED)
    folder = tmp_path / "run"
    shutil.copytree(CASES[UNGRADED].folder, folder)
    run = msgspec.json.decode((folder / "run.json").read_bytes())
    run["operators"] = msgspec.to_builtins(operators_of(trace, program))
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    found, before = diagnose_paths([folder]), diagnose_paths([CASES[UNGRADED].folder])
    (made,) = [node for node in found.device_lines if node.line == 9]
    assert (made.name, made.file) == ("out = made(x)", "train.py")
    assert made.callee.startswith("aten::")
    assert made.price_ms is not None
    assert made.price_ms > 0.4 * (found.step.true_ms or 0.0)
    rest = [node for node in found.device_lines if node is not made]
    assert rest == list(before.device_lines)


def test_what_a_loop_calls_belongs_to_it_wherever_it_stands() -> None:
    trace, program, graph = recorded()
    index, at = graph.names.index("IndexBackward0"), len(graph.sites)
    site = SourceSite(file="train.py", line=7, function="main")
    called = msgspec.structs.replace(
        graph,
        sites=[*graph.sites, site],
        chain=[int(node == index) for node in graph.node],
        chains=[(), (graph.line[graph.node.index(index)], at)],
    )
    loop = LoopTime(site=site, last_line=8)
    asked = asked_by(trace, program, called)
    events = asked.events_of(loop)
    assert set(np.flatnonzero(events)) == set(program.event[asked.node == index])
    assert not asked_by(trace, program, graph).events_of(loop).any()

    everything = np.ones(len(events), dtype=bool)
    spent = program.work[:, EAGER].sum(axis=1)
    share = spent[events].sum() / spent.sum()
    assert (_of_loop(program, everything, 0.9 * share, events)[0] == events).all()
    assert (_of_loop(program, everything, 1.1 * share, events)[0] == 1.1 * share).all(), "more than its lines"


def test_what_samples_saw_beyond_a_loops_lines_lies_where_no_line_is_known() -> None:
    _, program, _ = recorded()
    everything = np.ones(len(program.kind), dtype=bool)
    eager, host = program.work[:, EAGER].sum(axis=1), program.work[:, Work.HOST]
    asked, lined = np.arange(len(eager)) % 4 == 0, np.arange(len(eager)) % 2 == 0
    whole = float((eager + host).sum())

    def price(sampled: float, asked: Any, lined: Any) -> float:
        launching, other = _of_loop(program, everything, sampled, asked, lined)
        return float((launching * eager + other * host).sum()) / whole

    own = float(eager[asked].sum()) / whole
    launching, _ = _of_loop(program, everything, own + 0.1, asked, lined)
    assert (launching[lined] == asked[lined]).all()
    assert price(own + 0.1, asked, lined) == pytest.approx(own + 0.1)
    assert price(0.0, asked, lined) == pytest.approx(own), "its own is certain"
    # A loop that calls no operator, and operators whose number differed from step to step.
    nothing = np.zeros(len(eager), dtype=bool)
    assert price(0.05, nothing, everything) == pytest.approx(min(0.05, float(host.sum()) / whole))
    assert price(0.5, nothing, nothing) == pytest.approx(0.5)


def test_lines_inside_a_function_with_a_backward_of_its_own_have_what_they_launch() -> None:
    """Its one node is recorded where it is applied; the operators inside are called at lines of their own."""
    outer, chains = [(7, 1), (3,)], [(9, 7, 1), (7, 1), (9, 8, 1), (5, 3)]
    at = np.array([0, 0, 0, 0, NO_LINE, 1])
    below = np.array([0, 1, 2, NO_LINE, 0, 3])
    assert _leads_on(at, outer, below, chains).tolist() == [True, False, False, False, False, True]
    nothing = np.full(3, NO_LINE)
    assert not _leads_on(nothing, outer, nothing, chains).any()

    found = diagnose_paths([CASES["gpu-thread-own-function"].folder])
    (loop,) = [answer for answer in found.what_ifs if answer.question is WhatIf.LOOP_GONE]
    assert loop.saves_ms > 0.1 * found.step.true_ms, "copied value by value, at line 37"
    assert [site.line for site in found.findings[0].sites][:1] == [36]


def test_one_operator_for_all_rounds_of_a_loop_sends_as_much_between_ranks() -> None:
    trace = read_trace(CASES["ddp-h200"].traces[0])
    steps = find_steps(trace)
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    assert program is not None
    nothing = np.zeros(len(program.kind), dtype=bool)
    beside: Any = SimpleNamespace(
        reach=SimpleNamespace(model=nothing), filled=np.zeros(len(program.event)), alike=1e6
    )
    shares = LoopShares(forward=0.0, between=1.0, after=0.0, update=0.0, backward=0.0)
    left = _without_loop(program, beside, shares, None).duration
    sends = program.part == PARTS.index(Part.COMMUNICATION)
    assert sends.any() and (left[sends] == 1.0).all()
    assert (left[~sends] < 0.01).any(), "other kernels of a loop become one"


def test_a_loop_in_the_model_takes_its_waits_along_where_its_events_are_known() -> None:
    trace = read_trace(CASES["gpu-thread-values-read"].traces[0])
    steps = find_steps(trace)
    program = build_program(trace, steps.edges_ns, main_tid=steps.thread[1])
    assert program is not None
    reach = SimpleNamespace(model=np.ones(len(program.kind), dtype=bool))
    in_model: Any = SimpleNamespace(
        reach=reach, filled=np.ones(len(program.event)), alike=np.ones(len(program.event))
    )
    asked = np.arange(len(program.kind)) % 3 == 0
    waits = program.kind == EventKind.SYNC
    assert (waits & asked).any() and (waits & ~asked).any()
    shares = LoopShares(forward=0.0, between=0.0, after=0.0, update=0.0, backward=0.0)
    lined = np.arange(len(program.kind)) % 6 != 0
    known = _without_loop(program, in_model, shares, asked, lined)
    assert known.drop_at is not None and (known.drop_at == (waits & asked & lined)).all()
    assert known.gone is not None
    for kind in (Work.DISPATCH, Work.SYNC):
        assert (known.gone[:, kind] == np.where(asked & lined, program.work[:, kind], 0.0)).all()
    # Only nodes have lines.
    guessed = _without_loop(program, in_model, shares, asked)
    assert guessed.drop_at is None
    assert guessed.gone is not None
    assert not guessed.gone[:, Work.SYNC].any()
    assert (guessed.gone[:, Work.DISPATCH] == np.where(asked, program.work[:, Work.DISPATCH], 0.0)).all()


def test_below_a_line_of_the_users_stand_those_of_a_package_with_their_part(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(CASE.folder, folder)
    run = msgspec.json.decode((folder / "run.json").read_bytes())
    graph = run["graph"]
    # As if the whole model were called at one line, and each of its own lines were a package's.
    graph["sites"].append({"file": "train.py", "line": 7, "function": "main"})
    graph["texts"].append("loss = model(x)")
    graph["inner"] = graph["line"]
    graph["line"] = [len(graph["sites"]) - 1] * len(graph["line"])
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    found = diagnose_paths([folder])
    (whole,) = found.device_lines
    assert (whole.name, whole.line) == ("loss = model(x)", 7)
    assert [child.name for child in whole.children] == [node.name for node in diagnosis().device_lines]
    assert sum(child.ms for child in whole.children) <= whole.ms * 1.001
    assert whole.children[0].price_ms == pytest.approx(diagnosis().device_lines[0].price_ms)
    rows = [row.name for row in code_rows(found)]
    assert rows[:2] == ["model(x)", "pooled[pillar]"]


def with_graph(tmp_path: Path, **changed: Any) -> Path:
    """Return the recorded run with other things known of its graph."""
    folder = tmp_path / "run"
    shutil.copytree(CASE.folder, folder)
    run = msgspec.json.decode((folder / "run.json").read_bytes())
    run["graph"] |= changed
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    return folder


def test_a_gradient_that_nobody_needs_has_its_share_of_the_functions_backward_as_price(
    tmp_path: Path,
) -> None:
    folder = with_graph(tmp_path, dropped={"IndexBackward0": 0.5})
    found = {finding.code: finding for finding in diagnose_paths([folder]).findings}["BN315"]
    trace, program, graph = recorded()
    asked = asked_by(trace, program, graph)
    mine = asked.backward & (asked.node == graph.names.index("IndexBackward0"))
    halved_ms = program.duration[mine].sum() / 2 / program.steps / 1e6
    assert found.cost_ms == pytest.approx(halved_ms, rel=0.05)
    assert found.sites[0].line == 45
    assert "50 % of its gradients" in found.title


def test_gradients_that_nobody_reads_have_the_time_of_their_nodes_as_price(tmp_path: Path) -> None:
    trace, program, graph = recorded()
    wanted = graph.names.index("IndexBackward0")
    site = {"file": "train.py", "line": 52, "function": "main"}
    folder = with_graph(
        tmp_path,
        unread=[1.0 if name == wanted else 0.0 for name in graph.node],
        unread_by=[{"site": site, "tensors": 9, "unread": 2}],
    )
    found = {finding.code: finding for finding in diagnose_paths([folder]).findings}["BN315"]
    asked = asked_by(trace, program, graph)
    mine = asked.backward & (asked.node == wanted)
    # They are not launched either.
    assert found.cost_ms >= 0.95 * program.duration[mine].sum() / program.steps / 1e6
    assert (found.sites[0].file, found.sites[0].line) == ("train.py", 52)
    assert "the backward of train.py:52 (for 2 of 9 parameters)" in found.title


def test_rows_that_are_not_in_the_loss_have_their_share_of_both_ways_as_price(tmp_path: Path) -> None:
    trace, program, graph = recorded()
    asked = asked_by(trace, program, graph)
    wanted = int(
        np.bincount(asked.place[asked.place >= 0], weights=program.duration[asked.place >= 0]).argmax()
    )
    folder = with_graph(tmp_path, idle=[0.75 * (at == wanted) for at in range(len(graph.node))])
    answer = diagnose_paths([folder]).findings
    mine = asked.place == wanted
    assert asked.backward[mine].any()
    assert not asked.backward[mine].all()
    saved_ms = 0.75 * program.duration[mine].sum() / program.steps / 1e6
    found = {finding.code: finding for finding in answer}["BN320"]
    assert found.cost_ms == pytest.approx(saved_ms, rel=0.1)
    assert found.title.startswith("75 % of the rows")


def test_what_is_converted_again_is_not_launched_in_either_way(tmp_path: Path) -> None:
    trace, program, graph = recorded()
    asked = asked_by(trace, program, graph)
    wanted = int(
        np.bincount(asked.place[asked.place >= 0], weights=program.duration[asked.place >= 0]).argmax()
    )
    again = [float(at == wanted) for at in range(len(graph.node))]
    found = diagnose_paths([with_graph(tmp_path, again=again, weights_again=1)])
    (finding,) = [each for each in found.findings if each.code == "BN326"]
    saved_ms = program.duration[asked.place == wanted].sum() / program.steps / 1e6
    assert finding.cost_ms == pytest.approx(saved_ms, rel=0.1)
    assert finding.evidence[0].text == "1 of 1 convert a weight"
    (fix,) = [each for each in found.suggestions if each.fix == "FX377"]
    assert fix.saves_ms == finding.cost_ms


def test_what_is_joined_again_is_not_launched_in_either_way(tmp_path: Path) -> None:
    trace, program, graph = recorded()
    asked = asked_by(trace, program, graph)
    wanted = int(
        np.bincount(asked.place[asked.place >= 0], weights=program.duration[asked.place >= 0]).argmax()
    )
    edit = asked.without(trace, program, np.arange(len(graph.node) + 1) == wanted)
    assert edit is not None and edit.gone is not None
    mine = asked.place == wanted
    assert (edit.duration == np.where(mine, 0.0, 1.0)).all()
    launching = np.unique(program.event[mine])
    assert edit.gone[launching] == pytest.approx(program.work[launching])
    assert (edit.gone <= program.work + 1e-6).all()
    assert asked.without(trace, program, np.zeros(len(graph.node) + 1)) is None
    joined = [float(at == wanted) for at in range(len(graph.node))]
    repeats = {"calls": 0, "sites": [], "share": 0.0}
    folder = with_graph(tmp_path, joined=joined)
    run = msgspec.json.decode((folder / "run.json").read_bytes())
    (folder / "run.json").write_bytes(msgspec.json.encode(run | {"repeats": repeats}))
    found = diagnose_paths([folder])
    (finding,) = [each for each in found.findings if each.code == "BN323"]
    assert finding.cost_ms == pytest.approx(program.duration[mine].sum() / program.steps / 1e6, rel=0.1)
    (fix,) = [each for each in found.suggestions if each.fix == "FX346"]
    assert not fix.bound, "the last join is left"


def test_lines_tell_the_share_of_the_backward_that_goes_through_a_loop() -> None:
    trace, program, graph = recorded()
    work = program.work[:, EAGER].sum(axis=1)
    asked = asked_by(trace, program, graph)
    first, *_, last = sorted(site.line for site in graph.sites if site.file == graph.sites[0].file)
    whole = LoopTime(site=SourceSite(file=graph.sites[0].file, line=first, function="f"), last_line=last)
    part = LoopTime(site=SourceSite(file=graph.sites[0].file, line=45, function="f"), last_line=45)
    shares = [asked.backward_share(loop, work) for loop in (whole, part)]
    assert shares[0] is not None and shares[1] is not None
    assert 0.0 < shares[1] < shares[0] <= 1.0
    unknown = msgspec.structs.replace(graph, node=[])
    assert asked_by(trace, program, unknown).backward_share(whole, work) is None


def test_where_the_step_comes_apart_calls_are_told_that_lead_to_several_lines() -> None:
    trace, program, graph = recorded()
    # 1 calls a model (2), a loss (3) and a helper (4); below them 5 calls layers, and 8 parts of the loss.
    chains = [(6, 5, 2, 1), (7, 5, 2, 1), (9, 8, 3, 1), (10, 8, 3, 1), (11, 4, 1), (1,)]
    spent = np.array([5.0, 4.0, 3.0, 3.0, 2.0, 0.5])
    asked = asked_by(trace, program, graph)
    asked = replace(asked, lines=replace(asked.lines, chains=chains))
    found = {line: np.flatnonzero(its).tolist() for line, its in asked.calls(spent)}
    assert found == {5: [0, 1], 8: [2, 3]}, "11 is all of what 4 does"
    # Two ways to the layers are told by where they part.
    chains[2:4] = [(6, 5, 3, 1), (7, 5, 3, 1)]
    again = replace(asked, lines=replace(asked.lines, chains=chains))
    assert {line for line, _ in again.calls(spent)} == {2, 3}
    assert again.calls(np.zeros(6)) == []


def test_a_call_that_leads_to_several_lines_has_the_price_of_them_all() -> None:
    (call, *_) = (found := diagnose_paths([CASES["thread-scattered-rows-h200"].folder])).device_calls
    assert call.name == "values, which = self.encode(x)"
    inside = [
        line for line in found.device_lines if line.name.startswith(("strength", "values, which = str"))
    ]
    assert call.ms == pytest.approx(sum(line.ms for line in inside), rel=0.02)
    assert call.price_ms is not None and call.price_ms > max(line.price_ms or 0.0 for line in inside)
    assert call.ms > found.device_lines[0].ms
    assert [row.name for row in code_rows(found)[:2]] == [
        "self.encode(x)",
        "self.spread(values, which) @ self.atoms + self.middle",
    ]
