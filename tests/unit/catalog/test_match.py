"""Which fixes are suggested for a run, in which order, and with what prediction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from torch_bottleneck.catalog.build import seen
from torch_bottleneck.catalog.conditions import filled_code
from torch_bottleneck.catalog.match import match
from torch_bottleneck.catalog.registry import FIXES, by_code, by_id, search
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import WhatIfResult
from torch_bottleneck.model.finding import Finding
from torch_bottleneck.model.fix import Condition, Fix, Risk, Suggestion
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.work import BreakRow

SITE = SourceSite(file="train.py", line=12)


def finding(code: str, cost: float | None = 10.0, **more: Any) -> Finding:
    return Finding(code=code, title=code, cost_ms=cost, **more)


def answer(
    question: WhatIf, saves: float, *, true: float = 100.0, bound: bool = False
) -> dict[WhatIf, WhatIfResult]:
    return {
        question: WhatIfResult(
            question=question, step_ms=true - saves, saves_ms=saves, basis="replay", bound=bound
        )
    }


def make(fix_id: str, finding_code: str = "BN101", **more: Any) -> Fix:
    return Fix(id=fix_id, title=fix_id, addresses=(finding_code,), what_to_change="Do it.", **more)


def ids(suggestions: Any) -> list[str]:
    return [suggestion.fix for suggestion in suggestions]


def test_a_fix_is_suggested_only_for_a_finding_that_it_addresses() -> None:
    fixes = [make("FX001", "BN101"), make("FX002", "BN201")]
    assert ids(match([finding("BN101")], {}, {}, 100.0, fixes=fixes)) == ["FX001"]
    assert match([], {}, {}, 100.0, fixes=fixes) == ()


def test_the_prediction_comes_from_the_replay_and_from_nowhere_else() -> None:
    fix = make("FX001", what_if=WhatIf.INPUT_WORKERS, basis="shared out")
    (without,) = match([finding("BN101")], {}, {}, 100.0, fixes=[fix])
    assert without.predicted_ms is None
    assert without.saves_ms is None
    (predicted,) = match([finding("BN101")], {}, answer(WhatIf.INPUT_WORKERS, 60.0), 100.0, fixes=[fix])
    assert (predicted.predicted_ms, predicted.saves_ms, predicted.bound) == (40.0, 60.0, False)
    assert predicted.basis == "replay (shared out)"


def test_a_fix_points_to_the_line_of_the_finding_it_was_made_for_and_not_of_the_dearest() -> None:
    producer = SourceSite(file="data.py", line=3)
    fix = Fix(id="FX001", title="t", addresses=("BN102", "BN101"), what_to_change="Do it.")
    found = [finding("BN101", sites=(SITE,)), finding("BN102", None, sites=(producer,))]
    (suggestion,) = match(found, {}, {}, 100.0, fixes=[fix])
    assert (suggestion.finding, suggestion.site) == ("BN101", producer)
    (alone,) = match(found[:1], {}, {}, 100.0, fixes=[fix])
    assert alone.site == SITE


def test_a_fix_points_to_the_line_of_its_answer_where_that_has_one() -> None:
    own = SourceSite(file="loss.py", line=9)
    fix = make("FX001", what_if=WhatIf.INPUT_WORKERS)
    told = {k: msgspec.structs.replace(v, site=own) for k, v in answer(WhatIf.INPUT_WORKERS, 60.0).items()}
    (suggestion,) = match([finding("BN101", sites=(SITE,))], {}, told, 100.0, fixes=[fix])
    assert suggestion.site == own


def test_of_two_costly_calls_each_has_its_own_fix_with_its_own_price() -> None:
    calls = {"way:inverse": 40.0, "torch.argmax": 20.0}
    found = [finding("BN321", saves, call=f"`{callee}`", callee=callee) for callee, saves in calls.items()]
    answers = {
        (WhatIf.CALL_GONE, callee): each
        for callee, saves in calls.items()
        for each in answer(WhatIf.CALL_GONE, saves, bound=callee == "torch.argmax").values()
    }
    got = {s.fix: (s.predicted_ms, s.bound) for s in match(found, {"device.kind": "cpu"}, answers, 100.0)}
    assert got == {"FX350": (60.0, False), "FX335": (80.0, True)}


def test_a_narrower_answer_stands_before_the_bound_and_may_say_that_there_is_nothing_to_gain() -> None:
    fix = make(
        "FX001", what_if=WhatIf.INPUT_READY, what_if_bound=True, narrower=WhatIf.ROWS_BATCHED, basis="at most"
    )
    ready = answer(WhatIf.INPUT_READY, 60.0)
    (wide,) = match([finding("BN101")], {}, ready, 100.0, fixes=[fix])
    assert (wide.saves_ms, wide.bound, wide.basis) == (60.0, True, "replay (at most)")
    (narrow,) = match([finding("BN101")], {}, ready | answer(WhatIf.ROWS_BATCHED, 20.0), 100.0, fixes=[fix])
    assert (narrow.saves_ms, narrow.bound, narrow.basis) == (20.0, False, "replay")
    assert not match([finding("BN101")], {}, ready | answer(WhatIf.ROWS_BATCHED, 0.0), 100.0, fixes=[fix])


@pytest.mark.parametrize(("call", "title"), [("np.clip()", "Spare `np.clip()`"), ("", "FX001")])
def test_a_narrower_answer_about_a_call_gives_its_name_to_the_fix(call: str, title: str) -> None:
    fix = make("FX001", narrower=WhatIf.PRODUCTION_CHEAPER, named="Spare {call}")
    (given,) = answer(WhatIf.PRODUCTION_CHEAPER, 30.0).values()
    answers = {given.question: msgspec.structs.replace(given, call=call)}
    (found,) = match([finding("BN101")], {}, answers, 100.0, fixes=[fix])
    assert (found.title, found.predicted_ms) == (title, 70.0)


def test_the_fix_for_the_call_that_a_narrower_answer_is_about_comes_first_with_its_gain() -> None:
    cheaper = make("FX001", narrower=WhatIf.PRODUCTION_CHEAPER)
    for_it = make("FX002", "BN904", for_calls=("gc.",), named="Take {call} out")
    (given,) = answer(WhatIf.PRODUCTION_CHEAPER, 30.0).values()
    for callee, wanted in (("gc.collect", ["FX002", "FX001"]), ("numpy.clip", ["FX001"]), ("", ["FX001"])):
        answers = {given.question: msgspec.structs.replace(given, call="gc.next()", callee=callee)}
        found = match([finding("BN101")], {}, answers, 100.0, fixes=[cheaper, for_it])
        assert ids(found) == wanted
        assert {(s.finding, s.predicted_ms) for s in found} == {("BN101", 70.0)}
    assert match([finding("BN101")], {}, {}, 100.0, fixes=[for_it]) == ()
    there = msgspec.structs.replace(given, call="collect()", callee="gc.collect")
    elsewhere = make("FX002", "BN904", for_calls=("gc.",), when=seen("device.kind", "==", "cuda", "a GPU"))
    answers = {given.question: there}
    found = match([finding("BN101")], {"device.kind": "cpu"}, answers, 100.0, fixes=[cheaper, elsewhere])
    assert ids(found) == ["FX001"], "its own conditions hold, too"


@pytest.mark.parametrize(("saves", "first"), [(59.5, "FX002"), (50.0, "FX001")])
def test_of_gains_that_are_alike_the_one_that_changes_the_cause_comes_first(saves: float, first: str) -> None:
    by_others = make("FX001", what_if=WhatIf.INPUT_WORKERS)
    at_its_root = make("FX002", what_if=WhatIf.INPUT_READY, narrower=WhatIf.ROWS_BATCHED)
    answers = answer(WhatIf.INPUT_WORKERS, 60.0) | answer(WhatIf.ROWS_BATCHED, saves)
    found = match([finding("BN101")], {}, answers, 100.0, fixes=[by_others, at_its_root])
    assert ids(found)[0] == first


def test_next_of_a_new_iterator_is_told_from_short_epochs() -> None:
    context = {"loader.present": True, "loader.num_workers": 2, "loader.persistent_workers": False}
    context |= {"loader.kept_ms": 80.0}
    for each, wanted, other in ((1.0, "FX113", "FX105"), (12.0, "FX105", "FX113")):
        found = ids(match([finding("BN104")], {**context, "loader.batches_per_iterator": each}, {}, 100.0))
        assert wanted in found
        assert other not in found


def test_a_fix_that_buys_memory_with_time_has_a_price_and_no_gain() -> None:
    fix = make("FX001", adds="work.checkpoint_ms")
    (bought,) = match([finding("BN101")], {"work.checkpoint_ms": 8.5}, {}, 100.0, fixes=[fix])
    assert (bought.adds_ms, bought.predicted_ms, bought.saves_ms) == (8.5, None, None)
    (untold,) = match([finding("BN101")], {}, {}, 100.0, fixes=[fix])
    assert untold.adds_ms is None, "without a trace the price is not known, and not zero"


@pytest.mark.parametrize(("of_answer", "of_fix"), [(True, False), (False, True)])
def test_a_bound_stays_a_bound(of_answer: bool, of_fix: bool) -> None:
    fix = make("FX001", what_if=WhatIf.INPUT_READY, what_if_bound=of_fix)
    (suggestion,) = match(
        [finding("BN101")], {}, answer(WhatIf.INPUT_READY, 60.0, bound=of_answer), 100.0, fixes=[fix]
    )
    assert suggestion.bound


HALF = WhatIfResult(question=WhatIf.BF16, step_ms=80.0, saves_ms=20.0, basis="replay", relieved_ms=50.0)


def test_what_less_memory_may_bring_is_a_bound_that_names_the_step_without_it() -> None:
    fix = make("FX001", what_if=WhatIf.BF16)
    (told,) = match([finding("BN101")], {}, {WhatIf.BF16: HALF}, 100.0, fixes=[fix])
    assert (told.predicted_ms, told.saves_ms, told.bound) == (50.0, 50.0, True)
    assert "80.0 ms a step if it goes as often" in told.basis


def test_less_memory_does_not_keep_empty_cache_from_giving_blocks_back() -> None:
    fix = make("FX001", what_if=WhatIf.BF16)
    emptied = {"allocator.empty_cache_per_step": 1.0}
    (told,) = match([finding("BN101")], emptied, {WhatIf.BF16: HALF}, 100.0, fixes=[fix])
    assert (told.predicted_ms, told.bound) == (80.0, False)


def test_what_the_step_has_nothing_of_is_not_recommended_either() -> None:
    fix = make("FX001", what_if=WhatIf.DISTRIBUTIONS_UNCHECKED, only_answered=True)
    found, other = [finding("BN101")], answer(WhatIf.INPUT_READY, 60.0)
    assert match(found, {}, other, 100.0, fixes=[fix]) == ()
    assert ids(match(found, {}, {}, 100.0, fixes=[fix])) == ["FX001"], "nothing was asked"
    answered = other | answer(WhatIf.DISTRIBUTIONS_UNCHECKED, 30.0)
    assert ids(match(found, {}, answered, 100.0, fixes=[fix])) == ["FX001"]


@pytest.mark.parametrize(("unnamed", "listed"), [(True, False), (False, True), (None, True)])
def test_side_work_is_taken_out_only_where_samples_show_some_or_none_were_taken(
    unnamed: bool | None, listed: bool
) -> None:
    known = {} if unnamed is None else {"host.unnamed": unnamed}
    found = match([finding("BN901", 30.0)], known, answer(WhatIf.HOST_WORK_GONE, 30.0), 100.0)
    assert ("FX504" in ids(found)) is listed


def test_what_is_already_on_is_not_recommended() -> None:
    off = make("FX001", when=(Condition(key="cudnn.benchmark", op="==", value=False, text="it is off"),))
    for context, suggested in (({"cudnn.benchmark": True}, False), ({"cudnn.benchmark": False}, True)):
        assert bool(match([finding("BN101")], context, {}, 100.0, fixes=[off])) is suggested
    unless = make("FX002", unless=(Condition(key="cudnn.benchmark", op="==", value=True, text="it is on"),))
    assert match([finding("BN101")], {"cudnn.benchmark": True}, {}, 100.0, fixes=[unless]) == ()


def test_an_unmeasured_condition_is_listed_not_assumed() -> None:
    fix = make(
        "FX001",
        when=(Condition(key="cudnn.benchmark", op="==", value=False, text="benchmark is off"),),
        unless=(Condition(key="cudnn.deterministic", op="==", value=True, text="determinism is asked for"),),
    )
    (suggestion,) = match([finding("BN101")], {}, {}, 100.0, fixes=[fix])
    assert suggestion.unknown == ("whether benchmark is off", "whether determinism is asked for")


def test_a_fix_whose_evidence_was_not_measured_is_not_suggested() -> None:
    fix = make("FX001", when=(Condition(key="loader.duplicated", op="known"),))
    assert match([finding("BN101")], {}, {}, 100.0, fixes=[fix]) == ()
    assert match([finding("BN101")], {"loader.duplicated": True}, {}, 100.0, fixes=[fix])


def test_a_fix_that_the_replay_gives_no_gain_is_left_out() -> None:
    fix = make("FX001", what_if=WhatIf.ALLOCATOR_FREE)
    assert match([finding("BN101")], {}, answer(WhatIf.ALLOCATOR_FREE, 0.0), 100.0, fixes=[fix]) == ()


@pytest.mark.parametrize(("saves", "listed"), [(1.99, False), (2.01, True)])
def test_what_promises_less_than_two_percent_is_left_out(saves: float, listed: bool) -> None:
    fix = make("FX001", what_if=WhatIf.ALLOCATOR_FREE)
    found = match([finding("BN101")], {}, answer(WhatIf.ALLOCATOR_FREE, saves), 100.0, fixes=[fix])
    assert bool(found) is listed


@pytest.mark.parametrize(("cost", "listed"), [(1.99, False), (2.01, True)])
def test_what_answers_less_than_two_percent_is_left_out_without_a_prediction_too(
    cost: float, listed: bool
) -> None:
    """A ResNet on two cores, its dispatch 1.2 %, was told in second place to batch a loop that it has not."""
    found = match([finding("BN101", cost)], {}, {}, 100.0, fixes=[make("FX001")])
    assert bool(found) is listed


@pytest.mark.parametrize(("share", "listed"), [(0.98, False), (0.1, True)])
def test_dispatch_of_the_optimizer_is_no_loop_over_samples(share: float, listed: bool) -> None:
    context = {"device.kind": "cpu", "loop.carried": False, "dispatch.in_optimizer": share}
    assert ("FX510" in ids(match([finding("BN501", 5.0)], context, {}, 100.0))) is listed


def test_one_fix_appears_once_for_the_dearest_finding() -> None:
    fix = Fix(id="FX001", title="t", addresses=("BN101", "BN102"), what_to_change="Do it.")
    cheap = finding("BN101", 3.0)
    dear = finding("BN102", 30.0, sites=(SITE,))
    (suggestion,) = match([cheap, dear], {}, {}, 100.0, fixes=[fix])
    assert suggestion.finding == "BN102"
    assert suggestion.site == SITE


def test_of_two_that_conflict_the_better_stays() -> None:
    worse = make("FX001", what_if=WhatIf.INPUT_WORKERS, conflicts=("FX002",))
    better = make("FX002", what_if=WhatIf.INPUT_READY)
    answers = answer(WhatIf.INPUT_WORKERS, 20.0) | answer(WhatIf.INPUT_READY, 50.0)
    assert ids(match([finding("BN101")], {}, answers, 100.0, fixes=[worse, better])) == ["FX002"]


def test_order_is_by_gain_then_the_unpriced_beside_a_priced_one_then_notes() -> None:
    fixes = [
        make("FX001", "BN902", note=True, what_if=WhatIf.GC_FREE),
        make("FX002", "BN101", what_if=WhatIf.GC_FREE),
        make("FX003", "BN101"),
        make("FX005", "BN101", what_if=WhatIf.INPUT_READY),
        make("FX006", "BN101", what_if=WhatIf.INPUT_WORKERS),
    ]
    answers = (
        answer(WhatIf.GC_FREE, 1.0) | answer(WhatIf.INPUT_READY, 40.0) | answer(WhatIf.INPUT_WORKERS, 30.0)
    )
    findings = [finding("BN902", 1.0), finding("BN101", 40.0)]
    expected = ["FX005", "FX006", "FX003", "FX001"]
    assert ids(match(findings, {}, answers, 100.0, fixes=fixes)) == expected


def test_the_only_answer_to_a_dear_finding_is_not_buried_for_want_of_a_prediction() -> None:
    fixes = [
        make("FX001", "BN101", what_if=WhatIf.INPUT_READY),
        make("FX002", "BN802"),
        make("FX003", "BN901"),
    ]
    findings = [finding("BN101", 10.0), finding("BN802", 60.0), finding("BN901", 14.0)]
    suggestions = match(findings, {}, answer(WhatIf.INPUT_READY, 10.0), 100.0, fixes=fixes)
    assert ids(suggestions) == ["FX002", "FX001", "FX003"]
    assert suggestions[0].saves_ms is None, "ranked by what it might save, never given a figure"


def test_a_bound_ranks_below_an_estimate_of_like_size() -> None:
    fixes = [
        make("FX001", what_if=WhatIf.INPUT_READY, what_if_bound=True),
        make("FX002", what_if=WhatIf.INPUT_WORKERS),
    ]
    answers = answer(WhatIf.INPUT_READY, 50.0) | answer(WhatIf.INPUT_WORKERS, 40.0)
    assert ids(match([finding("BN101", 50.0)], {}, answers, 100.0, fixes=fixes)) == ["FX002", "FX001"]


@pytest.mark.parametrize(
    ("named_saves", "first"), [(21.0, "FX002"), (19.0, "FX001")], ids=["half of the cost", "less than half"]
)
def test_a_general_fix_stands_behind_one_that_names_half_of_the_cost(named_saves: float, first: str) -> None:
    fixes = [
        make("FX001", general="always", what_if=WhatIf.ONE_LAUNCH),
        make("FX002", what_if=WhatIf.OPTIMIZER_FUSED),
        make("FX003", what_if=WhatIf.GC_FREE),
    ]
    answers = answer(WhatIf.ONE_LAUNCH, 30.0) | answer(WhatIf.OPTIMIZER_FUSED, named_saves)
    found = ids(
        match([finding("BN101", 40.0)], {}, answers | answer(WhatIf.GC_FREE, 3.0), 100.0, fixes=fixes)
    )
    assert found[0] == first
    assert found.index("FX001") < found.index("FX003"), "what saves a tenth of it never comes before it"


def test_the_work_of_a_step_that_computes_is_not_explained_by_a_small_saving() -> None:
    fixes = [
        make("FX001", general="always", what_if=WhatIf.COMPILED),
        make("FX002", what_if=WhatIf.BF16),
    ]
    answers = answer(WhatIf.COMPILED, 50.0) | answer(WhatIf.BF16, 30.0)
    assert ids(match([finding("BN101", None, time_ms=90.0)], {}, answers, 100.0, fixes=fixes))[0] == "FX001"


@pytest.mark.parametrize(
    ("general_saves", "first"), [(30.5, "FX002"), (33.0, "FX001")], ids=["about as much", "more"]
)
def test_of_gains_that_do_not_differ_one_that_names_what_to_change_comes_first(
    general_saves: float, first: str
) -> None:
    fixes = [
        make("FX001", general="always", what_if=WhatIf.COMPILED),
        make("FX002", what_if=WhatIf.BF16),
    ]
    answers = answer(WhatIf.COMPILED, general_saves) | answer(WhatIf.BF16, 30.0)
    assert ids(match([finding("BN101", None, time_ms=90.0)], {}, answers, 100.0, fixes=fixes))[0] == first


def test_without_a_step_the_gain_alone_decides() -> None:
    fixes = [
        make("FX001", general="always", what_if=WhatIf.COMPILED),
        make("FX002", what_if=WhatIf.BF16),
    ]
    answers = answer(WhatIf.COMPILED, 50.0) | answer(WhatIf.BF16, 5.0)
    assert ids(match([finding("BN101", None, time_ms=90.0)], {}, answers, None, fixes=fixes))[0] == "FX001"


def test_a_loop_with_a_price_is_named_and_one_without_is_general() -> None:
    fixes = [
        make("FX001", "BN201", general="unpriced", what_if=WhatIf.LOOP_GONE),
        make("FX002", what_if=WhatIf.GC_FREE),
    ]
    found = [finding("BN101", 30.0), finding("BN201", 29.0)]
    priced = answer(WhatIf.GC_FREE, 16.0) | answer(WhatIf.LOOP_GONE, 20.0)
    assert ids(match(found, {}, priced, 100.0, fixes=fixes)) == ["FX001", "FX002"]
    assert ids(match(found, {}, answer(WhatIf.GC_FREE, 16.0), 100.0, fixes=fixes)) == ["FX002", "FX001"]


def test_a_note_never_carries_a_prediction() -> None:
    fix = make("FX001", note=True, what_if=WhatIf.INPUT_READY)
    (suggestion,) = match([finding("BN101")], {}, answer(WhatIf.INPUT_READY, 40.0), 100.0, fixes=[fix])
    assert suggestion.note
    assert suggestion.predicted_ms is None


def test_code_is_filled_with_the_figures_of_the_run() -> None:
    context = {
        "loader.present": True,
        "loader.num_workers": 2,
        "loader.needed_workers": 11,
        "host.cores": 6,
        "device.kind": "cuda",
    }
    by_fix = {s.fix: s for s in match([finding("BN101", 50.0)], context, {}, 100.0)}
    assert "num_workers=6" in by_fix["FX101"].code
    assert by_fix["FX101"].options == {"num_workers": 6}
    unknown = {s.fix: s for s in match([finding("BN101", 50.0)], {"loader.present": True}, {}, 100.0)}
    assert unknown["FX101"].options == {"num_workers": 4}, "the default, which its code says as well"
    assert "FX111" not in by_fix, "there is a DataLoader"


def test_an_fp32_run_on_hopper_is_told_of_tf32_and_bf16_but_not_of_fp16() -> None:
    context = {
        "device.kind": "cuda",
        "device.capability": 9.0,
        "matmul.precision": "highest",
        "autocast.dtype": "none",
        "kernels.bf16_share": 0.0,
        "cudnn.allow_tf32": True,
    }
    found = ids(match([finding("BN302"), finding("BN303")], context, {}, 100.0))
    assert {"FX301", "FX303"} <= set(found)
    assert not {"FX302", "FX304", "FX305"} & set(found)
    already = context | {"matmul.precision": "high", "autocast.dtype": "bfloat16", "kernels.bf16_share": 0.6}
    assert not {"FX301", "FX303"} & set(ids(match([finding("BN302"), finding("BN303")], already, {}, 100.0)))


def test_what_needs_evidence_of_varying_shapes_is_silent_without_it() -> None:
    context = {"device.kind": "cuda", "allocator.expandable_segments": False, "allocator.backend": "native"}
    answers = answer(WhatIf.ALLOCATOR_FREE, 30.0)
    assert ids(match([finding("BN201", 30.0)], context, answers, 100.0)) == ["FX201"]
    varying = context | {"step.varying_shapes": True}
    assert {"FX201", "FX202", "FX203"} <= set(ids(match([finding("BN201", 30.0)], varying, answers, 100.0)))


@pytest.mark.parametrize(
    ("fits", "moved", "found"),
    [(True, True, True), (None, True, True), (False, True, False), (True, False, False)],
)
def test_activations_are_kept_where_some_are_moved_and_the_device_has_room(
    fits: bool | None, moved: bool, found: bool
) -> None:
    context = {"device.kind": "cuda", "copies.h2d_ms": 5.0}
    context |= {} if fits is None else {"copies.offloaded_fits": fits}
    answers = answer(WhatIf.COPIES_GONE, 20.0, bound=True)
    answers |= answer(WhatIf.OFFLOADS_GONE, 30.0) if moved else {}
    first, *others = match([finding("BN702", 20.0)], context, answers, 100.0)
    assert (first.fix == "FX341", "FX341" in ids(others)) == (found, False)
    if found:
        assert (first.predicted_ms, first.bound) == (70.0, False)
        assert first.unknown == (() if fits else ("whether the device has room for what is moved",))


def test_graph_breaks_go_before_cuda_graphs() -> None:
    context = {
        "device.kind": "cuda",
        "work.static_shapes": True,
        "compile.used": True,
        "compile.mode": "default",
    }
    findings = [finding("BN401", 20.0), finding("BN501", 40.0)]
    assert "FX412" in ids(match(findings, context | {"compile.breaks": 0}, {}, 100.0))
    assert "FX412" not in ids(match(findings, context | {"compile.breaks": 2}, {}, 100.0))


def test_a_cpu_run_is_never_offered_what_needs_a_gpu() -> None:
    context = {"device.kind": "cpu", "loader.present": True, "compile.used": False}
    every = [
        finding(code)
        for code in ("BN101", "BN203", "BN302", "BN303", "BN501", "BN502", "BN601", "BN701", "BN903")
    ]
    found = set(ids(match(every, context, {}, 100.0)))
    assert {"FX205", "FX414", "FX506"} <= found
    assert not found & {"FX103", "FX301", "FX303", "FX412", "FX502", "FX508", "FX201"}


def test_risk_and_how_are_carried_over_whole() -> None:
    fix = make(
        "FX001", risk=Risk.CHANGES_NUMERICS, may_break="Rounding.", code="x = 1", undo="Undo.", verify="See."
    )
    (s,) = match([finding("BN101")], {}, {}, None, fixes=[fix])
    assert (s.risk, s.may_break, s.code, s.undo, s.verify) == (
        Risk.CHANGES_NUMERICS,
        "Rounding.",
        "x = 1",
        "Undo.",
        "See.",
    )


def test_search_finds_every_word_and_puts_titles_first() -> None:
    found = search("tf32")
    assert {"FX301", "FX302"} <= {fix.id for fix in found}
    assert "TF32" in found[0].title
    assert search("tf32 convolutions")[0].id == "FX302"
    assert search("nothing-like-this") == ()
    assert search("") == ()


def test_by_code_takes_either_case() -> None:
    assert by_code("bn101") == by_code("BN101")
    assert {fix.id for fix in by_code("BN203")} == {fix.id for fix in FIXES if "BN203" in fix.addresses}


def broken(kind: str, cost_ms: float | None, line: int) -> BreakRow:
    return BreakRow(reason=kind, kind=kind, cost_ms=cost_ms, site=SourceSite(file="model.py", line=line))


def suggested_for(breaks: list[BreakRow]) -> dict[str, Suggestion]:
    kinds = sorted({row.kind for row in breaks})
    answer = WhatIfResult(question=WhatIf.SEAMS_GONE, step_ms=60.0, saves_ms=40.0, basis="replay")
    found = match(
        [Finding(code="BN401", title="breaks", cost_ms=40.0)],
        {"compile.used": True, "compile.breaks": len(breaks), "compile.break_kinds": kinds},
        {WhatIf.SEAMS_GONE: answer},
        100.0,
        breaks=breaks,
    )
    return {suggestion.fix: suggestion for suggestion in found}


def test_a_fix_for_one_kind_of_break_is_predicted_from_those_breaks_alone() -> None:
    found = suggested_for([broken("disabled", 30.0, 7), broken("print", 8.0, 12), broken("print", 2.0, 40)])
    assert (found["FX417"].saves_ms, found["FX417"].predicted_ms) == (30.0, 70.0)
    assert (found["FX403"].saves_ms, found["FX403"].predicted_ms) == (10.0, 90.0)
    assert [found[fix].site.line for fix in ("FX417", "FX403")] == [7, 12]  # type: ignore[union-attr]
    assert "2 of 3 breaks" in found["FX403"].basis


def test_a_fix_for_the_only_kind_of_break_takes_them_all() -> None:
    found = suggested_for([broken("print", 25.0, 7), broken("print", 15.0, 12)])
    assert (found["FX403"].saves_ms, found["FX403"].predicted_ms) == (40.0, 60.0)


def test_breaks_without_a_price_of_their_own_leave_the_price_of_all() -> None:
    found = suggested_for([broken("disabled", None, 7), broken("print", None, 12)])
    assert found["FX403"].predicted_ms == 60.0


def test_the_bound_of_a_loop_weighs_more_than_other_bounds() -> None:
    def order(saves: float) -> list[str]:
        loop = WhatIfResult(
            question=WhatIf.LOOP_GONE, step_ms=100.0 - saves, saves_ms=saves, basis="", bound=True
        )
        fused = WhatIfResult(question=WhatIf.OPTIMIZER_FUSED, step_ms=76.0, saves_ms=24.0, basis="")
        findings = [
            Finding(code="BN503", title="loop", cost_ms=saves),
            Finding(code="BN502", title="", cost_ms=24.0),
        ]
        known = {"loop.carried": False, "optimizer.can_fuse": True, "optimizer.flavour": "for-loop"}
        return ids(match(findings, known, {WhatIf.LOOP_GONE: loop, WhatIf.OPTIMIZER_FUSED: fused}, 100.0))

    assert [fix for fix in order(43.0) if fix in ("FX510", "FX311")] == ["FX510", "FX311"]
    assert [fix for fix in order(30.0) if fix in ("FX510", "FX311")] == ["FX311", "FX510"]


def extra(call: str, callee: str, cost: float = 60.0) -> Finding:
    return finding(
        "BN904",
        cost,
        predicted_step_ms=100.0 - cost,
        call=call,
        callee=callee,
        sites=(SourceSite(file="a.py", line=7),),
    )


@pytest.mark.parametrize(
    ("call", "callee", "fix"),
    [
        ("`gc.collect()`", "gc.collect", "FX518"),
        ("`test()`", "evaluation", "FX511"),
        ("`json.dumps()`", "json.dumps", "FX504"),
        ("`update_average()`", "", "FX504"),
    ],
)
def test_extra_work_is_answered_by_the_fix_made_for_its_call_and_named_by_it(
    call: str, callee: str, fix: str
) -> None:
    context = {"host.rare": "evaluation" if callee == "evaluation" else "none", "gc.ms_per_step": 5.0}
    everything = answer(WhatIf.HOST_WORK_GONE, 10.0)
    found = [extra(call, callee), finding("BN901", 90.0)]
    suggestions = {s.fix: s for s in match(found, context, everything, 100.0)}
    named = suggestions[fix]
    assert call in named.title
    assert named.predicted_ms == pytest.approx(40.0), "its own price, not that of all host work"
    assert named.site is not None
    assert named.site.line == 7
    for other in {"FX504", "FX505", "FX511", "FX518"} & set(suggestions) - {fix}:
        assert call not in suggestions[other].title


@pytest.mark.parametrize(("kind", "expected"), [("cpu", {"FX516"}), ("gpu", set())])
def test_clipping_is_made_cheaper_and_not_taken_out_of_the_step(kind: str, expected: set[str]) -> None:
    """The word language model of pytorch/examples was told to take it out, first of all."""
    clips = extra("`clip_grad_norm_()`", "torch.nn.utils.clip_grad.clip_grad_norm_")
    everything = answer(WhatIf.HOST_WORK_GONE, 10.0)
    suggestions = match([clips], {"device.kind": kind, "host.rare": "none"}, everything, 100.0)
    assert {s.fix for s in suggestions} == expected
    assert all(s.bound and s.predicted_ms == pytest.approx(40.0) for s in suggestions)


def test_of_several_lines_a_fix_stands_at_the_one_that_it_names() -> None:
    other = msgspec.structs.replace(extra("`look()`", "", 20.0), sites=(SourceSite(file="a.py", line=99),))
    (named, *_) = match([extra("`write()`", "", 60.0), other], {}, {}, 100.0)
    assert (named.fix, named.site) == ("FX504", SourceSite(file="a.py", line=7))
    assert "`write()`" in named.title


@pytest.mark.parametrize(
    ("owner", "line"), [("transformers", "dataloader_num_workers=3,"), ("", "num_workers=3,")]
)
def test_a_fix_speaks_of_the_trainer_that_owns_the_loop(owner: str, line: str) -> None:
    context = {"loop.owner": owner, "loader.needed_workers": 3, "host.cores": 8}
    code = filled_code(by_id("FX101"), context)
    assert f"    {line}" in code.splitlines()
    assert ("TrainingArguments" in code) is bool(owner)
