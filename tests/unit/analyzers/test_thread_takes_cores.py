"""Another thread that takes cores costs what the training waited for one, and no more than it used."""

from __future__ import annotations

import pytest

from torch_bottleneck.analyzers.findings.host import ThreadTakesCores
from torch_bottleneck.catalog.match import match
from torch_bottleneck.model.run import BUSY_THREAD, Run, SiteTime, SourceSite

from .facts import facts

SITE = SourceSite(file="/me/feed.py", line=41, function="put")


def run_with(used: float | None, waited: float | None) -> Run:
    other = SiteTime(site=SITE, phase="forward", count=9, share=0.9)
    busy = SiteTime(site=SITE, phase=BUSY_THREAD, count=50, share=used)
    return Run(sites=[other, busy] if used is not None else [other], core_wait_share=waited)


@pytest.mark.parametrize(("used", "waited", "costs"), [(0.2, 0.3, 20.0), (0.9, 0.25, 25.0)])
def test_it_costs_what_was_waited_for_and_no_more_than_it_used(
    used: float, waited: float, costs: float
) -> None:
    known = facts("cpu", run=run_with(used, waited))
    (found,) = ThreadTakesCores().find(known)
    assert found.cost_ms == pytest.approx(costs)
    assert found.sites == (SITE,)
    (fix,) = match([found], {}, {}, known.true_ms)
    assert (fix.fix, fix.title) == ("FX526", "Have `put()` wait, or work elsewhere")
    assert fix.predicted_ms == pytest.approx(known.true_ms - costs)
    assert not fix.bound


@pytest.mark.parametrize(
    ("kind", "used", "waited"),
    [("cpu", None, 0.3), ("cpu", 0.9, None), ("cpu", 0.9, 0.01), ("gpu", 0.9, 0.3)],
)
def test_without_a_thread_or_a_wait_that_counts_nothing_is_said(
    kind: str, used: float | None, waited: float | None
) -> None:
    assert not list(ThreadTakesCores().find(facts(kind, run=run_with(used, waited))))
