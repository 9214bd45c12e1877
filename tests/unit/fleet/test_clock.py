"""Clocks that differ in time and speed are aligned by the ends of collectives."""

from __future__ import annotations

import numpy as np
import pytest
from unit.fleet.jobs import collectives, lane

from torch_bottleneck.fleet.clock import align
from torch_bottleneck.fleet.match import Lane, match
from torch_bottleneck.timeline.trace.table import Message

ENDS_MS = np.arange(1.0, 61.0) * 5.0


def rank(
    offset_ms: float,
    *,
    drift: float = 0.0,
    jitter_us: float = 0.0,
    seed: int = 0,
    message: Message | None = None,
    among: slice = slice(None),
) -> Lane:
    rng = np.random.default_rng(seed)
    ends = (
        ENDS_MS[among] * (1.0 + drift) + offset_ms + rng.normal(0.0, jitter_us / 1000.0, len(ENDS_MS[among]))
    )
    more = {"message": message} if message is not None else {}
    columns = collectives(ends.tolist(), [0.5] * len(ends), steps=[0] * len(ends), **more)
    return lane(columns, steps=1, numbers=[0])


@pytest.mark.parametrize("drift", [0.0, 20e-6, -50e-6])
def test_offset_and_drift_are_taken_off_and_what_remains_is_told(drift: float) -> None:
    lanes = [rank(0.0), rank(5.0, drift=drift, jitter_us=2.0, seed=1), rank(-3.0, jitter_us=2.0, seed=2)]
    clock = align(lanes, match(lanes))
    for k in (1, 2):
        apart = clock.common(k, lanes[k].collectives.end) - lanes[0].collectives.end
        assert np.abs(np.median(apart)) < 1_000
        assert np.abs(apart).max() < 10_000
        assert clock.error_ns[k] == pytest.approx(2_000, rel=0.5)


def test_without_drift_no_slope_is_made_of_noise() -> None:
    lanes = [rank(0.0), *(rank(1.0, jitter_us=3.0, seed=seed) for seed in range(1, 40))]
    assert np.count_nonzero(align(lanes, match(lanes)).drift) <= 1


def test_ranks_that_share_no_group_are_joined_by_one_that_is_in_both() -> None:
    first, second = Message("1", "[0, 1]", "allreduce"), Message("2", "[1, 2]", "allreduce")
    both = rank(2.0, message=first, among=slice(0, 30))
    rest = rank(2.0, message=second, among=slice(30, 60))
    columns = {
        name: np.concatenate([getattr(both.collectives, name), getattr(rest.collectives, name)])
        for name in (
            "kind",
            "sequence",
            "step",
            "backward",
            "phase",
            "ready",
            "start",
            "end",
            "alone",
            "exposed",
        )
    }
    columns["kind"][30:] = 1
    joined = lane(
        type(both.collectives)(kinds=(*both.collectives.kinds, *rest.collectives.kinds), **columns),
        steps=1,
        numbers=[0],
    )
    lanes = [
        rank(0.0, message=first, among=slice(0, 30)),
        joined,
        rank(-4.0, message=second, among=slice(30, 60)),
    ]
    clock = align(lanes, match(lanes))
    assert np.diff(clock.offset_ns).tolist() == pytest.approx([-2e6, 6e6], abs=10)


def test_a_rank_that_shares_nothing_has_no_place_on_the_clock() -> None:
    lanes = [rank(0.0), rank(1.0), rank(2.0, message=Message("9", "[2]", "allreduce"))]
    clock = align(lanes, match(lanes))
    assert np.isnan(clock.offset_ns).tolist() == [False, False, True]
