"""When the parts of a job lay, and workers that an epoch starts anew."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.harness.job.account import Account, Stretch
from torch_bottleneck.harness.job.epochs import EpochStarts
from torch_bottleneck.harness.job.over_time import FIRST_NS, STRETCHES, OverTime
from torch_bottleneck.harness.windows.table import Row

MS = 1_000_000


def test_each_part_lies_where_it_was_gained() -> None:
    over_time = OverTime(0)
    over_time.add(100 * MS, {"set-up": 100 * MS}, steps=0)
    over_time.add(400 * MS, {"set-up": 100 * MS, "training steps": 300 * MS}, steps=3)
    found = over_time.timeline()
    assert found.stretch_s == FIRST_NS / 1e9
    assert found.parts == {"set-up": [0.1], "training steps": [0.0, 0.1, 0.1, 0.1]}
    assert found.steps == [0, 3, 3, 3]


def test_what_is_divided_later_lies_over_all_the_time_that_it_waited() -> None:
    over_time = OverTime(0)
    over_time.add(100 * MS, {}, steps=0)
    over_time.add(200 * MS, {"training steps": 200 * MS}, steps=20)
    assert over_time.timeline().parts == {"training steps": [0.1, 0.1]}


def test_a_long_job_has_no_more_stretches_and_loses_no_second() -> None:
    over_time, sums = OverTime(0), {"training steps": 0, "validation": 0}
    seconds = 5000
    for second in range(1, seconds + 1):
        sums["validation" if second % 10 == 0 else "training steps"] += 1000 * MS
        over_time.add(second * 1000 * MS, sums, steps=second)
    found = over_time.timeline()
    assert STRETCHES / 2 < len(found.steps) <= STRETCHES
    assert found.steps == sorted(found.steps) and found.steps[-1] == seconds
    assert sum(found.parts["validation"]) == pytest.approx(seconds / 10, abs=0.1)
    assert sum(found.parts["training steps"]) == pytest.approx(seconds * 0.9, abs=0.1)


@pytest.mark.parametrize(
    ("options", "again"),
    [({"num_workers": 1}, [False, True, True]), ({"num_workers": 0}, [False] * 3)],
    ids=["workers", "none"],
)
def test_workers_that_an_epoch_starts_anew_are_told_from_the_first(
    options: dict[str, int], again: list[bool]
) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=4, **options)  # type: ignore[arg-type]
    starts = EpochStarts()
    starts.install()
    seen = []
    try:
        for _ in range(3):
            iterator = iter(loader)
            starts.handed_over(iterator, at_ns=0, grad=True, wait_ms=1.0, step_index=0, window="job")
            assert starts.at_cut()[0] > 0
            seen.append(starts.restarted)
            list(iterator)
            del iterator
    finally:
        starts.uninstall()
    assert seen == again


def test_the_time_of_starts_anew_is_a_part_of_all_starts() -> None:
    account = Account()
    for i in range(60):
        account.step(Stretch(Row(index=i, start_ns=0, wall_ms=10.0, phases_ns={"data": MS})), [])
    slow = Row(index=60, start_ns=0, wall_ms=110.0, phases_ns={"data": 101 * MS})
    account.step(Stretch(slow, starting=(101 * MS, None)), [])
    account.step(Stretch(slow, starting=(101 * MS, None), restarted=True), [])
    starts = account.parts()["epoch starts"]
    assert (starts.s, starts.again_s) == (0.2, 0.1)
