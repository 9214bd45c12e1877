"""Which fix stands first: one of the verdict's class, unless another promises twice as much."""

from __future__ import annotations

import msgspec
import pytest

from torch_bottleneck.diagnose.choice import best_pair, known_savings, verdicts_own_first
from torch_bottleneck.model.codes import BottleneckClass, WhatIf
from torch_bottleneck.model.diagnosis import Verdict, WhatIfResult
from torch_bottleneck.model.fix import MeasuredHere, Suggestion
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.timeline.result import Timeline

INPUT = Verdict(bottleneck_class=BottleneckClass.INPUT, confidence="high", headline="input-bound")


def suggestion(fix: str, finding: str, predicted_ms: float | None, *, bound: bool = False) -> Suggestion:
    saves_ms = 100.0 - predicted_ms if predicted_ms is not None else None
    return Suggestion(
        fix=fix, title=fix, finding=finding, predicted_ms=predicted_ms, saves_ms=saves_ms, bound=bound
    )


CHEAPER = suggestion("FX107", "BN102", 60.0, bound=True)
WORKERS = suggestion("FX101", "BN101", 80.0)
COMPILE = suggestion("FX414", "BN501", 70.0)
ALL = {"BN101", "BN102", "BN501"}


def first(*suggestions: Suggestion, verdict: Verdict = INPUT) -> str:
    return verdicts_own_first(suggestions, verdict, ALL, 100.0)[0].fix


def test_a_bound_is_known_where_it_was_measured_or_is_of_what_the_script_does_and_general_fixes_never() -> (
    None
):
    malloc = suggestion("FX205", "BN203", 60.0, bound=True)
    loop = suggestion("FX510", "BN503", 60.0, bound=True)
    padding = suggestion("FX109", "BN312", 60.0, bound=True)
    unpriced = suggestion("FX506", "BN903", None)
    found = dict(known_savings((COMPILE, malloc, loop, padding, unpriced, WORKERS, CHEAPER)))
    assert found == {"BN503": 32.0, "BN312": 28.0, "BN903": 0.0, "BN101": 20.0, "BN102": 28.0}


def test_a_fix_of_the_class_stands_before_a_better_one_of_another() -> None:
    assert first(COMPILE, WORKERS) == "FX101"


@pytest.mark.parametrize(("predicted_ms", "expected"), [(59.0, "FX414"), (61.0, "FX101")])
def test_what_promises_twice_as_much_stands_first_whatever_its_class(
    predicted_ms: float, expected: str
) -> None:
    assert first(suggestion("FX414", "BN501", predicted_ms), WORKERS) == expected


def test_bounds_count_for_less_here_as_in_the_order_of_fixes() -> None:
    bound = suggestion("FX107", "BN102", 70.0, bound=True)  # 30 ms at best count for 21
    assert first(suggestion("FX414", "BN501", 57.0), bound) == "FX414"
    assert first(suggestion("FX414", "BN501", 59.0), bound) == "FX107"


def test_of_equals_the_one_made_for_the_most_specific_finding_stands_first() -> None:
    general = suggestion("FX111", "BN101", 60.0, bound=True)
    assert first(general, CHEAPER) == "FX107", "its first address is BN102"
    assert verdicts_own_first((general, CHEAPER), INPUT, {"BN101"}, 100.0)[0].fix == "FX111"


def test_a_fix_of_the_class_that_saves_next_to_nothing_does_not_stand_first() -> None:
    assert first(suggestion("FX414", "BN501", 98.0), suggestion("FX101", "BN101", 98.5)) == "FX414"
    assert first(suggestion("FX414", "BN501", 97.0), suggestion("FX101", "BN101", 97.5)) == "FX101"


def test_without_a_price_in_the_class_the_order_stays() -> None:
    assert first(COMPILE, suggestion("FX101", "BN101", None)) == "FX414"


def test_nothing_is_lost() -> None:
    ordered = verdicts_own_first((CHEAPER, WORKERS, COMPILE), INPUT, ALL, 100.0)
    assert {s.fix for s in ordered} == {"FX101", "FX107", "FX414"}


def test_what_names_a_call_stands_before_general_fixes_unless_they_save_twice_as_much() -> None:
    named = suggestion("FX504", "BN904", 60.0)
    for other, expected in ((40.0, "FX504"), (10.0, "FX101")):
        general = suggestion("FX101", "BN101", other)
        assert first(general, named) == expected


def test_beside_what_names_a_call_the_promise_of_a_general_fix_counts_half_until_it_was_tried() -> None:
    compiled = suggestion("FX414", "BN501", 20.0)
    assert first(compiled, suggestion("FX504", "BN904", 79.0)) == "FX504"
    assert first(compiled, suggestion("FX504", "BN904", 81.0)) == "FX414"
    assert first(tried(compiled, "faster", 5.0), suggestion("FX504", "BN904", 79.0)) == "FX414"


def tried(of: Suggestion, verdict: str, speedup: float) -> Suggestion:
    measured = MeasuredHere(
        verdict=verdict,  # type: ignore[arg-type]
        speedup=speedup,
        low=speedup - 0.01,
        high=speedup + 0.01,
        step_ms=100.0 / speedup,
    )
    return msgspec.structs.replace(of, measured=measured)


def test_what_was_measured_to_help_stays_first_and_what_was_not_counts_as_measured() -> None:
    assert first(tried(COMPILE, "faster", 1.3), WORKERS) == "FX414"
    assert first(COMPILE, tried(WORKERS, "undecided", 1.0)) == "FX414"
    assert first(COMPILE, tried(WORKERS, "no-difference", 1.0)) == "FX414"
    assert first(COMPILE, tried(WORKERS, "undecided", 1.2)) == "FX101"


def test_what_does_the_same_work_in_less_time_comes_before_what_leaves_it_out() -> None:
    left_out = msgspec.structs.replace(suggestion("FX504", "BN904", 60.0), leaves_out=True)
    at_once, other = suggestion("FX532", "BN904", 65.0, bound=True), suggestion("FX501", "BN801", 62.0)
    ordered = verdicts_own_first((left_out, other, at_once), INPUT, set(), 100.0)
    assert [s.fix for s in ordered] == ["FX532", "FX504", "FX501"]
    # What does other work in less time has no place of its own before it.
    small = msgspec.structs.replace(
        suggestion("FX532", "BN904", 95.0, bound=True), site=SourceSite(file="a.py", line=9)
    )
    ordered = verdicts_own_first((left_out, small), INPUT, set(), 100.0)
    assert [s.fix for s in ordered] == ["FX504", "FX532"]
    # What was tried and does not help is no other way.
    no_gain = MeasuredHere(verdict="no-difference", speedup=1.0, loss="same")
    ordered = verdicts_own_first(
        (left_out, msgspec.structs.replace(at_once, measured=no_gain)), INPUT, set(), 100.0
    )
    assert [s.fix for s in ordered] == ["FX504", "FX532"]


@pytest.mark.parametrize(("alone_ms", "together"), [(60.0, 45.0), (70.0, None)])
def test_a_price_of_a_part_has_no_pair_of_which_the_whole_was_asked(
    alone_ms: float, together: float | None
) -> None:
    def answer(question: WhatIf, step_ms: float) -> WhatIfResult:
        return WhatIfResult(question=question, step_ms=step_ms, saves_ms=100.0 - step_ms, basis="")

    timeline = Timeline(
        kind="cpu",
        true_ms=100.0,
        profiled_ms=None,
        steps=4,
        budget=(),
        what_ifs={
            WhatIf.INPUT_READY: answer(WhatIf.INPUT_READY, 60.0),
            WhatIf.OPTIMIZER_FUSED: answer(WhatIf.OPTIMIZER_FUSED, 85.0),
        },
        after={(WhatIf.INPUT_READY, WhatIf.OPTIMIZER_FUSED): 45.0},
    )
    pair = best_pair(
        (suggestion("FX107", "BN101", alone_ms), suggestion("FX311", "BN305", 85.0)), timeline, 100.0
    )
    assert (pair.predicted_ms if pair is not None else None) == together
