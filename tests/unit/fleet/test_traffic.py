"""The table of collectives: bandwidth beside the best of the kind, latency, and what the link could give."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from unit.fleet.jobs import collectives, summary

from torch_bottleneck.fleet.collectives import pack
from torch_bottleneck.fleet.compare import compare_ranks
from torch_bottleneck.fleet.summary import RankSummary
from torch_bottleneck.fleet.traffic import bus_factor
from torch_bottleneck.model.diagnosis import CollectiveRow, Fleet
from torch_bottleneck.timeline.trace.table import Message

STEPS = 4
SIZES = (1_000, 1_000_000, 100_000_000)
LATENCY_MS, MS_PER_BYTE = 0.05, 1e-8
"""100 GB/s."""


def transfer_ms(size: int) -> float:
    return LATENCY_MS + size * MS_PER_BYTE


def job(ranks: int = 4, *, nodes: int | None = 0, link: float | None = 450.0, scatter: float = 0.0) -> Fleet:
    """Three all-reduces of other sizes in each step of 20 ms."""
    rng = np.random.default_rng(5)
    lengths = [transfer_ms(size) * rng.normal(1.0, scatter) for _ in range(STEPS) for size in SIZES]
    ends = [20.0 * step + 10.0 + 3.0 * k for step in range(STEPS) for k in range(len(SIZES))]
    found = collectives(
        ends,
        lengths,
        steps=np.repeat(range(STEPS), len(SIZES)).tolist(),
        message=Message("0", str(list(range(ranks))), "allreduce"),
        sizes=SIZES * STEPS,
    )
    summaries: list[RankSummary] = [
        msgspec.structs.replace(
            summary(rank, [0.0] * STEPS), collectives=pack(found), node=nodes, link_gbytes_per_s=link
        )
        for rank in range(ranks)
    ]
    return compare_ranks(summaries).fleet


def by_size(fleet: Fleet) -> dict[int | None, CollectiveRow]:
    return {row.bytes: row for row in fleet.collective_rows}


def test_the_best_of_the_kind_and_the_latency_come_from_the_run() -> None:
    fleet = job()
    (link,) = fleet.links
    large = SIZES[-1]
    # Four ranks: each byte goes over the slowest link 2 (4 - 1) / 4 times.
    assert link.best_bus_gbytes_per_s == pytest.approx(1.5 * large / transfer_ms(large) / 1e6, rel=1e-3)
    assert (link.best_bytes, link.link_gbytes_per_s) == (large, 450.0)
    assert link.latency_ms == pytest.approx(LATENCY_MS, rel=1e-3)
    rows = by_size(fleet)
    assert rows[SIZES[0]].latency_ms == pytest.approx(LATENCY_MS, rel=1e-3)
    assert rows[SIZES[0]].transfer_ms == pytest.approx(LATENCY_MS, rel=1e-3), "nothing but latency"
    assert rows[large].bus_gbytes_per_s == link.best_bus_gbytes_per_s


def test_what_the_link_could_give_is_told_of_ranks_on_one_machine_only() -> None:
    assert job(nodes=None).links[0].link_gbytes_per_s is None
    assert job(link=None).links[0].link_gbytes_per_s is None


def test_a_latency_that_may_be_none_is_not_told() -> None:
    assert job(scatter=0.02).links[0].latency_ms == pytest.approx(LATENCY_MS, rel=0.1)
    alike = tuple(SIZES[-1] + k for k in range(3))
    lengths = [transfer_ms(size) * (1.0 + 0.01 * (k % 2)) for k in range(STEPS) for size in alike]
    found = collectives(
        [20.0 * step + 10.0 + 3.0 * k for step in range(STEPS) for k in range(3)],
        lengths,
        steps=np.repeat(range(STEPS), 3).tolist(),
        sizes=alike * STEPS,
    )
    ranks = [
        msgspec.structs.replace(summary(rank, [0.0] * STEPS), collectives=pack(found)) for rank in range(4)
    ]
    assert compare_ranks(ranks).fleet.links[0].latency_ms is None


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("allreduce", 1.75),
        ("gloo:all_reduce", 1.75),
        ("_reduce_scatter_base", 0.875),
        ("_allgather_base", 7.0),
        ("all_to_allv", None),
        ("alltoall_base", 0.875),
        ("broadcast", 1.0),
        ("barrier", None),
    ],
)
def test_bus_bandwidth_is_as_nccl_tests_define_it(collective: str, factor: float | None) -> None:
    assert bus_factor(collective, 8) == factor
