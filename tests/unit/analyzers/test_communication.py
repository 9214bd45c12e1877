"""What ranks send each other, by what asks for it."""

from __future__ import annotations

import msgspec
import pytest

from torch_bottleneck.analyzers.findings.communication import (
    BuffersSent,
    ExposedCommunication,
    ExtraCollectives,
    RanksUneven,
)
from torch_bottleneck.analyzers.findings.host import ExtraWork, OtherHostWork
from torch_bottleneck.catalog.match import match
from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.run import Run, SiteTime, SourceSite
from torch_bottleneck.model.view import CodeNode

from .facts import facts

WRAPPED = SourceSite(file="train.py", line=7, function="main")
RUN = Run(sites=[SiteTime(site=WRAPPED, phase="model wrapped", count=1)])
DDP: dict[str, object] = {
    "distributed.world_size": 2,
    "distributed.module": "ddp",
    "distributed.sends_buffers": True,
}


def test_buffers_have_a_price_and_the_line_that_wraps_the_model() -> None:
    saves = {WhatIf.COMM_OVERLAPPED: 30.0, WhatIf.GRADIENTS_OVERLAPPED: 10.0, WhatIf.BUFFERS_KEPT: 20.0}
    known = facts(
        parts={Part.COMMUNICATION: 30.0},
        saves=saves,
        bounds=(WhatIf.COMM_OVERLAPPED, WhatIf.GRADIENTS_OVERLAPPED),
        run=RUN,
    )
    findings = [*ExposedCommunication().find(known), *BuffersSent().find(known)]
    buffers = findings[-1]
    assert (buffers.code, buffers.cost_ms, buffers.sites) == ("BN804", 20.0, (WRAPPED,))
    fixes = match(findings, DDP, known.timeline.what_ifs, 100.0)
    assert [(fix.fix, fix.predicted_ms) for fix in fixes[:2]] == [("FX609", 80.0), ("FX601", 90.0)]


@pytest.mark.parametrize("saves", [{}, {WhatIf.BUFFERS_KEPT: 1.0}])
def test_buffers_that_cost_next_to_nothing_are_no_finding(saves: dict[WhatIf, float]) -> None:
    assert not list(BuffersSent().find(facts(saves=saves, run=RUN)))


@pytest.mark.parametrize(
    ("share", "units", "expected"),
    [(0.4, 5, ["FX610", "FX604"]), (0.9, 5, ["FX604"]), (None, 5, ["FX604"]), (0.9, 1, ["FX604", "FX605"])],
)
def test_a_sharded_model_that_fits_on_each_rank_is_better_not_sharded(
    share: float | None, units: int, expected: list[str]
) -> None:
    context: dict[str, object] = {"distributed.world_size": 2, "distributed.module": "fsdp"}
    context |= {"distributed.units": units, "memory.replica_share": share}
    known = facts(
        parts={Part.COMMUNICATION: 40.0},
        saves={WhatIf.COMM_OVERLAPPED: 40.0},
        bounds=(WhatIf.COMM_OVERLAPPED,),
    )
    fixes = match(list(ExposedCommunication().find(known)), context, known.timeline.what_ifs, 100.0)
    assert [fix.fix for fix in fixes if fix.predicted_ms is not None] == expected


ALL_REDUCE = "torch.distributed.distributed_c10d.all_reduce"


def step_of(*, ms: float, in_rounds: bool) -> CodeNode:
    sends = CodeNode(
        name="dist.all_reduce()", role="communication", ms=ms, share=ms / 100, price_ms=ms, bound=True,
        file="/me/train.py", line=12, function="average", call="dist.all_reduce()",
        callee=ALL_REDUCE, in_rounds=in_rounds,
    )  # fmt: skip
    average = CodeNode(name="average()", role="communication", ms=ms, share=ms / 100, children=(sends,))
    return CodeNode(name="step", role="step", ms=100.0, share=1.0, children=(average,))


@pytest.mark.parametrize(
    ("ms", "in_rounds", "first"),
    [(38.0, True, "FX611"), (38.0, False, "FX601"), (8.0, True, "FX601")],
    ids=["in rounds", "once", "mostly DDP's"],
)
def test_collectives_of_a_line_are_named_and_those_of_a_loop_can_be_one(
    ms: float, in_rounds: bool, first: str
) -> None:
    known = facts(
        "cpu",
        parts={Part.COMMUNICATION: 40.0},
        saves={WhatIf.COMM_OVERLAPPED: 40.0, WhatIf.GRADIENTS_OVERLAPPED: 10.0},
        bounds=(WhatIf.COMM_OVERLAPPED, WhatIf.GRADIENTS_OVERLAPPED),
        run=RUN,
        tree=step_of(ms=ms, in_rounds=in_rounds),
    )
    (found,) = ExposedCommunication().find(known)
    named = ms > 20.0
    assert [site.line for site in found.sites] == ([12] if named else [])
    assert ("dist.all_reduce()" in found.title) is named
    fixes = match([found], DDP, known.timeline.what_ifs, 100.0)
    assert fixes[0].fix == first
    if first == "FX611":
        assert (fixes[0].title, fixes[0].predicted_ms) == (
            "Send with one collective what `dist.all_reduce()` sends in many",
            60.0,
        )
        assert fixes[0].bound


def device_line(*, line: int, callee: str) -> CodeNode:
    return CodeNode(
        name="dist.all_reduce(p.grad)", role="device", ms=39.0, share=0.39, file="/me/train.py", line=line,
        function="average", callee=callee,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "callee", "named"),
    [
        (12, "c10d::allreduce_", True),
        (13, "c10d::allreduce_", True),
        (13, "aten::mm", False),
        (20, "c10d::_allgather_base_", False),
    ],
    ids=["a call that samples saw", "one they did not see", "no collective", "a sharded model is called"],
)
def test_on_a_device_the_line_counts_that_it_works_for(line: int, callee: str, *, named: bool) -> None:
    """There the calls themselves are over at once."""
    step = step_of(ms=1.0, in_rounds=True)
    model = CodeNode(
        name="model()", role="forward", ms=20.0, share=0.2, file="/me/train.py", line=20, function="average"
    )
    known = facts(
        "gpu",
        parts={Part.COMMUNICATION: 40.0},
        saves={WhatIf.COMM_OVERLAPPED: 40.0},
        bounds=(WhatIf.COMM_OVERLAPPED,),
        tree=msgspec.structs.replace(step, children=(*step.children, model)),
        device_lines=(device_line(line=line, callee=callee),),
    )
    (found,) = ExposedCommunication().find(known)
    assert [site.line for site in found.sites] == ([line] if named else [])
    in_rounds = named and line == 12
    fixes = [fix.fix for fix in match([found], {"distributed.world_size": 2}, known.timeline.what_ifs, 100.0)]
    assert ("FX611" in fixes) is in_rounds


@pytest.mark.parametrize("sends", [True, False])
def test_extra_work_that_waits_for_other_ranks_is_no_host_work(sends: bool) -> None:
    line = CodeNode(
        name="p.full_tensor()", role="extra", ms=30.0, share=0.3, file="/me/train.py", line=61,
        callee="torch.distributed.tensor._api.DTensor.full_tensor" if sends else "json.dumps",
    )  # fmt: skip
    work = CodeNode(
        name="average()", role="extra", ms=40.0, share=0.4, price_ms=40.0, file="/me/train.py", line=100,
        children=(line,),
    )  # fmt: skip
    known = facts(
        "cpu",
        parts={Part.COMMUNICATION: 30.0, Part.HOST: 10.0},
        saves={WhatIf.COMM_OVERLAPPED: 30.0, WhatIf.HOST_WORK_GONE: 10.0},
        bounds=(WhatIf.COMM_OVERLAPPED,),
        extras=(work,),
    )
    host, waits = list(ExtraWork().find(known)), list(ExtraCollectives().find(known))
    assert [len(host), len(waits)] == [not sends, sends]
    (found,) = host or waits
    assert (found.cost_ms, found.sites[0].line) == (40.0, 100)
    assert ("average()" in next(iter(OtherHostWork().find(known))).title) is not sends
    (fix,) = [each for each in match([found], {}, known.timeline.what_ifs, 100.0) if each.fix == "FX504"]
    assert (fix.title, fix.predicted_ms) == ("Take `average()` out of the step", 60.0)


@pytest.mark.parametrize(("name", "suggested"), [("all_reduce", True), ("barrier", False)])
def test_what_a_loop_sends_beside_training_can_be_one_collective_too(name: str, *, suggested: bool) -> None:
    line = CodeNode(
        name=f"dist.{name}()", role="extra", ms=40.0, share=0.4, price_ms=40.0, file="/me/train.py", line=61,
        callee=ALL_REDUCE.replace("all_reduce", name), in_rounds=True,
    )  # fmt: skip
    step = CodeNode(name="step", role="step", ms=100.0, share=1.0, children=(line,))
    known = facts(
        "cpu",
        parts={Part.COMMUNICATION: 50.0},
        saves={WhatIf.COMM_OVERLAPPED: 50.0},
        bounds=(WhatIf.COMM_OVERLAPPED,),
        extras=(line,),
        tree=step,
    )
    found = [*ExposedCommunication().find(known), *ExtraCollectives().find(known)]
    fixes = {each.fix: each for each in match(found, {}, known.timeline.what_ifs, 100.0)}
    assert ("FX611" in fixes) is suggested
    assert not suggested or (fixes["FX611"].predicted_ms, fixes["FX611"].bound) == (60.0, True)
    assert fixes["FX504"].predicted_ms == 60.0


def test_ranks_that_take_turns_in_being_late_can_have_the_same_work() -> None:
    known = facts(
        saves={WhatIf.WORK_DEALT: 25.0}, run=Run(sites=[SiteTime(site=WRAPPED, phase="backward", count=9)])
    )
    (found,) = RanksUneven().find(known)
    assert (found.cost_ms, found.sites) == (25.0, (WRAPPED,))
    (fix,) = [each for each in match([found], DDP, known.timeline.what_ifs, 100.0) if each.fix == "FX606"]
    assert (fix.predicted_ms, fix.bound) == (75.0, False)
    assert not list(RanksUneven().find(facts()))


def test_on_a_device_a_line_takes_as_long_as_what_it_sends() -> None:
    step = step_of(ms=2.0, in_rounds=True)
    sent = msgspec.structs.replace(step.children[0].children[0], role="device", ms=36.0)
    told = {"parts": {Part.COMMUNICATION: 40.0}, "saves": {WhatIf.COMM_OVERLAPPED: 40.0}, "tree": step}
    for device_lines, named in (((sent,), True), ((), False)):
        (found,) = ExposedCommunication().find(facts(device_lines=device_lines, **told))  # type: ignore[arg-type]
        assert ("dist.all_reduce()" in found.title, found.in_rounds) == (named, named)
