"""The outcome, the sentence that says it, and the annotations."""

from __future__ import annotations

import msgspec
import pytest
from unit.compare.sides import baseline, budget, counters, runs, side, sync

from torch_bottleneck.compare.decide import compare_sides
from torch_bottleneck.model.compare import Drift
from torch_bottleneck.model.gate import GateSettings

NEW = sync(48, "log(loss.item())", file="model.py", function="training_step")
OLD = sync(20, "print(loss.item())")
GREW = {"counters": counters({"syncs": 2}, syncs=(OLD, NEW))}
DRIFT = Drift(what="time", title="step time", points=20, growth=0.12, p_value=0.001)


def test_the_same_thing_twice_is_ok():
    found = compare_sides(side(), side())
    assert found.outcome == "ok"
    assert "undecided" in found.headline, "one run a side says nothing about times, and that is said"
    assert found.annotations == ()


def test_a_new_sync_is_a_regression_with_its_line_in_the_headline_and_an_annotation_there():
    found = compare_sides(side(), side(**GREW))
    assert found.outcome == "regression"
    assert found.headline == (
        "Regression: synchronisations 1 → 2 per step: new `log(loss.item())` at model.py:48."
    )
    note = found.annotations[0]
    assert note.site is not None
    assert (note.level, note.site.file, note.site.line, note.key) == ("error", "model.py", 48, "syncs")


def test_a_slower_step_in_turns_is_a_regression_with_its_budget():
    slow = {
        "runs": runs(19.1, 19.2, 19.0, 19.15),
        "budget": budget(OTHER_MATH=8.0, DISPATCH=3.2, SYNC=7.9),
    }
    found = compare_sides(side(runs=runs(10, 10.1, 9.9, 10.05)), side(**slow), interleaved=True)
    assert found.outcome == "regression"
    assert "slower" in found.headline
    assert "+7.90 ms: sync-bound (blocked in a synchronisation)" in found.reasons[0]
    assert any(note.key == "time" and note.level == "error" for note in found.annotations)


def test_a_slower_step_against_a_stored_baseline_warns():
    found = compare_sides(
        side(runs=runs(10, 10.1, 9.9, 10.05)), side(runs=runs(19.1, 19.2, 19.0, 19.15)), interleaved=False
    )
    assert found.outcome == "ok"
    assert [(note.level, note.key) for note in found.annotations] == [("warning", "time")]


def test_undecided_times_make_it_undecided_only_where_they_are_gated():
    noisy = {"runs": runs(10, 14, 8, 12)}
    assert compare_sides(side(**noisy), side(**noisy), interleaved=True).outcome == "ok", "the very same"
    other = {"runs": runs(13, 9, 12, 11)}
    assert compare_sides(side(**noisy), side(**other), interleaved=True).outcome == "undecided"
    told = compare_sides(
        side(**noisy), side(**other), interleaved=True, settings=GateSettings(times="report")
    )
    assert told.outcome == "ok"


def test_a_counter_lost_in_head_makes_it_undecided():
    without = counters()
    del without.values["syncs"]
    found = compare_sides(side(), side(counters=without))
    assert found.outcome == "undecided"
    assert "not measured in head" in found.headline


def test_incomparable_sides_are_refused_with_the_option_that_overrides():
    machine = msgspec.structs.replace(baseline().machine, torch="2.12.0")
    found = compare_sides(side(), side(machine=machine, **GREW))
    assert found.outcome == "incomparable"
    assert "2.13.0" in found.headline and "2.12.0" in found.headline
    assert "--allow torch" in found.reasons[0]
    assert found.counters == ()
    allowed = compare_sides(side(), side(machine=machine), settings=GateSettings(allow=("torch",)))
    assert allowed.outcome == "ok"
    assert any("Compared despite" in note for note in allowed.notes)


def test_drift_is_a_regression_though_nothing_else_moved():
    found = compare_sides(side(), side(), drifts=(DRIFT,))
    assert found.outcome == "regression"
    assert "12.0 % over the last 20 runs" in found.headline


def test_a_regression_outweighs_what_is_undecided():
    values = dict(GREW["counters"].values)
    del values["operators"]
    both = msgspec.structs.replace(GREW["counters"], values=values)
    assert compare_sides(side(), side(counters=both)).outcome == "regression"


@pytest.mark.parametrize("name", ["syncs", "graph_breaks", "recompiles"])
def test_a_counter_that_is_not_gated_never_decides(name):
    settings = msgspec.convert({"counters": {name: {"gate": False}}}, GateSettings)
    head = side(counters=counters({name: 9}))
    assert compare_sides(side(), head).outcome == "regression"
    assert compare_sides(side(), head, settings=settings).outcome == "ok"


def test_nothing_measured_at_all_is_undecided():
    bare = {"counters": None, "runs": ()}
    assert compare_sides(side(**bare), side(**bare)).outcome == "undecided"


def test_why_times_are_not_compared_is_noted_unless_the_baseline_never_had_any():
    other = msgspec.structs.replace(baseline().machine, cpu="Xeon", device_name="Xeon")
    found = compare_sides(side(), side(machine=other))
    assert any("machines differ" in note for note in found.notes)
    assert not any("Step time" in note for note in compare_sides(side(runs=()), side()).notes)
