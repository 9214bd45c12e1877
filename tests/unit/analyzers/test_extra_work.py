"""Extra work is named by the call in the loop, and stands at the line that the time goes to."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest
import torch

from torch_bottleneck.analyzers.findings.host import (
    ExtraWork,
    OtherHostWork,
    PythonWithoutOperators,
    TensorsOfLists,
)
from torch_bottleneck.analyzers.findings.input_bound import WaitingForInput
from torch_bottleneck.analyzers.sections.context import build_context
from torch_bottleneck.catalog.match import match
from torch_bottleneck.harness.lines.calls import call_at
from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.run import LoopTime, Run, SourceSite
from torch_bottleneck.model.view import CodeNode, Role
from torch_bottleneck.timeline.result import HostSpan
from torch_bottleneck.timeline.steps.loop_lines import rounds_of

from .facts import facts


def node(name: str, line: int, ms: float, *children: CodeNode, callee: str = "") -> CodeNode:
    return CodeNode(
        name=name, role="extra", ms=ms, share=ms / 100, price_ms=ms, samples=50, file="/me/train.py",
        line=line, function=name, callee=callee, children=children,
    )  # fmt: skip


WRITES = node(
    "commit()",
    30,
    40.0,
    node("save()", 60, 39.0, node("write_text()", 80, 35.0, callee="pathlib.Path.write_text")),
)
LOOPS = node("average()", 30, 40.0, node("old * 0.9", 60, 39.0))
SCATTERS = node("commit()", 30, 40.0, node("one()", 60, 20.0), node("two()", 61, 20.0))
EVALUATES = node("test()", 30, 40.0, node("model()", 60, 39.0, callee="evaluation"), callee="evaluation")


@pytest.mark.parametrize(
    ("work", "lines"), [(WRITES, [80, 30]), (LOOPS, [30, 60]), (SCATTERS, [30]), (EVALUATES, [30, 60])],
    ids=["in a call", "in a line of its own", "in several", "an evaluation"],
)  # fmt: skip
@pytest.mark.parametrize("analyzer", [ExtraWork, OtherHostWork])
def test_the_line_is_the_deepest_that_takes_nearly_all(
    analyzer: type[ExtraWork | OtherHostWork], work: CodeNode, lines: list[int]
) -> None:
    known = facts("cpu", parts={Part.HOST: 40.0}, saves={WhatIf.HOST_WORK_GONE: 40.0}, extras=(work,))
    (found,) = analyzer().find(known)
    assert [site.line for site in found.sites] == lines
    assert found.call == f"`{work.name}`"
    assert ("write_text()" in found.title) == (work is WRITES)


def test_a_call_that_stands_mostly_at_its_own_line_is_named_once() -> None:
    logs = node("self.log()", 26, 40.0, node("self.log()", 26, 38.0))
    known = facts("cpu", parts={Part.HOST: 40.0}, saves={WhatIf.HOST_WORK_GONE: 40.0}, extras=(logs,))
    (found,) = ExtraWork().find(known)
    assert found.title.count("self.log()") == 1


def in_rounds(work: CodeNode, lines: set[int]) -> CodeNode:
    """Return the work with these lines in the rounds of loops."""
    children = tuple(in_rounds(child, lines) for child in work.children)
    return msgspec.structs.replace(work, children=children, in_rounds=work.line in lines)


@pytest.mark.parametrize(
    ("work", "lines", "is_loop"),
    [
        (LOOPS, {60}, True),
        (LOOPS, {30}, True),
        (LOOPS, set(), False),
        (WRITES, {WRITES.children[0].line}, False),
        (SCATTERS, {60}, False),
        (SCATTERS, {60, 61}, True),
        (EVALUATES, {60}, False),
    ],
)
def test_a_loop_of_the_users_own_lines_is_offered_all_at_once(
    work: CodeNode, lines: set[int], *, is_loop: bool
) -> None:
    """What a library does in each round is no such work: a file is not written for all at once."""
    work = in_rounds(work, lines)
    known = facts("cpu", parts={Part.HOST: 40.0}, saves={WhatIf.HOST_WORK_GONE: 40.0}, extras=(work,))
    context = build_context(
        timeline=known.timeline, step=known.step, run=None, loaders=None, compile_facts=None
    )
    offered = match(list(ExtraWork().find(known)), context, known.timeline.what_ifs, 100.0)
    found = {each.fix: each.title for each in offered}
    assert ("FX532" in found) == is_loop
    if is_loop:
        assert found["FX532"] == f"Do for all at once what `{work.name}` does one by one"


@pytest.mark.parametrize(
    ("lines", "line"), [({60}, 60), ({30, 60}, 30), (set(), None)], ids=["a loop", "a loop in one", "no loop"]
)
def test_a_loop_that_makes_the_batch_is_offered_all_at_once_at_its_line(
    lines: set[int], line: int | None
) -> None:
    made = msgspec.structs.replace(
        in_rounds(node("augment()", 30, 40.0, node("jitter()", 60, 39.0)), lines), role="input"
    )
    made = msgspec.structs.replace(
        made, children=tuple(msgspec.structs.replace(each, role="input") for each in made.children)
    )
    step = CodeNode(name="step", role="step", ms=100.0, share=1.0, children=(made,))
    known = facts("gpu", parts={Part.INPUT: 1.0}, saves={WhatIf.INPUT_READY: 40.0}, tree=step)
    (found,) = WaitingForInput().find(known)
    offered = {each.fix: each for each in match([found], {}, known.timeline.what_ifs, 100.0)}
    assert ("FX532" in offered) == found.in_rounds == (line is not None)
    if line is not None:
        assert found.sites[0].line == line
        name = {30: "augment()", 60: "jitter()"}[line]
        assert offered["FX532"].title == f"Do for all at once what `{name}` does one by one"
        assert (offered["FX532"].predicted_ms, offered["FX532"].bound) == (60.0, True)


@pytest.mark.parametrize(("carried", "line"), [(set(), 30), ({30}, 60), ({60}, 30), ({30, 60}, None)])
def test_rounds_that_need_each_other_make_no_batch_at_once(carried: set[int], line: int | None) -> None:
    """An environment is stepped with what it returned before; what it does by body is a loop of its own."""
    made = in_rounds(node("env.step()", 30, 40.0, node("body()", 60, 39.0)), {30, 60})
    loops = [
        LoopTime(
            site=SourceSite(file="/me/train.py", line=at - 1, function="f"), begins=at, last_line=at,
            carried=at in carried,
        )
        for at in (30, 60)
    ]  # fmt: skip
    assert [each.line for each in rounds_of([made], loops)] == ([] if line is None else [line])


@pytest.mark.parametrize(
    ("parts_ms", "cost_ms"), [((20.0, 20.0), 40.0), ((4.0,), 40.0)], ids=["two loops", "little of the cost"]
)
def test_one_loop_is_not_offered_for_more_than_it_is(parts_ms: tuple[float, ...], cost_ms: float) -> None:
    parts = [in_rounds(node(f"part{at}()", at, ms), {at}) for at, ms in enumerate(parts_ms, start=60)]
    parts = [msgspec.structs.replace(each, role="input") for each in parts]
    step = CodeNode(name="step", role="step", ms=100.0, share=1.0, children=tuple(parts))
    known = facts("gpu", parts={Part.INPUT: 1.0}, saves={WhatIf.INPUT_READY: cost_ms}, tree=step)
    (found,) = WaitingForInput().find(known)
    assert not found.in_rounds and not found.call
    assert "FX532" not in {each.fix for each in match([found], {}, known.timeline.what_ifs, 100.0)}


def test_of_two_loops_the_dearer_is_offered_all_at_once() -> None:
    extra = in_rounds(node("average()", 30, 5.0), {30})
    made = msgspec.structs.replace(in_rounds(node("jitter()", 60, 40.0), {60}), role="input")
    step = CodeNode(name="step", role="step", ms=100.0, share=1.0, children=(made,))
    known = facts(
        "gpu", parts={Part.INPUT: 1.0}, saves={WhatIf.INPUT_READY: 40.0}, tree=step, extras=(extra,)
    )
    found = [*ExtraWork().find(known), *WaitingForInput().find(known)]
    offered = {each.fix: each.finding for each in match(found, {}, known.timeline.what_ifs, 100.0)}
    assert offered["FX532"] == "BN101"


def test_host_work_at_a_line_that_the_step_is_known_to_spend_its_time_in_is_called_by_its_call() -> None:
    drawn = node("augment()", 54, 50.0, node("self.rng.normal()", 22, 49.0))
    drawn = msgspec.structs.replace(drawn, children=(msgspec.structs.replace(drawn.children[0], call="x"),))
    span = HostSpan(
        part=Part.HOST, what="Python", exposed_ms=45.0, called_ms=50.0, count=1.0, site=drawn.children[0].site
    )
    known = facts(parts={Part.HOST: 45.0}, saves={WhatIf.HOST_WORK_GONE: 45.0}, spans=(span,), tree=drawn)
    (found,) = OtherHostWork().find(known)
    assert (found.call, found.sites[0].line) == ("`self.rng.normal()`", 22)
    assert "self.rng.normal()" in found.title
    forward = msgspec.structs.replace(
        drawn, children=(msgspec.structs.replace(drawn.children[0], role="forward"),)
    )
    (kept,) = OtherHostWork().find(
        facts(parts={Part.HOST: 45.0}, saves={WhatIf.HOST_WORK_GONE: 45.0}, spans=(span,), tree=forward)
    )
    assert "self.rng.normal()" in kept.title
    assert kept.call == "", "nobody can take the model out of the step"
    (unknown,) = OtherHostWork().find(facts(saves={WhatIf.HOST_WORK_GONE: 45.0}, spans=(span,)))
    assert (unknown.call, unknown.sites[0].line) == ("", 22)


def making(call: str, line: int, ms: float, *inside: CodeNode, role: Role = "input") -> CodeNode:
    """A line that makes a tensor with `call`, named as the harness names it."""
    source = Path(f"{call}.source")
    source.write_text(f"{call}(values)\n")
    _, callee = call_at(str(source.resolve()), (1, 1, 0, len(call) + len("(values)")), {"torch": torch})
    assert callee
    return msgspec.structs.replace(node(f"{call}()", line, ms, *inside, callee=callee), role=role)


STEP = CodeNode(name="step", role="step", ms=100.0, share=1.0)
CHECKS = msgspec.structs.replace(node("check()", 70, 30.0, node("eval()", 80, 28.0)), role="loss")


def test_a_function_that_calls_no_operator_is_named_with_its_price_and_is_not_to_be_taken_out() -> None:
    known = facts(
        "cpu", parts={Part.HOST: 32.0}, saves={WhatIf.HOST_WORK_GONE: 32.0}, plain=(CHECKS,), tree=STEP
    )
    (found,) = PythonWithoutOperators().find(known)
    assert (found.call, found.cost_ms) == ("`check()`", 30.0)
    assert [site.line for site in found.sites] == [70, 80]
    (host,) = OtherHostWork().find(known)
    assert host.call == "`check()`"
    context = build_context(
        timeline=known.timeline, step=known.step, run=None, loaders=None, compile_facts=None
    )
    offered = [
        each for each in match([found, host], context, known.timeline.what_ifs, 100.0) if not each.note
    ]
    assert [each.fix for each in offered] == ["FX530"]
    assert offered[0].title == "Spare the Python of `check()`"


@pytest.mark.parametrize("call", ["torch.tensor", "torch.as_tensor", "torch.FloatTensor", "torch.Tensor"])
def test_tensors_made_value_by_value_have_the_price_of_their_lines(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reads = msgspec.structs.replace(node("read()", 31, 10.0), role="input")
    waits = msgspec.structs.replace(node("loader", 8, 24.0, making(call, 40, 20.0)), role="input")
    tree = msgspec.structs.replace(
        STEP, children=(making(call, 30, 40.0, reads), making(call, 32, 6.0, role="loss"), waits)
    )
    known = facts("cpu", tree=tree, saves={WhatIf.INPUT_READY: 80.0})
    (found,) = TensorsOfLists().find(known)
    assert found.cost_ms == pytest.approx(30.0 + 6.0 + 20.0), "less what its own functions take"
    assert [site.line for site in found.sites] == [30, 40, 32]
    assert f"`{call}()`" in found.title
    first, *_ = match([found], {}, known.timeline.what_ifs, 100.0)
    assert (first.fix, first.predicted_ms, first.site) == ("FX520", pytest.approx(44.0), found.sites[0])
    assert first.bound, "making the array takes time, too"
    inside = match([found], {"host.tensors_made_in": "forward"}, known.timeline.what_ifs, 100.0)
    assert [each.fix for each in inside if not each.note] == ["FX529"]


@pytest.mark.parametrize("call", ["torch.from_numpy", "torch.stack", "torch.tensordot", "torch.zeros"])
def test_what_takes_whole_arrays_is_no_such_call(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = msgspec.structs.replace(STEP, children=(making(call, 30, 40.0),))
    assert not list(TensorsOfLists().find(facts(tree=tree)))


def test_of_little_or_of_extra_work_no_more_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (making("torch.tensor", 30, 1.0), making("torch.tensor", 30, 40.0, role="extra")):
        assert not list(TensorsOfLists().find(facts(tree=msgspec.structs.replace(STEP, children=(line,)))))


CLIPS = node("clip()", 30, 40.0, node("norm()", 60, 30.0))


@pytest.mark.parametrize(
    ("writes", "listed"),
    [([], True), ([30, 60, 62], False), ([31], True)],
    ids=["it reads", "it writes gradients", "another line does"],
)
@pytest.mark.parametrize("analyzer", [ExtraWork, OtherHostWork])
@pytest.mark.parametrize("parts", [1, 3])
def test_what_writes_into_gradients_is_not_left_out(
    analyzer: type[ExtraWork | OtherHostWork], writes: list[int], *, listed: bool, parts: int
) -> None:
    """One call, or several lines of which none is most of it."""
    share = msgspec.structs.replace(CLIPS, price_ms=40.0 / parts, children=CLIPS.children[: 2 - parts])
    run = written(*writes)
    known = facts(
        "cpu",
        parts={Part.HOST: 40.0},
        saves={WhatIf.HOST_WORK_GONE: 40.0},
        extras=(share,) * parts,
        run=run,
    )
    fixes = match(list(analyzer().find(known)), {}, known.timeline.what_ifs, 100.0)
    assert ("FX504" in [fix.fix for fix in fixes]) is listed


def written(*lines: int) -> Run:
    return Run(trained_writes=[SourceSite(file="/me/train.py", line=line) for line in lines])


def test_of_what_writes_and_does_more_the_rest_can_be_left_out() -> None:
    """Limits of weights and a log in one function; weights swapped in for a checkpoint and back."""
    saves = node("save()", 61, 30.0, node("dump()", 80, 29.0, callee="json.dump"))
    after = node("after_step()", 30, 40.0, node("clamp_()", 60, 8.0), saves)
    known = facts(
        "cpu",
        parts={Part.HOST: 40.0},
        saves={WhatIf.HOST_WORK_GONE: 40.0},
        extras=(after,),
        run=written(30, 60),
    )
    (found,) = ExtraWork().find(known)
    assert (found.call, found.cost_ms, found.is_needed) == ("`save()`", 30.0, False)
    fixes = match([found], {}, known.timeline.what_ifs, 100.0)
    assert "FX504" in [fix.fix for fix in fixes]
    known = dataclasses.replace(known, run=written(30, 60, 61, 80))
    (found,) = ExtraWork().find(known)
    assert (found.call, found.is_needed) == ("`after_step()`", True)
