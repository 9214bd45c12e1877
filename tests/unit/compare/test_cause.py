"""Where the growth comes from: lines that are new, not lines that moved."""

from __future__ import annotations

from unit.compare.sides import READ, baseline, broken, budget, counters, site, sync

from torch_bottleneck.compare.cause import (
    budget_changes,
    finding_changes,
    name_changes,
    reasons_by_counter,
)
from torch_bottleneck.compare.comparable import changed_settings
from torch_bottleneck.model.baseline import FindingKey
from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.counters import SyncSite

OLD = sync(20, "print(loss.item())")
NEW = sync(48, "log(loss.item())", file="model.py", function="training_step")


def syncs(*items: SyncSite):
    return baseline(counters=counters(syncs=items))


def reasons(one, other, name="syncs"):
    return [(reason.text, reason.site) for reason in reasons_by_counter(one, other).get(name, ())]


def test_a_new_read_is_named_with_its_line():
    assert reasons(syncs(OLD), syncs(OLD, NEW)) == [("new `log(loss.item())`", NEW.site)]


def test_a_line_that_moved_is_not_new():
    moved = sync(31, "print(loss.item())")
    assert reasons(syncs(OLD), syncs(moved)) == []


def test_without_the_text_of_lines_a_functions_reads_are_told_together():
    unquoted = sync(20, "")
    assert reasons(syncs(unquoted), syncs(sync(31, "print(loss.item())"))) == []
    both = syncs(sync(31, "print(loss.item())"), sync(33, "x.item()"))
    assert [text for text, _ in reasons(syncs(unquoted), both)] == ["1 → 2 `x.item()`"]


def test_a_line_that_reads_more_often_says_how_often():
    often = sync(20, "print(loss.item())", count=6)
    assert reasons(syncs(OLD), syncs(often)) == [("1 → 6 `print(loss.item())`", OLD.site)]


def test_without_recorded_lines_the_phase_tells():
    def phases(**counts: float):
        return syncs(*(SyncSite(what=READ, count=n, phase=phase) for phase, n in counts.items()))

    found = reasons(phases(forward=1), phases(forward=1, backward=2))
    assert found == [("new read of a tensor by Python in backward (2 per step)", None)]


def test_lines_on_one_side_only_do_not_make_every_read_new():
    phase_only = SyncSite(what=READ, count=1, phase="forward")
    located = SyncSite(what=READ, count=1, phase="forward", site=site(3), code="x.item()")
    assert reasons(syncs(phase_only), syncs(located)) == []


def test_a_new_graph_break_gives_its_reason_and_line():
    one = baseline(counters=counters(breaks=(broken(5, "print", "print(x)"),)))
    other = baseline(
        counters=counters(breaks=(broken(7, "print", "print(x)"), broken(9, "Tensor.item()", "x.item()")))
    )
    assert reasons(one, other, "graph_breaks") == [("new graph break: Tensor.item()", site(9))]


def test_operators_that_grew_are_named_largest_first_and_cut_lists_are_not_taken_for_absence():
    one = counters(names={"aten::mm": 10.0, "aten::add": 4.0})
    other = counters(names={"aten::mm": 16.0, "aten::add": 5.0, "aten::exp": 2.0})
    assert [(r.name, r.base, r.head) for r in name_changes(one, other)] == [
        ("aten::mm", 10, 16),
        ("aten::exp", 0, 2),
        ("aten::add", 4, 5),
    ]
    cut = counters(names={"aten::mm": 10.0, "aten::add": 4.0}, other_names=3)
    assert "aten::exp" not in [row.name for row in name_changes(cut, other)]


def test_the_budgets_difference_is_told_line_by_line_with_what_belongs_to_it():
    one = baseline(budget=budget(OTHER_MATH=8.0, DISPATCH=2.0), counters=counters(syncs=(OLD,)))
    other = baseline(
        budget=budget(OTHER_MATH=8.0, DISPATCH=3.2, SYNC=9.1), counters=counters(syncs=(OLD, NEW))
    )
    rows = budget_changes(one, other)
    assert [row.part for row in rows] == [Part.SYNC, Part.DISPATCH]
    assert round(rows[0].delta_ms, 3) == 9.1
    assert rows[0].because == ("new `log(loss.item())` at model.py:48",)


def test_changed_loader_arguments_explain_the_input_line():
    from unit.compare.sides import workload

    from torch_bottleneck.model.work import LoaderArguments

    fewer = (LoaderArguments(cls="DataLoader", role="train", batch_size=16, num_workers=1),)
    one = baseline(budget=budget(OTHER_MATH=8.0, INPUT=1.0))
    other = baseline(budget=budget(OTHER_MATH=8.0, INPUT=5.0), workload=workload(loaders=fewer))
    row = budget_changes(one, other, changed_settings(one, other))[0]
    assert row.part is Part.INPUT
    assert row.because == ("train loader: num_workers 0 → 1",)


def test_small_changes_are_no_lines():
    one = baseline(budget=budget(OTHER_MATH=8.0, DISPATCH=2.0))
    assert budget_changes(one, baseline(budget=budget(OTHER_MATH=8.02, DISPATCH=2.01))) == ()
    assert budget_changes(one, baseline(budget=())) == ()


def finding(code: str, cost: float | None) -> FindingKey:
    return FindingKey(code=code, title=f"title of {code}", cost_ms=cost)


def test_findings_are_new_gone_dearer_or_cheaper():
    one = baseline(findings=(finding("BN301", 5.0), finding("BN501", 1.0), finding("BN101", 2.0)))
    other = baseline(findings=(finding("BN601", 9.0), finding("BN501", 3.0), finding("BN101", 2.05)))
    assert [(row.change, row.code) for row in finding_changes(one, other)] == [
        ("new", "BN601"),
        ("gone", "BN301"),
        ("dearer", "BN501"),
    ]


def test_templates_of_kernels_are_told_by_their_functor():
    def kernel(functor: str) -> str:
        return (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, "
            f"at::native::binary_internal::{functor}<float> >, std::array<char*, 2ul> >(int)"
        )

    one = baseline(counters=counters(device="gpu", names={kernel("MulFunctor"): 4.0}))
    other = baseline(counters=counters(device="gpu", names={kernel("MulFunctor"): 6.0, "nvjet_tst": 1.0}))
    assert [text for text, _ in reasons(one, other, "kernels")] == [
        "vectorized_elementwise_kernel (MulFunctor) 4 → 6",
        "nvjet_tst 0 → 1",
    ]
