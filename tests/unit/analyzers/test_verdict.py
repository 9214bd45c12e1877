"""The verdict names what saves most when removed, abstains when it must, and never counts time as cost."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers import find_all
from torch_bottleneck.analyzers.capture import judge
from torch_bottleneck.analyzers.verdict import decide, order_causes
from torch_bottleneck.model.codes import BottleneckClass as C
from torch_bottleneck.model.codes import Part, WhatIf
from torch_bottleneck.model.finding import Finding
from torch_bottleneck.model.run import CompileFacts, GraphBreak, LoopTime, Run, SiteTime, SourceSite
from torch_bottleneck.model.view import CodeNode
from torch_bottleneck.timeline.result import CostlyCall, HostSpan

from .facts import STEP_MS, facts


def verdict_of(known):
    return decide(known, find_all(known), judge(known))


def causes_of(known):
    findings = find_all(known)
    return order_causes(known, findings, decide(known, findings, judge(known)))


GPU_CLASSES = [
    (C.INPUT, Part.INPUT, WhatIf.INPUT_READY, {}),
    (C.ALLOCATOR, Part.ALLOCATOR, WhatIf.ALLOCATOR_FREE, {}),
    (C.LAUNCH, Part.DISPATCH, WhatIf.DISPATCH_FREE, {}),
    (C.SYNC, Part.SYNC, WhatIf.SYNCS_GONE, {}),
    (C.TRANSFER, Part.COPIES, WhatIf.COPIES_ASYNC, {"copies.pageable_blocking": True}),
    (C.COMMUNICATION, Part.COMMUNICATION, WhatIf.COMM_OVERLAPPED, {}),
    (C.COMPILE, Part.COMPILE, WhatIf.NO_COMPILE, {}),
    (C.GRAPH_BREAK, Part.GRAPH_BREAK, WhatIf.SEAMS_GONE, {}),
    (C.HOST, Part.HOST, WhatIf.HOST_WORK_GONE, {}),
]


@pytest.mark.parametrize(("expected", "part", "question", "context"), GPU_CLASSES)
def test_each_class_is_named_when_its_removal_saves_most(expected, part, question, context):
    known = facts(parts={part: 60.0}, saves={question: 60.0}, context=context)
    verdict = verdict_of(known)
    assert verdict.bottleneck_class is expected
    assert verdict.confidence == "high"
    first = causes_of(known)[0]
    assert (first.bottleneck_class, first.cost_ms) == (expected, 60.0)


@pytest.mark.parametrize(
    ("expected", "part", "question", "context"),
    [
        (C.INPUT, Part.INPUT, WhatIf.INPUT_READY, {}),
        (C.ALLOCATOR, Part.ALLOCATOR, WhatIf.ALLOCATOR_FREE, {"memory.faults_per_step": 1e4}),
        (C.LAUNCH, Part.DISPATCH, WhatIf.DISPATCH_FREE, {}),
        (C.COMPILE, Part.COMPILE, WhatIf.NO_COMPILE, {}),
        (C.GRAPH_BREAK, Part.GRAPH_BREAK, WhatIf.SEAMS_GONE, {}),
        (C.HOST, Part.HOST, WhatIf.HOST_WORK_GONE, {}),
    ],
)
def test_the_classes_that_exist_without_a_gpu(expected, part, question, context):
    known = facts("cpu", parts={part: 60.0}, saves={question: 60.0}, context=context)
    assert verdict_of(known).bottleneck_class is expected


def test_time_spent_in_calls_is_not_their_cost():
    # 197 ms of cudaFree per step in the host's lane, and nothing gained without them.
    span = HostSpan(part=Part.ALLOCATOR, what="cudaFree", exposed_ms=0.1, called_ms=197.0, count=18)
    known = facts(saves={WhatIf.ALLOCATOR_FREE: 0.1}, spans=(span,))
    assert verdict_of(known).bottleneck_class is C.COMPUTE
    finding = next(f for f in find_all(known) if f.code == "BN201")
    assert finding.note
    assert finding.time_ms == pytest.approx(197.0)
    assert finding.cost_ms == pytest.approx(0.1)


def test_a_busy_device_is_compute_bound_and_small_causes_are_listed_as_negligible():
    known = facts(parts={Part.SYNC: 1.0}, saves={WhatIf.SYNCS_GONE: 1.0})
    verdict = verdict_of(known)
    assert verdict.bottleneck_class is C.COMPUTE
    causes = causes_of(known)
    assert causes[0].bottleneck_class is C.COMPUTE
    assert [c.negligible for c in causes if c.bottleneck_class is C.SYNC] == [True]


def test_classes_within_the_noise_are_named_together():
    known = facts(
        parts={Part.INPUT: 35.0, Part.SYNC: 34.0},
        saves={WhatIf.INPUT_READY: 35.0, WhatIf.SYNCS_GONE: 34.0},
        noise_ms=3.0,
    )
    verdict = verdict_of(known)
    assert verdict.bottleneck_class is C.INPUT
    assert verdict.also == (C.SYNC,)
    assert verdict.confidence != "high"


def test_the_second_cause_is_priced_with_the_first_already_gone():
    known = facts(
        parts={Part.INPUT: 50.0, Part.SYNC: 30.0},
        saves={WhatIf.INPUT_READY: 50.0, WhatIf.SYNCS_GONE: 30.0},
        after={(WhatIf.INPUT_READY, WhatIf.SYNCS_GONE): 45.0},
    )
    second = causes_of(known)[1]
    assert second.cost_ms == 30.0
    assert second.after_previous_ms == pytest.approx(5.0)


def test_an_estimate_goes_before_a_bound_of_about_its_size():
    known = facts(
        "cpu",
        parts={Part.INPUT: 40.0, Part.DISPATCH: 45.0},
        saves={WhatIf.INPUT_READY: 40.0, WhatIf.DISPATCH_FREE: 45.0},
        bounds=(WhatIf.DISPATCH_FREE,),
    )
    assert verdict_of(known).bottleneck_class is C.INPUT


def test_beside_long_work_dispatch_on_a_cpu_never_decides():
    known = facts(
        "cpu",
        parts={Part.DISPATCH: 35.0},
        saves={WhatIf.DISPATCH_FREE: 35.0},
        bounds=(WhatIf.DISPATCH_FREE,),
    )
    assert verdict_of(known).bottleneck_class is C.COMPUTE


@pytest.mark.parametrize(
    "trouble",
    [
        {"replay_error": 0.2, "usable_what_ifs": False},
        {"launches": 1000, "missing_activities": 200},
        {"parts": {Part.UNEXPLAINED: 70.0}},
    ],
)
def test_a_poor_capture_gives_no_verdict_but_a_remedy(trouble):
    known = facts(saves={WhatIf.INPUT_READY: 30.0}, **trouble)
    verdict = verdict_of(known)
    assert verdict.bottleneck_class is C.UNDETERMINED
    assert verdict.confidence == "none"
    assert verdict.reason
    assert verdict.remedy
    assert any(f.code == "BN001" for f in find_all(known))


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        ({"BN101": 20.0}, C.INPUT),
        ({"BN101": 20.0, "BN601": 30.0}, C.INPUT),
        ({"BN503": 20.0}, C.UNDETERMINED),
        ({}, C.UNDETERMINED),
    ],
    ids=["it helped", "one of nothing found", "within others", "nothing tried"],
)
def test_what_helped_in_the_run_names_the_class_where_the_trace_tells_too_little(measured, told):
    known = facts(
        parts={Part.INPUT: 40.0}, saves={WhatIf.INPUT_READY: 40.0}, launches=1000, missing_activities=200
    )
    findings = find_all(known)
    assert "BN101" in {finding.code for finding in findings}
    verdict = decide(known, findings, judge(known), measured=measured)
    assert verdict.bottleneck_class is told
    if told is C.INPUT:
        assert (verdict.code, verdict.confidence) == ("BN101", "low")
        assert "in a trial 20 %" in verdict.headline
        assert verdict.doubts
        assert verdict.remedy


def test_noise_as_large_as_the_effect_takes_the_confidence():
    known = facts(parts={Part.INPUT: 60.0}, saves={WhatIf.INPUT_READY: 60.0}, noise_ms=70.0)
    assert verdict_of(known).confidence == "low"


def test_varying_batches_and_profiled_steps_lower_the_confidence():
    sure = {"parts": {Part.INPUT: 60.0}, "saves": {WhatIf.INPUT_READY: 60.0}}
    assert verdict_of(facts(**sure)).confidence == "high"
    assert verdict_of(facts(**sure, context={"step.varying_shapes": True})).confidence == "medium"
    assert verdict_of(facts(**sure, true_is="profiled")).confidence == "medium"


def test_breaks_are_named_with_their_lines_and_stand_before_launching():
    known = facts(
        parts={Part.GRAPH_BREAK: 30.0, Part.DISPATCH: 40.0},
        saves={WhatIf.SEAMS_GONE: 30.0, WhatIf.DISPATCH_FREE: 40.0},
        bounds=(WhatIf.DISPATCH_FREE,),
        compile_facts=CompileFacts(used=True, breaks=[GraphBreak(reason="Tensor.item() call", hits=4)]),
    )
    assert verdict_of(known).bottleneck_class is C.GRAPH_BREAK
    finding = next(f for f in find_all(known) if f.code == "BN401")
    assert any("Tensor.item()" in item.text for item in finding.evidence)


def test_findings_are_priced_in_shares_of_the_true_step():
    for finding in find_all(facts(parts={Part.INPUT: 60.0}, saves={WhatIf.INPUT_READY: 60.0})):
        if finding.cost_ms is not None:
            assert finding.cost_share == pytest.approx(finding.cost_ms / STEP_MS)
            assert finding.predicted_step_ms == pytest.approx(STEP_MS - finding.cost_ms)
            assert finding.interval.low_ms <= finding.cost_ms <= finding.interval.high_ms


@pytest.mark.parametrize(("share", "expected"), [(12.0, C.COMPUTE), (40.0, C.INPUT)])
def test_on_one_lane_a_tenth_beside_long_work_does_not_decide(share, expected):
    known = facts("cpu", parts={Part.INPUT: share}, saves={WhatIf.INPUT_READY: share})
    assert verdict_of(known).bottleneck_class is expected
    assert any(c.bottleneck_class is C.INPUT and c.cost_ms == share for c in causes_of(known))


LOOP_ON_CPU = facts(
    "cpu",
    parts={Part.DISPATCH: 30.0, Part.ALLOCATOR: 12.0},
    saves={WhatIf.DISPATCH_FREE: 30.0, WhatIf.ALLOCATOR_FREE: 12.0},
    bounds=(WhatIf.DISPATCH_FREE,),
    context={"memory.faults_per_step": 1e4},
)


@pytest.mark.parametrize(
    ("fixes", "expected"),
    [
        ([], C.COMPUTE),
        ([("BN503", 7.0)], C.COMPUTE),
        ([("BN503", 25.0)], C.LAUNCH),
        ([("BN503", 25.0), ("BN305", 26.0)], C.COMPUTE),
        ([("BN203", 12.0)], C.ALLOCATOR),
    ],
)
def test_beside_long_work_the_class_is_that_of_the_best_known_fix(fixes, expected):
    verdict = decide(LOOP_ON_CPU, find_all(LOOP_ON_CPU), judge(LOOP_ON_CPU), fixes=fixes)
    assert verdict.bottleneck_class is expected


@pytest.mark.parametrize(
    ("callee", "code", "expected"), [("way:rounds", "BN509", C.LAUNCH), ("way:inverse", "BN321", C.COMPUTE)]
)
def test_small_calls_that_one_call_can_make_are_launches_though_their_work_counts_as_computing(
    callee, code, expected
):
    call = CostlyCall(callee=callee, count=256.0, left=0.2, shown="calls")
    known = facts(
        "cpu",
        parts={Part.DISPATCH: 8.0},
        saves={WhatIf.DISPATCH_FREE: 8.0, (WhatIf.CALL_GONE, callee): 55.0},
        bounds=(WhatIf.DISPATCH_FREE,),
        costly=(call,),
    )
    findings = find_all(known)
    assert code in {finding.code for finding in findings if finding.callee == callee}
    verdict = decide(known, findings, judge(known), fixes=[(code, 55.0)])
    assert verdict.bottleneck_class is expected
    assert (verdict.code == code) == (expected is C.LAUNCH)


def test_a_loop_that_waits_more_than_it_dispatches_is_what_its_waits_are():
    known = facts(
        parts={Part.SYNC: 26.0, Part.DISPATCH: 12.0},
        saves={WhatIf.SYNCS_GONE: 26.0, WhatIf.DISPATCH_FREE: 30.0, WhatIf.BF16: 37.0},
        bounds=(WhatIf.DISPATCH_FREE,),
    )
    for loop_ms, expected in ((36.0, C.COMPUTE), (38.0, C.SYNC)):
        fixes = [("BN503", loop_ms), ("BN303", 37.0)]
        assert decide(known, find_all(known), judge(known), fixes=fixes).bottleneck_class is expected


def test_a_loop_of_long_work_is_no_cause_that_costs_nothing():
    """What a loop holds beside its waits and its dispatch is work: a copy of 0.1 ms cannot save 46."""
    known = facts(
        parts={Part.COPIES: 0.1},
        saves={WhatIf.COPIES_ASYNC: 0.1},
        context={"copies.pageable_blocking": True},
    )
    findings = find_all(known)
    assert any(finding.bottleneck_class is C.TRANSFER for finding in findings)
    verdict = decide(known, findings, judge(known), fixes=[("BN503", 46.0)])
    assert verdict.bottleneck_class is C.COMPUTE


def test_code_given_up_at_the_recompile_limit_is_dispatch_or_what_the_compiler_gave_up():
    known = facts(
        "cpu",
        parts={Part.DISPATCH: 70.0},
        saves={WhatIf.DISPATCH_FREE: 70.0, WhatIf.COMPILED: 40.0, WhatIf.NO_COMPILE: 40.0},
        bounds=(WhatIf.DISPATCH_FREE, WhatIf.COMPILED, WhatIf.NO_COMPILE),
        compile_facts=CompileFacts(used=True, limit_hit=["forward (net.py:7)"]),
    )
    findings = find_all(known)
    (given_up,) = (finding for finding in findings if finding.code == "BN402")
    assert given_up.cost_ms == 40.0
    verdict = decide(known, findings, judge(known))
    assert verdict.bottleneck_class is C.LAUNCH
    assert verdict.also == (C.COMPILE,)


def test_a_loop_is_the_place_of_the_dispatch_and_no_cause_beside_it():
    site = SourceSite(file="net.py", line=12, function="forward")
    loop = LoopTime(site=site, last_line=15, seen={"sampled forward": 30}, of={"sampled forward": 40})
    known = facts(
        "cpu",
        parts={Part.DISPATCH: 70.0},
        saves={WhatIf.DISPATCH_FREE: 70.0, WhatIf.LOOP_GONE: 75.0},
        bounds=(WhatIf.DISPATCH_FREE, WhatIf.LOOP_GONE),
        context={"loop.share": 0.75},
        loop=loop,
    )
    findings = find_all(known)
    causes = order_causes(known, findings, decide(known, findings, judge(known)))
    assert [(cause.code, cause.cost_ms) for cause in causes[:1]] == [("BN501", 70.0)]
    assert causes[0].sites == (site,)
    assert any(finding.code == "BN503" and finding.cost_ms == 75.0 for finding in findings)


def test_anomaly_detection_is_named_with_its_line_and_is_no_cause_beside_dispatch():
    site = SourceSite(file="train.py", line=3, function="<module>")
    known = facts(
        "cpu",
        parts={Part.DISPATCH: 70.0},
        saves={WhatIf.DISPATCH_FREE: 70.0, WhatIf.ANOMALIES_IGNORED: 40.0},
        bounds=(WhatIf.DISPATCH_FREE,),
        context={"debug.anomaly": True},
        run=Run(sites=[SiteTime(site=site, phase="anomalies", count=1)]),
    )
    (found,) = (finding for finding in find_all(known) if finding.code == "BN504")
    assert (found.cost_ms, found.sites) == (40.0, (site,))
    assert [cause.code for cause in causes_of(known)] == ["BN501"]


def test_checks_of_distributions_are_named_with_their_longest_line_and_are_no_cause_beside_dispatch():
    calls = tuple(
        CodeNode(
            name="log_prob()", role="loss", ms=ms, share=ms / 100, file="ppo.py", line=line, callee=callee
        )
        for line, ms, callee in (
            (7, 5.0, "torch.distributions.normal.Normal"),
            (9, 8.0, "torch.distributions.normal.log_prob"),
            (11, 20.0, "torch.nn.functional.linear"),
        )
    )
    saves = {WhatIf.DISPATCH_FREE: 70.0, WhatIf.DISTRIBUTIONS_UNCHECKED: 13.0}
    step = CodeNode(name="step", role="step", ms=100.0, share=1.0, children=calls)
    known = facts("cpu", parts={Part.DISPATCH: 70.0}, saves=saves, bounds=tuple(saves), tree=step)
    (found,) = (finding for finding in find_all(known) if finding.code == "BN505")
    assert (found.cost_ms, [site.line for site in found.sites]) == (13.0, [9, 7])
    assert [cause.code for cause in causes_of(known)] == ["BN501"]


@pytest.mark.parametrize(("kind", "blocking"), [("gpu", True), ("gpu", False), ("cpu", True)])
def test_launches_that_wait_are_told_on_a_gpu_before_what_would_only_hide_them(
    kind: str, *, blocking: bool
) -> None:
    saves = {WhatIf.DISPATCH_FREE: 70.0, WhatIf.LAUNCHES_ASYNC: 25.0}
    known = facts(kind, parts={Part.DISPATCH: 70.0}, saves=saves, context={"debug.launch_blocking": blocking})
    found = [finding.cost_ms for finding in find_all(known) if finding.code == "BN506"]
    assert found == ([25.0] if blocking and kind == "gpu" else [])
    assert verdict_of(known).bottleneck_class is C.LAUNCH


def test_dispatch_weighs_what_compiling_would_take_away_and_not_its_bound():
    saves = {WhatIf.DISPATCH_FREE: 60.0, WhatIf.COMPILED: 20.0, WhatIf.SYNCS_GONE: 30.0}
    known = facts(
        parts={Part.DISPATCH: 60.0, Part.SYNC: 30.0},
        saves=saves,
        bounds=(WhatIf.DISPATCH_FREE, WhatIf.COMPILED),
    )
    assert verdict_of(known).bottleneck_class is C.SYNC
    saves[WhatIf.COMPILED] = 55.0
    known = facts(
        parts={Part.DISPATCH: 60.0, Part.SYNC: 30.0},
        saves=saves,
        bounds=(WhatIf.DISPATCH_FREE, WhatIf.COMPILED),
    )
    assert verdict_of(known).bottleneck_class is C.LAUNCH


def test_one_cuda_graph_reaches_nothing_where_sizes_vary():
    saves = {
        WhatIf.DISPATCH_FREE: 60.0,
        WhatIf.ONE_LAUNCH: 60.0,
        WhatIf.COMPILED: 20.0,
        WhatIf.SYNCS_GONE: 30.0,
    }
    parts, bounds = {Part.DISPATCH: 60.0, Part.SYNC: 30.0}, (WhatIf.DISPATCH_FREE,)
    assert verdict_of(facts(parts=parts, saves=saves, bounds=bounds)).bottleneck_class is C.LAUNCH
    varying = facts(parts=parts, saves=saves, bounds=bounds, context={"step.varying_shapes": True})
    assert verdict_of(varying).bottleneck_class is C.SYNC


def test_of_rivals_an_estimate_comes_before_a_bound():
    saves = {WhatIf.DISPATCH_FREE: 50.0, WhatIf.SYNCS_GONE: 34.5}
    known = facts(parts={Part.DISPATCH: 50.0, Part.SYNC: 34.5}, saves=saves, bounds=(WhatIf.DISPATCH_FREE,))
    verdict = verdict_of(known)
    assert verdict.bottleneck_class is C.SYNC
    assert verdict.also == (C.LAUNCH,)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({}, C.LAUNCH),
        ({"BN201": 30.0}, C.ALLOCATOR),
        ({"BN201": 17.0}, C.LAUNCH),
        ({"BN904": 60.0}, C.LAUNCH),
    ],
)
def test_a_gain_that_was_measured_comes_before_a_bound_that_counts_for_less(measured, expected):
    known = facts(
        parts={Part.DISPATCH: 40.0, Part.ALLOCATOR: 16.0},
        saves={WhatIf.DISPATCH_FREE: 40.0, WhatIf.ALLOCATOR_FREE: 16.0},
        bounds=(WhatIf.DISPATCH_FREE,),
    )
    verdict = decide(known, find_all(known), judge(known), measured=measured)
    assert verdict.bottleneck_class is expected
    # What is told is what was compared, not the price that the finding has.
    assert verdict.headline.endswith(" trial 30 % of 100.0 ms)") is (expected is C.ALLOCATOR)


@pytest.mark.parametrize(("saves_ms", "expected"), [(80.0, C.HOST), (20.0, C.COMPUTE), (0.0, C.COMPUTE)])
def test_a_cause_without_a_price_has_that_of_the_trial_which_removed_it(saves_ms, expected):
    """Threads that wait for one another, in operators: no replay can tell what the step takes without."""
    known = facts("cpu", parts={Part.OTHER_MATH: 98.0})
    threads = Finding(code="BN903", title="Threads compete", bottleneck_class=C.HOST)
    findings, measured = (*find_all(known), threads), {"BN903": saves_ms}
    verdict = decide(known, findings, judge(known), measured=measured)
    assert verdict.bottleneck_class is expected
    causes = order_causes(known, findings, verdict, measured=measured)
    assert [cause.cost_ms for cause in causes if cause.code == "BN903"] == ([saves_ms] if saves_ms else [])
    assert causes[0].bottleneck_class is expected


def test_what_costs_much_less_does_not_stand_for_dispatch_that_no_known_fix_takes_away():
    parts = {Part.DISPATCH: 70.0, Part.SYNC: 6.0}
    saves = {WhatIf.DISPATCH_FREE: 80.0, WhatIf.COMPILED: 7.0, WhatIf.SYNCS_GONE: 6.0}
    bounds = (WhatIf.DISPATCH_FREE, WhatIf.COMPILED)
    assert verdict_of(facts(parts=parts, saves=saves, bounds=bounds)).bottleneck_class is C.LAUNCH


CLOSE_CALLS = [
    ("gpu", {Part.INPUT: 9.0}, {WhatIf.INPUT_READY: 9.0}, (), {}, C.INPUT, "0.09 against a limit of 0.08"),
    ("gpu", {Part.INPUT: 7.0}, {WhatIf.INPUT_READY: 7.0}, (), {}, C.COMPUTE, "0.07 against a limit of 0.08"),
    (
        "gpu",
        {Part.DISPATCH: 30.0},
        {WhatIf.DISPATCH_FREE: 30.0},
        (WhatIf.DISPATCH_FREE,),
        {},
        C.LAUNCH,
        "0.30 against a limit of 0.25",
    ),
    ("cpu", {Part.HOST: 36.0}, {WhatIf.HOST_WORK_GONE: 36.0}, (), {}, C.HOST, "0.36 against a limit of 0.33"),
    (
        "cpu",
        {Part.ALLOCATOR: 30.0},
        {WhatIf.ALLOCATOR_FREE: 30.0},
        (),
        {"memory.faults_per_step": 1e4},
        C.COMPUTE,
        "0.30 against a limit of 0.33",
    ),
    (
        "gpu",
        {Part.DISPATCH: 60.0, Part.INPUT: 40.0},
        {WhatIf.DISPATCH_FREE: 60.0, WhatIf.INPUT_READY: 40.0},
        (WhatIf.DISPATCH_FREE,),
        {},
        C.INPUT,
        "limit of 0.70, otherwise it would be launch-bound",
    ),
]


@pytest.mark.parametrize(("kind", "parts", "saves", "bounds", "context", "named", "says"), CLOSE_CALLS)
def test_a_class_that_a_limit_decided_closely_says_so_and_is_not_certain(
    kind, parts, saves, bounds, context, named, says
):
    verdict = verdict_of(facts(kind, parts=parts, saves=saves, bounds=bounds, context=context))
    assert verdict.bottleneck_class is named
    assert says in verdict.reason
    assert verdict.confidence != "high"


def test_a_class_far_from_every_limit_names_none():
    verdict = verdict_of(facts(parts={Part.INPUT: 60.0}, saves={WhatIf.INPUT_READY: 60.0}))
    assert "limit" not in verdict.reason
    assert verdict.confidence == "high"


@pytest.mark.parametrize(("pause_ms", "close"), [(0.45, True), (0.70, False)])
def test_python_in_pauses_just_long_enough_could_be_dispatch(pause_ms, close):
    known = facts(
        parts={Part.HOST: 50.0, Part.DISPATCH: 30.0},
        saves={WhatIf.HOST_WORK_GONE: 50.0, WhatIf.DISPATCH_FREE: 30.0},
        bounds=(WhatIf.DISPATCH_FREE,),
        pauses_ms=(pause_ms,) * int(8 * 45 / pause_ms),
    )
    verdict = verdict_of(known)
    assert verdict.bottleneck_class is C.HOST
    assert ("pauses between operators = 0.45 against a limit of 0.40" in verdict.reason) == close
