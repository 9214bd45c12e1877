"""What the Diagnosis tab shows of several ranks."""

from __future__ import annotations

from recorded.diagnosed import diagnosis_of

from torch_bottleneck.reporters.html.fragment import render_fragment
from torch_bottleneck.reporters.rows.groups import group_lines
from torch_bottleneck.review.page import make_page


def test_the_tab_and_a_cell_say_who_is_late_and_why() -> None:
    diagnosis = diagnosis_of("ddp-straggler-h200")
    page = make_page(diagnosis, traces=(), places={})
    assert diagnosis.fleet is not None
    (late,) = diagnosis.fleet.stragglers
    (told,) = page.late
    assert told[0].startswith(f"rank {late.ranks[0]}")
    assert all(told)
    assert {row["rank"] for row in page.ranks} == {str(row.rank) for row in diagnosis.ranks}
    cell = render_fragment(diagnosis, place="run")
    assert told[0] in cell
    assert page.groups == tuple(group_lines(diagnosis)) != ()
    assert all(text in cell for text in page.groups)


def test_one_rank_has_no_ranks() -> None:
    page = make_page(diagnosis_of("example-sync-bound"), traces=(), places={})
    assert (page.late, page.ranks, page.groups) == ((), (), ())
