"""Training in float64, 16 bits on a CPU, masks that mask nothing: what is said, and where nothing is."""

from __future__ import annotations

import dataclasses

import pytest

from torch_bottleneck.analyzers.findings.compute import DeviceBusy, ForwardRepeated, MemoryBoundKernels
from torch_bottleneck.analyzers.findings.kernels import Fp32WithoutAutocast, MaskWithoutEffect
from torch_bottleneck.analyzers.findings.memory_share import Recomputation
from torch_bottleneck.analyzers.findings.precision import DenormalNumbers, DoublePrecision, HalfPrecisionOnCpu
from torch_bottleneck.catalog.match import match
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.run import MaskFacts, OptimizerFacts, RepeatFacts, Run, SiteTime, SourceSite
from torch_bottleneck.model.view import CodeNode, Role

from .facts import facts

SITE = SourceSite(file="train.py", line=7)
RUN = Run(optimizers=[OptimizerFacts(cls="SGD", parameter_dtype="float64", site=SITE)])


def test_float64_on_a_cpu_has_a_price_and_a_place():
    saves = {WhatIf.SINGLE_PRECISION: 40.0}
    (found,) = DoublePrecision().find(
        facts("cpu", saves=saves, context={"optimizer.parameter_dtype": "float64"}, run=RUN)
    )
    assert found.cost_ms == 40.0
    assert found.sites == (SITE,)
    assert not found.note


def test_float64_on_a_gpu_is_a_note_without_a_price():
    (found,) = DoublePrecision().find(facts("gpu", context={"optimizer.parameter_dtype": "float64"}, run=RUN))
    assert found.cost_ms is None
    assert found.note


@pytest.mark.parametrize("context", [{"optimizer.parameter_dtype": "float32"}, {}])
def test_other_or_unknown_dtypes_are_no_finding(context):
    assert not list(DoublePrecision().find(facts("cpu", context=context, run=RUN)))


def test_denormal_numbers_are_a_finding_where_they_cost_time():
    run = Run(optimizers=[OptimizerFacts(cls="SGD", denormal_share=0.02, site=SITE)], denormal_factor=90.0)
    context = {"denormals.share": 0.02, "denormals.flushed": False, "device.kind": "cpu"}
    known = facts("cpu", saves={WhatIf.DENORMALS_GONE: 40.0}, context=context, run=run)
    (found,) = DenormalNumbers().find(known)
    assert (found.cost_ms, found.sites) == (40.0, (SITE,))
    assert found.title.startswith("2.0 % of the optimizer's numbers are denormal")
    (first,) = match([found], context, known.timeline.what_ifs, 100.0)
    assert (first.fix, first.bound, first.can_try) == ("FX348", True, True)
    assert not match([found], {**context, "denormals.flushed": True}, known.timeline.what_ifs, 100.0)
    assert not list(DenormalNumbers().find(facts("cpu", context=context, run=run))), "nothing was measured"


def test_16_bits_on_a_cpu_are_a_finding_where_they_cost_time_or_nothing_was_measured():
    context = {"math.half": "float16"}
    run = Run(optimizers=RUN.optimizers, matmul_tflops={"fp32": 0.08, "fp16": 0.003})
    (found,) = HalfPrecisionOnCpu().find(
        facts("cpu", saves={WhatIf.SINGLE_PRECISION: 40.0}, context=context, run=run)
    )
    assert (found.cost_ms, found.sites, found.note) == (40.0, (SITE,), False)
    assert "fp32 80.0, fp16 3.0" in found.evidence[0].text
    assert not list(HalfPrecisionOnCpu().find(facts("cpu", context=context, run=run)))
    (found,) = HalfPrecisionOnCpu().find(facts("cpu", context=context, run=RUN))
    assert (found.cost_ms, found.note) == (None, True)
    assert not list(HalfPrecisionOnCpu().find(facts("cpu", context={}, run=run)))


@pytest.mark.parametrize(("idle", "found"), [(6, 1), (4, 1), (3, 0), (0, 0)])
def test_masks_are_a_finding_where_most_of_them_mask_nothing(idle: int, found: int) -> None:
    masks = MaskFacts(
        calls=8, masked=6, idle=idle, sites=[SiteTime(site=SITE, phase="attention", count=idle)]
    )
    context = {"attention.idle_masks": idle / 6}
    saves = {WhatIf.MASKS_GONE: 12.0}
    known = facts("cpu", context=context, run=Run(masks=masks), saves=saves)
    findings = list(MaskWithoutEffect().find(known))
    assert len(findings) == found
    assert all(each.cost_ms == 12.0 for each in findings)
    fixes = match(findings, context, known.timeline.what_ifs, 100.0)
    assert [(fix.fix, fix.predicted_ms) for fix in fixes] == [("FX323", 88.0)] * found
    assert all(each.sites == (SITE,) and f"{idle} of 6" in each.title for each in findings)
    assert not list(MaskWithoutEffect().find(facts("cpu", run=Run(masks=MaskFacts(calls=8)))))


@pytest.mark.parametrize(
    ("full", "half", "autocast", "fixes"),
    [
        (0.6, 0.0, "none", ["FX303"]),
        (0.6, 0.0, "bfloat16", []),
        (0.0, 0.14, "none", ["FX345"]),
        (0.1, 0.4, "bfloat16", ["FX345"]),
    ],
)
def test_float32_is_a_finding_in_the_whole_step_or_in_a_part_of_it(
    full: float, half: float, autocast: str, fixes: list[str]
) -> None:
    shares = {"kernels.matmul_fp32_share": full, "kernels.bf16_share": half}
    context = {"device.kind": "cuda", "device.capability": 9.0, "autocast.dtype": autocast, **shares}
    known = facts("gpu", context=context, saves={WhatIf.BF16: 19.0})
    part = dataclasses.replace(known, timeline=dataclasses.replace(known.timeline, full_precision=SITE))
    findings = list(Fp32WithoutAutocast().find(part))
    assert [each.cost_ms for each in findings] == [19.0] * len(fixes)
    matched = match(findings, context, known.timeline.what_ifs, 100.0)
    assert [each.fix for each in matched if each.predicted_ms == 81.0] == fixes
    if fixes == ["FX345"]:
        assert findings[0].sites == (SITE,)
        assert not list(Fp32WithoutAutocast().find(facts("gpu", context=context, saves={WhatIf.BF16: 0.6})))
        meets = SourceSite(file="lora.py", line=51, function="forward")
        told = dataclasses.replace(part, run=Run(promotions=[meets, SITE]))
        (found,) = Fp32WithoutAutocast().find(told)
        assert found.sites == (meets, SITE), "where 16 bits become 32 comes before what computes in 32"
        assert found.evidence[0].site == meets
        (first, *_) = match([found], context, known.timeline.what_ifs, 100.0)
        assert (first.fix, first.site) == ("FX345", meets)


def at(
    line: int, ms: float, *children: CodeNode, role: Role = "forward", file: str = "net.py", callee: str = ""
) -> CodeNode:
    return CodeNode(
        name="f()", role=role, ms=ms, share=ms / 100, file=file, line=line, children=children, callee=callee
    )


def step_of(*children: CodeNode) -> CodeNode:
    return CodeNode(name="step", role="step", ms=100.0, share=1.0, children=children)


def test_the_lines_of_a_forward_are_those_that_it_divides_into_and_then_the_call_of_the_model() -> None:
    layers = at(20, 60.0, at(31, 20.0), at(30, 36.0), at(32, 4.0))
    step = step_of(at(9, 40.0, role="backward"), at(7, 60.0, layers))
    call = SourceSite(file="train.py", line=7)
    run = Run(sites=[SiteTime(site=call, phase="forward", count=8)])
    found = facts("cpu", run=run, tree=step).forward_sites()
    assert [(site.file, site.line) for site in found] == [("net.py", 30), ("net.py", 31), ("train.py", 7)]
    assert [site.line for site in facts("cpu", tree=step_of(at(7, 60.0))).forward_sites()] == [7]
    assert facts("cpu", run=run).forward_sites() == (call,)


@pytest.mark.parametrize(
    ("teacher", "asked", "lines"),
    [(0.0, True, [44, 41, 7]), (50.0, True, [5, 8, 7]), (50.0, False, [44, 41, 7])],
    ids=["model and loss", "a teacher", "what runs without gradients has no price"],
)
@pytest.mark.parametrize("analyzer", [DeviceBusy, MemoryBoundKernels])
def test_work_is_at_the_lines_of_model_and_loss_that_it_is_in_the_most_expensive_first(
    analyzer: type[DeviceBusy | MemoryBoundKernels], teacher: float, asked: bool, lines: list[int]
) -> None:
    loss = at(8, 40.0, at(41, 10.0, role="loss"), at(44, 30.0, role="loss"), role="loss")
    ungraded = [at(5, teacher, role="no-grad forward")] if teacher else []
    step = step_of(at(9, 200.0, role="backward"), at(7, 8.0), loss, *ungraded)
    call = SourceSite(file="net.py", line=7)
    known = facts(
        "cpu",
        context={"kernels.memory_bound_share": 0.5},
        run=Run(sites=[SiteTime(site=call, phase="forward", count=8)]),
        saves={WhatIf.FORWARD_STORED: 20.0} if asked else {},
        tree=step,
    )
    (found,) = analyzer().find(known)
    assert [site.line for site in found.sites] == lines


@pytest.mark.parametrize(
    ("update_ms", "lines"), [(121.0, [38]), (20.0, [30])], ids=["the update decides", "it does not"]
)
def test_an_update_that_takes_longer_than_the_model_is_where_the_work_is(
    update_ms: float, lines: list[int]
) -> None:
    """Both sides call one function: its line is named, and neither of the two calls."""

    def side(line: int) -> CodeNode:
        roots = at(line, 0.45 * update_ms, at(38, 0.42 * update_ms, role="update"), role="update")
        return at(line, roots.ms, *roots.children, role="update")

    update = at(90, update_ms, side(65), side(66), at(68, 0.1 * update_ms, role="update"), role="update")
    step = step_of(update, at(9, 40.0, role="backward"), at(7, 20.0, at(30, 19.0)))
    known = facts(
        "cpu",
        context={"kernels.memory_bound_share": 0.5},
        tree=step,
    )
    phases = {"optimizer": update_ms, "forward": 20.0, "backward": 40.0}
    (found,) = MemoryBoundKernels().find(dataclasses.replace(known, phases_ms=phases))
    assert [site.line for site in found.sites] == lines


def test_recomputation_is_at_the_lines_that_call_checkpoint() -> None:
    checkpoint = "torch.utils.checkpoint.checkpoint"
    blocks = at(20, 50.0, at(43, 20.0, callee=checkpoint), at(50, 30.0, callee=checkpoint))
    step = step_of(at(9, 40.0, role="backward"), at(7, 60.0, blocks, at(30, 10.0, callee="torch.nn.f")))
    known = facts(context={"memory.peak_share": 0.1}, saves={WhatIf.RECOMPUTE_GONE: 20.0}, tree=step)
    (found,) = Recomputation().find(known)
    assert [site.line for site in found.sites] == [50, 43]
    first, *_ = match([found], {}, known.timeline.what_ifs, 100.0)
    assert (first.fix, first.site) == ("FX214", found.sites[0])


@pytest.mark.parametrize(("saves_ms", "found"), [(30.0, 1), (1.0, 0)])
def test_a_module_that_computes_again_what_it_has_is_a_finding_at_the_lines_that_call_it(
    saves_ms: float, found: int
) -> None:
    again = RepeatFacts(
        calls=2,
        module="Encoder",
        share=0.5,
        graded_share=0.5,
        sites=[SiteTime(site=SITE, phase="repeated", count=2)],
    )
    context = {"forward.repeated_share": 0.5}
    known = facts("cpu", context=context, run=Run(repeats=again), saves={WhatIf.FORWARD_ONCE: saves_ms})
    findings = list(ForwardRepeated().find(known))
    assert [(each.sites, each.cost_ms) for each in findings] == [((SITE,), saves_ms)] * found
    fixes = match(findings, context, known.timeline.what_ifs, 100.0)
    assert [(fix.fix, fix.predicted_ms) for fix in fixes] == [("FX326", 70.0)] * found
