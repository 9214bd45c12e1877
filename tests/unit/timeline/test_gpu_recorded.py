"""The GPU reading on recorded H200 runs: exact sums, small replay error, predictions near the truth."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from recorded.cases import CASES, Case
from recorded.diagnosed import as_measured

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.ingest import read_trace
from torch_bottleneck.model.codes import WORK_PARTS, BottleneckClass, Part, WhatIf
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.run import BatchFacts, CopyFacts, LoaderFacts, OptimizerFacts, Run
from torch_bottleneck.timeline.gpu import reading as gpu_reading
from torch_bottleneck.timeline.result import Timeline
from torch_bottleneck.timeline.steps.traced import find_steps
from torch_bottleneck.timeline.trace.dialect import Kind

from .readings import read

BARE = {name: case for name, case in CASES.items() if case.true_step_ms and "H200" in case.facts["device"]}
FIXED = sorted(name for name, case in BARE.items() if case.facts.get("fixed_step_ms"))
ON_GPU = sorted(name for name, case in CASES.items() if "NVIDIA" in case.facts.get("device", ""))
OF_THE_HOST = (WhatIf.SYNCS_GONE, WhatIf.DISPATCH_FREE, WhatIf.INPUT_READY, WhatIf.ALLOCATOR_FREE)


@cache
def reading(name: str, rank: int = 0) -> Timeline:
    case: Case = CASES[name]
    trace = read_trace(case.traces[rank])
    timeline = read(trace, find_steps(trace), true_ms=case.true_step_ms or 119.0)
    assert timeline is not None
    return timeline


def diagnosed(name: str) -> Diagnosis:
    return diagnose_paths([CASES[name].folder])


@pytest.mark.parametrize("name", sorted(BARE))
def test_the_budget_adds_up_to_the_true_step(name: str) -> None:
    timeline = reading(name)
    assert sum(line.ms for line in timeline.budget) == pytest.approx(timeline.true_ms, rel=1e-6)
    assert all(line.ms >= -1e-6 * timeline.true_ms for line in timeline.budget)


@pytest.mark.parametrize("name", sorted(BARE))
def test_the_replay_reproduces_the_profiled_window(name: str) -> None:
    assert reading(name).replay_error < 0.04


@pytest.mark.parametrize("name", ON_GPU)
def test_a_step_without_what_only_the_host_does_is_no_shorter_than_what_the_device_works(name: str) -> None:
    found = as_measured(CASES[name])
    works_ms = sum(line.ms for line in found.budget if line.part in WORK_PARTS)
    predicted = {answer.question: answer.step_ms for answer in found.what_ifs}
    assert all(predicted.get(question, works_ms) >= 0.999 * works_ms for question in OF_THE_HOST)


@pytest.mark.parametrize("name", FIXED)
def test_the_predicted_step_is_near_the_measured_one(name: str) -> None:
    """Within a fifth on every case; reports/accuracy.md has the record."""
    facts = BARE[name].facts
    predicted = reading(name).what_ifs[WhatIf(facts["what_if"])].step_ms
    assert predicted == pytest.approx(float(facts["fixed_step_ms"]), rel=0.20)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("fp32-h200", 0.3, 0.4), ("launch-h200", 0.0, 0.15)],
    ids=["busy", "launching"],
)
def test_padding_saves_its_share_where_the_device_is_busy_and_little_where_it_waits_for_the_host(
    name: str, least: float, most: float
) -> None:
    case: Case = CASES[name]
    trace = read_trace(case.traces[0])
    padded = [LoaderFacts(id=0, cls="DataLoader", fetches=10, batch=BatchFacts(padding_share=0.4))]
    timeline = read(trace, find_steps(trace), true_ms=case.true_step_ms or 119.0, loaders=padded)
    answer = timeline.what_ifs.get(WhatIf.PADDING_GONE)
    saves = answer.saves_ms if answer is not None else 0.0
    assert least * timeline.true_ms <= saves <= most * timeline.true_ms
    assert answer is None or answer.bound


@pytest.mark.parametrize("offered", [True, False], ids=["for each", "few for all"])
def test_an_update_by_hand_is_priced_as_that_of_torch_s_for_loop_where_it_launches_for_each_tensor(
    monkeypatch: pytest.MonkeyPatch, offered: bool
) -> None:
    case: Case = CASES["for-loop-optimizer-h200"]
    trace = read_trace(case.traces[0])
    _, tensors = gpu_reading.optimizer_seen(trace)
    torchs = reading("for-loop-optimizer-h200").what_ifs[WhatIf.OPTIMIZER_FUSED]
    # Its trace names the loop of torch's; a step() of the script's own has no such names.
    monkeypatch.setattr(gpu_reading, "optimizer_seen", lambda _: ("unknown", tensors))
    count = tensors if offered else 100_000
    mine = OptimizerFacts(cls="Mine", module="train", flavour="unknown", parameters=count)
    timeline = read(trace, find_steps(trace), true_ms=case.true_step_ms or 119.0, run=Run(optimizers=[mine]))
    answer = timeline.what_ifs.get(WhatIf.OPTIMIZER_FUSED)
    assert (answer is not None) is offered
    if answer is not None:
        assert (answer.bound, torchs.bound) == (True, False)
        assert answer.step_ms == pytest.approx(torchs.step_ms)
        assert timeline.context["optimizer.flavour"] == "for-loop"


def test_synchronisations_of_a_launch_bound_step_cost_next_to_nothing() -> None:
    timeline = reading("sync-harmless-h200")
    assert timeline.context["sync.item_per_step"] == 12
    assert timeline.what_ifs[WhatIf.SYNCS_GONE].saves_ms < 0.02 * timeline.true_ms


def test_cuda_free_that_the_busy_device_hides_costs_next_to_nothing() -> None:
    """18 cudaFree calls take a fifth of the host's time; without them the step is as long."""
    timeline = reading("alloc-cap-h200")
    spent = sum(s.called_ms for s in timeline.spans if s.part is Part.ALLOCATOR)
    assert spent > 2.0
    assert timeline.what_ifs[WhatIf.ALLOCATOR_FREE].saves_ms < 0.02 * timeline.true_ms


def test_the_straggler_is_the_rank_with_the_work_and_the_other_one_waits() -> None:
    waiting, straggler = (reading("ddp-straggler-h200", rank) for rank in (0, 1))
    assert waiting.part_ms(Part.COMMUNICATION) > 0.7 * waiting.true_ms
    assert straggler.part_ms(Part.HOST) == pytest.approx(20.0, rel=0.1)
    assert straggler.part_ms(Part.COMMUNICATION) < 0.1 * straggler.true_ms


def test_full_precision_math_is_told_from_tensor_cores() -> None:
    assert reading("fp32-h200").context["kernels.matmul_fp32_share"] > 0.8
    assert reading("sync-layers-h200").context["kernels.matmul_fp32_share"] < 0.02
    assert reading("sync-layers-h200").context["kernels.bf16_share"] > 0.3


@pytest.mark.parametrize("kept", [True, False], ids=["all stays", "none does"])
def test_copies_of_what_stays_are_gone_with_their_waits_and_no_others(kept: bool) -> None:
    case: Case = CASES["example-transfer-bound"]
    trace = read_trace(case.traces[0])
    sizes = {int(size) for size in trace.bytes[trace.rows(Kind.MEMCPY)] if size > 0}
    recorded = msgspec.json.decode((case.folder / "run.json").read_bytes(), type=Run)
    run = msgspec.structs.replace(
        recorded, copied=CopyFacts(calls=1, bytes=1, kept_sizes=sorted(sizes) if kept else [])
    )
    true_ms = float(case.facts["measured_slow_ms"])
    answers = read(trace, find_steps(trace), true_ms=true_ms, run=run).what_ifs
    if kept:
        assert answers[WhatIf.COPIES_KEPT].step_ms == pytest.approx(
            answers[WhatIf.COPIES_GONE].step_ms, rel=0.05
        )
        assert not answers[WhatIf.COPIES_KEPT].bound
    else:
        assert WhatIf.COPIES_KEPT not in answers


def test_launches_that_wait_for_their_kernels_cost_at_most_all_that_they_take() -> None:
    case = CASES["thread-blocking-launches-h100"]
    (step_ms,) = (w.step_ms for w in as_measured(case).what_ifs if w.question is WhatIf.LAUNCHES_ASYNC)
    slow, fixed = (float(case.facts[f"measured_{name}_ms"]) for name in ("slow", "fixed"))
    assert 1.0 < (slow - step_ms) / (slow - fixed) < 1.5


def test_convolutions_without_cudnn_cost_what_one_launch_at_the_rate_of_a_product_would_spare() -> None:
    found = diagnosed("thread-cudnn-off-h200")
    first = found.suggestions[0]
    assert (first.fix, first.bound, first.can_try) == ("FX349", True, True)
    fixed_ms = float(CASES["thread-cudnn-off-h200"].facts["measured_fixed_ms"])
    assert first.predicted_ms == pytest.approx(fixed_ms, rel=0.1)


def test_where_nothing_is_cached_the_line_that_says_so_is_named_and_no_empty_cache_is() -> None:
    found = diagnosed("thread-nothing-cached-h200")
    assert found.suggestions[0].fix == "FX225"
    assert found.verdict.bottleneck_class is BottleneckClass.ALLOCATOR
    codes = {finding.code: finding for finding in found.findings}
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in codes["BN201"].title
    assert codes["BN201"].sites[0].short.startswith("postcard_vit.py:7")
    assert "BN202" not in codes


@pytest.mark.parametrize(
    ("name", "fix", "line", "within"),
    [
        ("thread-long-kernel-h200", "FX359", "whale_calls.py:30", 0.05),
        ("thread-window-mask-h200", "FX365", "sonar_windows.py:36", 0.1),
        ("thread-scattered-rows-h200", "FX353", "birdsong_atoms.py:40", 0.05),
        # Launches inside the call are priced without all of the profiler's part.
        ("thread-narrow-svd-h200", "FX356", "bark_patches.py:57", 0.45),
    ],
)
def test_a_call_costs_what_another_way_was_tried_to_spare(
    name: str, fix: str, line: str, within: float
) -> None:
    found = diagnosed(name)
    (suggested,) = (each for each in found.suggestions[:2] if each.fix == fix)
    assert not suggested.bound
    assert suggested.predicted_ms == pytest.approx(float(CASES[name].facts["measured_fixed_ms"]), rel=within)
    (finding,) = (each for each in found.findings if each.code == "BN321")
    assert finding.sites[0].short.startswith(line)
    assert f" at {finding.sites[0].short}: another way saves" in finding.title
