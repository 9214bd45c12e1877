"""Step times: decided from repeats, suspicious from one run, never more than that."""

from __future__ import annotations

import pytest
from unit.compare.sides import baseline, runs

from torch_bottleneck.compare.times import compare_times
from torch_bottleneck.model.baseline import Machine
from torch_bottleneck.model.gate import GateSettings

QUIET = (10.0, 10.1, 9.9, 10.05)
SLOWER = (11.5, 11.6, 11.4, 11.55)


def compare(base, head, *, interleaved=True, **settings):
    return compare_times(
        baseline(runs=runs(*base)),
        baseline(runs=runs(*head)),
        settings=GateSettings(**settings),
        interleaved=interleaved,
    )


def test_repeats_in_turns_decide_and_count():
    row = compare(QUIET, SLOWER)
    assert (row.decision, row.gated) == ("slower", True)
    assert row.interval is not None and row.interval[0] < 1.15 < row.interval[1]
    assert compare(SLOWER, QUIET).decision == "faster"


def test_a_difference_that_cannot_matter_is_ruled_out():
    assert compare(QUIET, (10.05, 10.0, 9.95, 10.1)).decision == "no change"


def test_noise_leaves_it_undecided_with_the_repeats_that_would_decide():
    row = compare((10, 12, 9, 14), (11, 13, 9.5, 13))
    assert row.decision == "undecided"
    assert row.needed is not None and row.needed > 4


@pytest.mark.parametrize("head", [9.0, 10.0, 10.2, 30.0])
def test_one_run_against_one_run_is_never_more_than_undecided(head):
    row = compare((10.0,), (head,), interleaved=False, times="gate")
    assert row.decision == "undecided"
    assert row.interval is None
    assert row.needed is not None
    assert "one run per side" in row.note


def test_one_run_a_side_counts_only_where_it_looks_slower_than_its_own_noise_explains():
    assert not compare((10.0,), (10.2,), interleaved=False).gated
    assert compare((10.0,), (20.0,), interleaved=False).gated
    assert not compare((10.0,), (5.0,), interleaved=False).gated


def test_a_stored_baseline_is_told_and_not_gated_unless_asked_for():
    row = compare(QUIET, SLOWER, interleaved=False)
    assert (row.decision, row.gated) == ("slower", False)
    assert compare(QUIET, SLOWER, interleaved=False, times="gate").gated
    assert not compare(QUIET, SLOWER, times="report").gated
    assert compare(QUIET, SLOWER, times="off").decision == "not compared"


def test_times_of_another_machine_say_nothing():
    other = Machine(device_kind="cpu", device_name="Xeon", cpu="Xeon", cores=2, torch="2.13.0+cpu")
    row = compare_times(
        baseline(runs=runs(*QUIET)),
        baseline(runs=runs(*SLOWER), machine=other),
        settings=GateSettings(times="gate"),
        interleaved=True,
    )
    assert (row.decision, row.gated) == ("not compared", False)


def test_without_an_unprofiled_step_time_nothing_is_compared():
    row = compare((), QUIET)
    assert row.decision == "not compared"
    assert "unprofiled" in row.note


def test_the_tolerance_is_the_projects():
    assert compare(QUIET, SLOWER, time_tolerance=0.5).decision == "no change"
