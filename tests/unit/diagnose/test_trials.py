"""What was measured in the run decides: the order of suggestions, and which of them do not help."""

from __future__ import annotations

import msgspec
import pytest

from torch_bottleneck.diagnose.trials import by_measurement, with_measured_pair
from torch_bottleneck.model.diagnosis import Combination
from torch_bottleneck.model.fix import MeasuredHere, Suggestion
from torch_bottleneck.model.run import SourceSite
from torch_bottleneck.model.verify import CompilerLook, TriedFix, TriedFixes

LOSSES: list[float | None] = [2.0, 1.5, 1.2]


def suggestion(
    fix: str, predicted_ms: float | None, *, bound: bool = False, note: bool = False
) -> Suggestion:
    saves_ms = 100.0 - predicted_ms if predicted_ms is not None else None
    return Suggestion(
        fix=fix,
        title=fix,
        finding="BN501",
        predicted_ms=predicted_ms,
        saves_ms=saves_ms,
        bound=bound,
        can_try=True,
        note=note,
    )


def measured(fix: str, speedup: float, losses: list[float | None] | None = None) -> TriedFix:
    without = [100.0, 101.0, 99.0, 100.5]
    return TriedFix(
        fix=fix,
        state="measured",
        without_ms=without,
        with_ms=[ms / speedup for ms in without],
        losses=LOSSES if losses is None else losses,
        losses_without=LOSSES,
    )


def tried(*rows: TriedFix, again: list[float | None] | None = None) -> TriedFixes:
    return TriedFixes(rows=list(rows), losses=LOSSES, losses_again=LOSSES if again is None else again)


def order(suggestions: list[Suggestion], found: TriedFixes) -> list[str]:
    return [s.fix for s in by_measurement(suggestions, found, None, 100.0)]


def test_what_is_not_decided_promises_no_more_than_was_measured() -> None:
    given = [suggestion("FX414", 50.0), suggestion("FX310", 90.0)]
    once = TriedFix(fix="FX414", state="measured", without_ms=[100.0], with_ms=[67.0])
    wide = TriedFix(fix="FX414", state="measured", without_ms=[100.0, 100.0], with_ms=[50.0, 80.0])
    sure = measured("FX310", 1.7)
    assert order(given, tried(sure)) == ["FX414", "FX310"]
    assert order(given, tried(sure, once)) == ["FX310", "FX414"]
    assert order(given, tried(sure, wide)) == ["FX414", "FX310"], "it may still be as much"


def test_what_was_seen_to_bring_next_to_nothing_comes_after_what_has_no_price() -> None:
    given = [suggestion("FX311", 90.0), suggestion("FX510", None), suggestion("FX414", 99.0)]
    pairs = [(100.0, 97.0), (97.0, 99.0), (100.0, 103.0), (103.0, 98.0), (100.0, 101.0), (99.0, 102.0)]
    close = TriedFix(
        fix="FX311", state="measured", without_ms=[a for a, _ in pairs], with_ms=[b for _, b in pairs]
    )
    assert by_measurement(given[:1], tried(close), None, 100.0)[0].helps is None
    assert order(given, tried(close))[0] == "FX510"


def test_what_a_trial_found_nothing_to_change_for_is_a_bound() -> None:
    given = [suggestion("FX521", 40.0), suggestion("FX524", 35.0, bound=True), suggestion("FX310", 90.0)]
    idle = TriedFix(fix="FX521", state="not tried", reason="no line copied the same numbers", idle=True)
    late = TriedFix(fix="FX521", state="not tried", reason="the time for trials was used up")
    sure = measured("FX310", 1.1)
    assert order(given, tried(sure, late))[:2] == ["FX521", "FX524"]
    assert order(given, tried(sure, idle))[:2] == ["FX524", "FX521"]
    found = {s.fix: s for s in by_measurement(given, tried(sure, idle), None, 100.0)}
    assert (found["FX521"].bound, found["FX310"].bound) == (True, False)


def test_what_trials_do_not_hold_stays_in_the_step() -> None:
    """Of 100 ms 40 are an evaluation every so many steps: twice as fast without it, 70 ms remain."""
    given = [suggestion("FX311", 50.0)]
    old = measured("FX311", 2.0)
    found = tried(msgspec.structs.replace(old, evaluates=False))

    def here(rows: TriedFixes, evaluation_ms: float) -> MeasuredHere:
        (one,) = by_measurement(given, rows, None, 100.0, evaluation_ms=evaluation_ms)
        assert one.measured is not None
        return one.measured

    without, apart = here(found, 0.0), here(found, 40.0)
    assert (without.speedup, without.step_ms) == (pytest.approx(2.0), pytest.approx(50.0))
    assert (apart.speedup, apart.step_ms) == (pytest.approx(100 / 70), pytest.approx(70.0))
    assert apart.low is not None and apart.high is not None and without.high is not None
    assert apart.low <= 100 / 70 <= apart.high < without.high
    of_passes = tried(msgspec.structs.replace(old, evaluates=True))
    assert here(of_passes, 40.0).step_ms == pytest.approx(50.0), "there it is part of each block"
    assert here(tried(old), 40.0).step_ms == pytest.approx(50.0), "of an older file it is not known"


def test_without_trials_nothing_changes() -> None:
    given = (suggestion("FX414", 50.0), suggestion("FX311", 80.0))
    assert by_measurement(given, None, None, 100.0) == given
    assert by_measurement(given, TriedFixes(), None, 100.0) == given


def test_the_measurement_ranks() -> None:
    given = [suggestion("FX414", 50.0), suggestion("FX311", 80.0), suggestion("FX301", 90.0)]
    found = tried(measured("FX414", 1.1), measured("FX311", 1.05), measured("FX301", 1.5))
    assert order(given, found) == ["FX301", "FX414", "FX311"]


def test_behind_one_that_was_tried_other_ways_to_its_gain_come_after_all_other_gains() -> None:
    given = [suggestion(fix, 70.0, bound=True) for fix in ("FX205", "FX207")] + [suggestion("FX360", 90.0)]
    assert order(given, tried(measured("FX505", 1.01))) == ["FX205", "FX207", "FX360"]
    assert order(given, tried(measured("FX205", 1.2))) == ["FX205", "FX360", "FX207"]


def test_behind_what_was_left_out_and_may_have_to_stay_comes_how_to_do_it_in_less_time() -> None:
    left_out = msgspec.structs.replace(suggestion("FX504", 70.0), leaves_out=True)
    given = [left_out, suggestion("FX532", 70.0, bound=True), suggestion("FX360", 95.0)]
    assert order(given, tried(measured("FX504", 1.4))) == ["FX504", "FX532", "FX360"]


@pytest.mark.parametrize(
    "row",
    [
        measured("FX414", 0.86),
        measured("FX414", 1.0),
        TriedFix(fix="FX414", state="failed", reason="RuntimeError: no"),
        measured("FX414", 1.5, [2.0, 1.9, 1.8]),
        measured("FX414", 1.5, [2.0, None, None]),
    ],
)
def test_what_does_not_help_here_comes_last_and_says_so(row: TriedFix) -> None:
    given = [suggestion("FX414", 50.0), suggestion("FX311", 80.0), suggestion("FX505", None)]
    last = by_measurement(given, tried(row), None, 100.0)[-1]
    assert (last.fix, last.helps) == ("FX414", False)


@pytest.mark.parametrize(
    "row",
    [
        TriedFix(fix="FX414", state="not tried", reason="time"),
        TriedFix(fix="FX414", state="measured", without_ms=[100.0, 60.0], with_ms=[60.0, 100.0]),
    ],
)
def test_what_was_not_decided_keeps_its_place(row: TriedFix) -> None:
    given = [suggestion("FX414", 50.0), suggestion("FX311", 80.0)]
    found = by_measurement(given, tried(row, measured("FX311", 1.05)), None, 100.0)
    assert [s.fix for s in found] == ["FX414", "FX311"]
    assert found[0].helps is None


def test_a_proven_gain_comes_before_a_bound_that_counts_for_less() -> None:
    given = [suggestion("FX414", 50.0, bound=True), suggestion("FX311", 80.0)]
    assert order(given, tried(measured("FX311", 1.9))) == ["FX311", "FX414"]
    assert order(given, tried(measured("FX311", 1.2))) == ["FX414", "FX311"]


def test_a_proven_gain_comes_before_a_promise_that_its_interval_cannot_be_told_from() -> None:
    pairs = [(100.0, 50.0), (104.0, 51.0), (96.0, 49.0), (101.0, 48.0)]
    proven = TriedFix(
        fix="FX311", state="measured", without_ms=[a for a, _ in pairs], with_ms=[b for _, b in pairs]
    )
    given = [suggestion("FX504", 49.5), suggestion("FX303", 80.0), suggestion("FX311", 60.0)]
    assert order(given, tried(proven)) == ["FX311", "FX504", "FX303"]
    assert order([suggestion("FX504", 30.0), *given[1:]], tried(proven)) == ["FX504", "FX311", "FX303"]


def test_the_step_with_the_fix_is_the_true_step_over_the_speed_up() -> None:
    found = by_measurement([suggestion("FX311", 80.0)], tried(measured("FX311", 1.25)), None, 50.0)
    here = found[0].measured
    assert here is not None and here.step_ms == pytest.approx(40.0) and here.pairs == 4
    assert here.low is not None and here.high is not None and here.low <= 1.25 <= here.high


@pytest.mark.parametrize(("near", "shown"), [(30, 38), (38, 38), (40, 40), (None, 38)])
def test_a_fix_has_the_line_at_which_it_acted(near: int | None, shown: int) -> None:
    acted = [SourceSite(file="net.py", line=line, function="forward") for line in (38, 40)]
    row = msgspec.structs.replace(measured("FX339", 1.5), sites=acted)
    site = SourceSite(file="net.py", line=near, function="Net.forward") if near else None
    given = msgspec.structs.replace(suggestion("FX339", 50.0), site=site)
    (found,) = by_measurement([given], tried(row), None, 100.0)
    assert found.site is not None
    assert found.site.line == shown


def test_losses_are_the_same_close_changed_or_not_to_be_compared() -> None:
    def loss(fix: str, losses: list[float | None], again: list[float | None] | None = None) -> str:
        found = by_measurement(
            [suggestion(fix, 80.0)], tried(measured(fix, 1.5, losses), again=again), None, 1.0
        )
        assert found[0].measured is not None
        return found[0].measured.loss

    assert loss("FX311", [2.0, 1.5, 1.2]) == "same"
    assert loss("FX303", [2.01, 1.51, 1.21]) == "close", "bf16 may differ by its rounding"
    assert loss("FX505", [2.01, 1.51, 1.21]) == "changed", "the collector has no say in the loss"
    assert loss("FX505", []) == "not-compared"
    assert loss("FX505", [2.0, 1.5, 1.2], [3.0, 2.0, 1.0]) == "not-compared", "it does not repeat itself"


def looked(share: float | None, *, breaks: int = 1) -> TriedFix:
    look = CompilerLook(graphs=1, breaks=breaks, share=share, outside=["LSTM"] if breaks else [])
    return TriedFix(fix="FX414", state="not tried", reason="time", look=look)


def test_a_promise_of_compiling_is_bounded_by_what_dynamo_captures() -> None:
    given = [suggestion("FX414", 50.0), suggestion("FX311", 80.0)]
    found = by_measurement(given, tried(looked(0.2)), None, 100.0)
    assert [s.fix for s in found] == ["FX311", "FX414"]
    bounded = found[1]
    assert bounded.predicted_ms == pytest.approx(90.0) and bounded.saves_ms == pytest.approx(10.0)
    assert bounded.bound and "LSTM stays outside" in bounded.basis


@pytest.mark.parametrize("row", [looked(None), looked(0.5, breaks=0)])
def test_a_model_in_one_graph_keeps_its_promise(row: TriedFix) -> None:
    given = suggestion("FX414", 50.0)
    (found,) = by_measurement([given], tried(row), None, 100.0)
    assert (found.predicted_ms, found.bound) == (50.0, False)


def test_a_script_whose_losses_drift_is_not_judged_by_them() -> None:
    row = TriedFix(
        fix="FX505",
        state="measured",
        without_ms=[100.0, 101.0, 99.0],
        with_ms=[50.0, 50.5, 49.5],
        losses=LOSSES,
        losses_without=[2.4, 1.9, 1.7],
    )
    found = by_measurement([suggestion("FX505", 80.0)], tried(row), None, 100.0)[0]
    assert found.measured is not None and found.measured.loss == "not-compared" and found.helps


@pytest.mark.parametrize("fix", ["FX414", "FX504"])
def test_what_compiles_or_is_left_out_may_draw_other_random_numbers(fix: str) -> None:
    found = TriedFixes(
        rows=[measured(fix, 1.5, [2.02, 1.52, 1.22]), measured("FX505", 1.5, [2.02, 1.52, 1.22])],
        losses=LOSSES,
        losses_again=LOSSES,
        losses_otherwise=[2.05, 1.55, 1.25],
    )
    given = [suggestion(fix, 50.0), suggestion("FX505", 50.0)]
    said = {s.fix: s.measured.loss for s in by_measurement(given, found, None, 100.0) if s.measured}
    assert said == {fix: "close", "FX505": "changed"}


def test_work_that_cannot_be_left_out_in_a_trial_may_still_be_done_less_often() -> None:
    given = [suggestion("FX504", 50.0), suggestion("FX311", 80.0)]
    failed = TriedFix(fix="FX504", state="failed", reason="KeyError: 'seen'")
    first = by_measurement(given, tried(failed, measured("FX311", 1.05)), None, 100.0)[0]
    assert (first.fix, first.helps) == ("FX504", None)
    assert first.measured is not None
    assert first.measured.note == "KeyError: 'seen'"


def test_the_order_of_trying_is_by_promise_then_other_ways_to_it_and_what_compiles_after() -> None:
    from types import SimpleNamespace

    from torch_bottleneck.diagnose.trials import request_of
    from torch_bottleneck.model.diagnosis import StepSummary

    given = [
        suggestion("FX414", 50.0),
        suggestion("FX104", 99.5),
        suggestion("FX505", 90.0),
        suggestion("FX501", 90.0),
        suggestion("FX313", None),
        suggestion("FX316", None, note=True),
    ]
    diagnosis = SimpleNamespace(
        suggestions=given,
        applicable=[suggestion("FX412", 60.0), suggestion("FX206", None), suggestion("FX311", 60.0)],
        step=StepSummary(true_ms=100.0),
    )
    asked = request_of(diagnosis, 9.0)  # type: ignore[arg-type]
    assert [wish.wish.fix for wish in asked.wishes] == ["FX505", "FX313", "FX501", "FX414", "FX104", "FX412"]
    assert [wish.instead_of for wish in asked.wishes] == ["", "", "", "", "", "FX414"]
    assert asked.wishes[0].promises == pytest.approx(0.1)


def test_the_rival_of_a_fix_that_brings_nothing_is_suggested_in_its_place_if_it_helps() -> None:
    given, other = [suggestion("FX412", 50.0), suggestion("FX311", 80.0)], suggestion("FX414", 60.0)
    other = msgspec.structs.replace(other, finding="")
    for speedup, expected in ((1.5, ["FX414", "FX311", "FX412"]), (1.0, ["FX311", "FX412"])):
        found = by_measurement(
            given, tried(measured("FX412", 0.9), measured("FX414", speedup)), None, 100.0, others=[other]
        )
        assert [s.fix for s in found] == expected
        assert {s.finding for s in found} == {"BN501"}


GRAPHS_ALONE = msgspec.structs.replace(measured("FX412", 1.0), tried_as="by CUDA graphs alone")


@pytest.mark.parametrize(
    ("graphs", "look", "expected"),
    [
        (GRAPHS_ALONE, None, ["FX414", "FX311", "FX412"]),
        (measured("FX412", 1.0), None, ["FX311", "FX412"]),
        (msgspec.structs.replace(measured("FX412", 1.2), tried_as="alone"), None, ["FX311", "FX412"]),
        (GRAPHS_ALONE, CompilerLook(graphs=1, breaks=1, share=0.01), ["FX311", "FX412"]),
        (TriedFix(fix="FX412", state="failed", reason="overwritten"), None, ["FX311", "FX412"]),
    ],
)
def test_the_rival_of_a_fix_that_brings_nothing_is_suggested_in_its_place_with_its_promise(
    graphs: TriedFix, look: CompilerLook | None, expected: list[str]
) -> None:
    """Graphs alone may bring nothing where the generated code does, unless dynamo captures none of it."""
    given, other = [suggestion("FX412", 50.0), suggestion("FX311", 80.0)], suggestion("FX414", 60.0)
    row = msgspec.structs.replace(graphs, look=look)
    late = TriedFix(fix="FX414", state="not tried", reason="it did not end in time (--trial-seconds)")
    found = by_measurement(given, tried(row, late), None, 100.0, others=[other])
    assert [s.fix for s in found] == expected


def test_what_a_real_script_was_promised_and_measured_not_to_get_comes_last() -> None:
    """CUDA graphs for a script with new gradients in each step: at best 2.2x promised, 0.08x measured."""
    from pathlib import Path

    from torch_bottleneck.diagnose import diagnose_paths

    folder = Path(__file__).parents[2] / "recorded" / "trials-wlm-transformer-h200"
    suggestions = diagnose_paths([folder]).suggestions
    graphs = suggestions[-1]
    assert graphs.fix == "FX412" and graphs.bound and graphs.helps is False
    assert graphs.measured is not None and graphs.measured.verdict == "slower"


@pytest.mark.parametrize(
    ("alone", "together", "named"),
    [
        (1.5, 2.0, True),
        # The other takes away what it is about.
        (3.0, 1.8, False),
    ],
)
def test_a_pair_is_named_where_both_are_faster_than_either(
    alone: float, together: float, named: bool
) -> None:
    pair = msgspec.structs.replace(measured("FX359", together), beside="FX303")
    found = tried(measured("FX359", alone), measured("FX303", 1.2), pair)
    predicted = Combination(fixes=("FX359", "FX303"), predicted_ms=20.0)
    shown = with_measured_pair(predicted, found, None, 100.0)
    assert (shown is not None) == named
    if shown is not None:
        assert shown.measured is not None
        assert shown.predicted_ms == pytest.approx(100.0 / together, rel=0.05)
    other = Combination(fixes=("FX359", "FX414"), predicted_ms=20.0)
    assert (with_measured_pair(other, found, None, 100.0) == other) is not named
