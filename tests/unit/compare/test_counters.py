"""Counters: which growth fails, which passes, and when even a counter cannot be told."""

from __future__ import annotations

import pytest
from unit.compare.sides import baseline, counters, workload

from torch_bottleneck.compare.counters import compare_counters
from torch_bottleneck.model.compare import CounterRow
from torch_bottleneck.model.counters import COUNTERS, Counter
from torch_bottleneck.model.gate import CounterLimit


def compared(name: str, base, head, limits=None) -> CounterRow:
    rows = compare_counters(base, head, limits)
    return next(row for row in rows if row.name == name)


def values(name: str, one: float, other: float, limits=None) -> CounterRow:
    return compared(
        name, baseline(counters=counters({name: one})), baseline(counters=counters({name: other})), limits
    )


@pytest.mark.parametrize("name", ["syncs", "graph_breaks", "recompiles", "copies"])
def test_any_growth_of_these_fails(name):
    assert values(name, 0, 1).status == "worse"
    assert values(name, 4, 5).status == "worse"
    assert values(name, 4, 4).status == "same"
    assert values(name, 4, 3).status == "better"


@pytest.mark.parametrize(
    ("name", "base", "passes", "fails"),
    [
        ("operators", 200, 204, 205),
        ("kernels", 1000, 1020, 1021),
        ("flops", 1e9, 1.01e9, 1.0101e9),
        ("allocations", 100, 107, 108),
        ("peak_allocated_bytes", 100e6, 103e6, 104e6),
    ],
)
def test_the_others_have_a_tolerance_and_perhaps_a_slack(name, base, passes, fails):
    assert values(name, base, passes).status == "within"
    row = compared(
        name,
        baseline(counters=counters({name: base}, flops_step=36)),
        baseline(counters=counters({name: fails}, flops_step=36)),
    )
    assert row.status == "worse"
    assert row.limit is not None and passes <= row.limit < fails


def test_limits_of_the_project_win():
    assert values("operators", 200, 220, {"operators": CounterLimit(tolerance=0.1)}).status == "within"
    assert values("operators", 200, 201, {"operators": CounterLimit(tolerance=0.0)}).status == "worse"
    assert values("syncs", 1, 3, {"syncs": CounterLimit(slack=2)}).status == "within"
    assert values("syncs", 1, 9, {"syncs": CounterLimit(gate=False)}).status == "off"


def test_runs_that_disagree_leave_it_open_until_even_the_least_is_beyond_the_limit():
    base = baseline(counters=counters({"syncs": 3}))

    def varying(least: float, most: float):
        return baseline(counters=counters({"syncs": most}), unstable={"syncs": (least, most)})

    assert compared("syncs", base, varying(3, 5)).status == "unstable"
    assert "3 to 5" in compared("syncs", base, varying(3, 5)).note
    assert compared("syncs", base, varying(4, 5)).status == "worse"
    assert compared("syncs", varying(3, 5), baseline(counters=counters({"syncs": 5}))).status == "same"


def test_what_head_no_longer_measures_is_not_passed_in_silence():
    without = counters()
    del without.values["syncs"]
    without.absent["syncs"] = "no trace with whole steps"
    row = compared("syncs", baseline(), baseline(counters=without))
    assert row.status == "unknown"
    assert "no trace with whole steps" in row.note
    assert compared("syncs", baseline(counters=without), baseline()).status == "off"


def test_a_counter_that_neither_side_has_is_no_row():
    assert not any(row.name == "kernels" for row in compare_counters(baseline(), baseline()))


def test_the_longer_run_had_more_occasions_to_recompile():
    base = baseline(counters=counters({"recompiles": 2}, run_steps=20, recompile_steps=(2, 9)))
    longer = baseline(counters=counters({"recompiles": 3}, run_steps=40, recompile_steps=(2, 9, 30)))
    sooner = baseline(counters=counters({"recompiles": 3}, run_steps=40, recompile_steps=(2, 9, 12)))
    assert compared("recompiles", base, longer).status == "same"
    assert compared("recompiles", base, sooner).status == "worse"


def every_fourth(value: float, high: float) -> Counter:
    return Counter(value=value, low=value, high=high)


def test_what_happens_in_some_steps_only_shows_where_the_same_steps_were_counted():
    base = baseline()
    head = counters({"syncs": every_fourth(1, 3)})
    assert compared("syncs", base, baseline(counters=head)).status == "worse"
    assert "in some steps up to 3" in compared("syncs", base, baseline(counters=head)).note
    other = counters({"syncs": every_fourth(1, 3)}, first_step=30)
    assert compared("syncs", base, baseline(counters=other)).status == "same"


def test_other_steps_of_a_program_whose_steps_differ_leave_it_open():
    base = baseline(counters=counters({"operators": Counter(value=100, low=90, high=130)}))
    assert compared("operators", base, baseline(counters=counters({"operators": 120}))).status == "worse"
    shifted = baseline(counters=counters({"operators": 120}, first_step=31))
    assert compared("operators", base, shifted).status == "unstable"
    beyond = baseline(counters=counters({"operators": 140}, first_step=31))
    assert compared("operators", base, beyond).status == "worse"


def test_flops_of_another_step_count_only_where_all_batches_are_alike():
    base = baseline(counters=counters({"flops": 1e9}, flops_step=36))
    head = counters({"flops": 2e9}, flops_step=38)
    assert compared("flops", base, baseline(counters=head)).status == "unstable"
    alike = workload(distinct_shapes=1)
    assert compared("flops", base, baseline(counters=head, workload=alike)).status == "worse"


def test_rows_come_in_the_order_of_the_table():
    names = [row.name for row in compare_counters(baseline(), baseline())]
    assert names == [name for name in COUNTERS if name in names]
