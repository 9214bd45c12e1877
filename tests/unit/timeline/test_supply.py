"""What producing batches costs where workers and the training share the cores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import WhatIfResult
from torch_bottleneck.model.run import LoaderFacts, Production, SiteTime, SourceSite
from torch_bottleneck.timeline.steps.baseline import Baseline
from torch_bottleneck.timeline.steps.supply import InputSupply, is_bursty, made_ahead, supply_answers

PLACE = SourceSite(file="data.py", line=38, function="open_case")
SUPPLY = InputSupply(
    production_ms=76.0, batches_per_step=1.0, workers=1, where="workers", wait_ms=3.0, rows_share=0.0,
    call=SiteTime(site=PLACE, phase="production", count=96, call="load()"), call_share=0.95,
    alone_ms=76.0, computed_ms=75.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "step_ms", "bound"),
    [(2, 80.0 - 0.95 * 40.0, True), (4, 77.0, False)],
    ids=["full", "two to spare"],
)
def test_on_full_cores_the_training_gets_what_workers_compute_no_more(
    cores: int, step_ms: float, *, bound: bool
) -> None:
    """A worker computes for 75 of 80 ms, and so does the training, which waits for 3 ms only."""
    baseline = Baseline(step_ms=80.0, phases_ms={"data": 3.0}, user_ms=70.0, system_ms=5.0)
    answers = supply_answers(
        SUPPLY, rest_ms=77.0, true_ms=80.0, cores=cores, first_cores=cores, baseline=baseline
    )
    cheaper = answers[WhatIf.PRODUCTION_CHEAPER]
    assert (cheaper.step_ms, cheaper.bound) == (pytest.approx(step_ms), bound)


def test_where_the_processor_time_is_not_known_only_the_wait_counts() -> None:
    for baseline in (None, Baseline(step_ms=80.0, phases_ms={})):
        answers = supply_answers(
            SUPPLY, rest_ms=77.0, true_ms=80.0, cores=2, first_cores=2, baseline=baseline
        )
        assert answers[WhatIf.PRODUCTION_CHEAPER].step_ms == pytest.approx(77.0)


@pytest.mark.parametrize(
    ("computed_ms", "step_ms", "bound"),
    [(4.0, 18.0, False), (34.0, 22.0, True), (0.0, 23.0, True)],
    ids=["they wait", "they compute", "not measured"],
)
def test_workers_that_wait_share_no_cores_with_the_training(
    computed_ms: float, step_ms: float, *, bound: bool
) -> None:
    """A worker takes 36 ms for a batch and the training 10; a second one halves that if a core is free."""
    supply = replace(SUPPLY, production_ms=36.0, wait_ms=26.0, alone_ms=36.0, computed_ms=computed_ms)
    baseline = Baseline(step_ms=36.0, phases_ms={"data": 26.0}, user_ms=9.0, system_ms=1.0)
    answers = supply_answers(supply, rest_ms=10.0, true_ms=36.0, cores=2, first_cores=2, baseline=baseline)
    more = answers[WhatIf.INPUT_WORKERS]
    assert (more.step_ms, more.bound) == (pytest.approx(step_ms), bound)


@pytest.mark.parametrize(
    ("ready_ms", "host_ms", "step_ms"),
    [(70.0, 30.0, 70.0), (10.0, 60.0, 90.0), (75.0, 80.0, 80.0), (99.0, 120.0, 100.0)],
    ids=["training", "making", "partly hidden by the device", "no longer than it is"],
)
def test_made_ahead_in_one_other_thread_the_longer_of_making_and_training_remains(
    ready_ms: float, host_ms: float, step_ms: float
) -> None:
    ready = WhatIfResult(
        question=WhatIf.INPUT_READY, step_ms=ready_ms, saves_ms=100.0 - ready_ms, basis="", bound=False
    )
    ahead = made_ahead(ready, host_ms=host_ms, true_ms=100.0)
    assert (ahead.step_ms, ahead.saves_ms) == (pytest.approx(step_ms), pytest.approx(100.0 - step_ms))
    assert ahead.bound, "the threads share Python's lock"


@pytest.mark.parametrize(("per_step", "bursty"), [(1, True), (4, False)])
def test_workers_keep_up_where_they_hand_over_the_batches_of_a_whole_step(
    per_step: int, *, bursty: bool
) -> None:
    """Two workers take 40 ms for a batch, and a step computes for 50 ms; one fetch in twenty waits."""
    loader = LoaderFacts(
        id=1, cls="DataLoader", num_workers=2, fetches=80,
        wait_ms=[500.0 if n % 20 == 19 else 0.1 for n in range(80)],
        wait_step=[n // per_step for n in range(80)], production=Production(where="workers", fetch_ms=[40.0]),
    )  # fmt: skip
    assert is_bursty(loader, rest_ms=50.0) is bursty
