"""Nodes of a traced step whose loops went round more often, or less, than those of the noted one."""

from __future__ import annotations

import pytest

from torch_bottleneck.timeline.lanes.graph_nodes import NO_NODE, _aligned

STATES, PATHS = ["Unsqueeze", "Add", "Logsumexp"], ["Index", "Index", "Add"]


def step(rounds: int, late: int = 0) -> list[str]:
    """Return the nodes of a step with two loops; the last rounds of the first choose, too."""
    first = (rounds - late) * STATES + late * [*STATES, "Where"]
    return ["Embedding", "Rnn", "View", *first, *rounds * PATHS, "Sub", "Mean"]


@pytest.mark.parametrize("rounds", [2, 4, 7, 30])
def test_nodes_of_a_loop_stay_nodes_of_that_loop(rounds: int) -> None:
    noted, traced = step(7, late=2), step(rounds, late=1)
    found = _aligned(noted, traced)
    assert [noted[at] for at in found] == traced
    first = range(3, noted.index("Index"))
    assert [at in first for at in found] == [3 <= k < traced.index("Index") for k in range(len(traced))]
    adds = [at for at in found if noted[at] == "Add" and at not in first]
    assert len(adds) == rounds and {noted[at - 1] for at in adds} == {"Index"}


def test_a_name_that_was_not_noted_has_no_node_and_the_rest_goes_on() -> None:
    noted, traced = step(3), step(4)
    traced.insert(5, "Dropout")
    found = _aligned(noted, traced)
    assert found.pop(5) == NO_NODE
    traced.pop(5)
    assert [noted[at] for at in found] == traced
