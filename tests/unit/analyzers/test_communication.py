"""What ranks send each other, by what asks for it."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers.findings.communication import BuffersSent, ExposedCommunication
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
            "Send many tensors with one `dist.all_reduce()`",
            60.0,
        )
        assert fixes[0].bound
