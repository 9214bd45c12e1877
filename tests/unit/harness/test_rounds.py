"""Loops whose rounds do not need each other are made in one call, and those that do are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, profiler
from torch.nn import functional as F

from torch_bottleneck.harness.ways.watch import WayWatch

# Some releases of torch warn of what `acc_events` is asked not to do.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Profiler clears events"),
    pytest.mark.usefixtures("each_way_takes_half"),
]

WORDS = [torch.randn(2, 192) for _ in range(24)]
LAYER, HEAD, TABLE = nn.Linear(192, 192), nn.Linear(192, 30), nn.Embedding(30, 192)
RNN, CELL = nn.LSTM(192, 64, batch_first=True), nn.GRUCell(192, 64)


def by_callee(watch: WayWatch, loop: Callable[[], torch.Tensor]) -> dict[str, Any]:
    """Run two steps of a loop, and return what was found by its name."""

    def step() -> None:
        loop().square().mean().backward()

    step()  # the first in a process takes longer
    assert watch.begin()
    step()
    assert watch.end()
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], acc_events=False) as profile:
        assert watch.begin(tries=True)
        step()
        watch.end()
    return {call.callee: call for call in watch.found(profile)}


def scored(word: torch.Tensor) -> torch.Tensor:
    return F.linear(word, LAYER.weight, LAYER.bias)


def apart() -> torch.Tensor:
    out = []
    for word in WORDS:
        out.append(scored(word))
    return torch.cat(out)


def chained() -> torch.Tensor:
    state = WORDS[0]
    for word in WORDS:
        state = scored(state + word)
    return state


def chained_by_numbers() -> torch.Tensor:
    """Each round is given the word that the one before has chosen, which has no gradient."""
    out, chosen = [], torch.tensor([1, 2])
    for _ in WORDS:
        scores = HEAD(scored(TABLE(chosen)))
        chosen = scores.argmax(-1)
        out.append(scores)
    return torch.cat(out)


def chained_late() -> torch.Tensor:
    """As training does that is given its own words now and then."""
    out, word = [], WORDS[0]
    for k, known in enumerate(WORDS):
        word = known if k < 16 else word + out[-1]
        out.append(scored(word))
    return torch.cat(out)


def chained_by_python() -> torch.Tensor:
    out, scale = [], 1.0
    for word in WORDS:
        out.append(scored(word * scale))
        scale = 1 + 0 * out[-1].sum().item()
    return torch.cat(out)


def chained_by_a_buffer() -> torch.Tensor:
    kept = torch.zeros(25, 2, 192)
    with torch.no_grad():
        for k, word in enumerate(WORDS):
            kept[k + 1] = scored(word + kept[k])
    return scored(kept)


def test_rounds_that_need_none_before_are_one_call(watch: WayWatch) -> None:
    found = by_callee(watch, apart)["way:rounds"]
    assert found.left < 0.8
    # The first round is the one that shows what the others are.
    assert (found.operator, len(found.places)) == ("aten::linear", len(WORDS) - 1)
    assert found.site.function == "apart"


def in_layers() -> torch.Tensor:
    """Each layer needs the one before; the rounds of its own loop need none of each other."""
    words = WORDS[:8]
    for _ in range(3):
        words = [scored(word) for word in words]
    return torch.cat(words)


def test_the_loop_of_each_layer_is_one_call_though_layers_need_each_other(watch: WayWatch) -> None:
    found = by_callee(watch, in_layers)["way:rounds"]
    assert (found.operator, len(found.places), found.of) == ("aten::linear", 23, 24)


@pytest.mark.parametrize(
    "loop", [chained, chained_late, chained_by_numbers, chained_by_python, chained_by_a_buffer]
)
def test_rounds_that_need_the_one_before_stay_a_loop(
    watch: WayWatch, loop: Callable[[], torch.Tensor]
) -> None:
    found = by_callee(watch, loop).get("way:rounds")
    assert found is None or found.operator != "aten::linear"


def one_time_step_per_call() -> torch.Tensor:
    out, state = [], None
    for word in WORDS:
        step, state = RNN(word[:, None], state)
        out.append(step)
    return torch.cat(out, 1)


def a_cell_per_step() -> torch.Tensor:
    state, out = torch.zeros(2, 64), []
    for word in WORDS:
        state = CELL(word, state)
        out.append(state)
    return torch.stack(out)


def what_it_has_made() -> torch.Tensor:
    word, state = WORDS[0], torch.zeros(2, 64)
    for _ in WORDS:
        state = CELL(word, state)
        word = word + state.repeat(1, 3)
    return state


@pytest.mark.parametrize(
    ("loop", "operator"), [(one_time_step_per_call, "aten::lstm"), (a_cell_per_step, "aten::gru_cell")]
)
def test_an_rnn_whose_inputs_are_known_takes_them_all_at_once(
    watch: WayWatch, loop: Callable[[], torch.Tensor], operator: str
) -> None:
    found = by_callee(watch, loop)["way:sequence"]
    assert found.operator == operator
    assert found.left < 0.9


def test_an_rnn_that_is_given_what_it_has_made_takes_one_step_after_the_other(watch: WayWatch) -> None:
    assert "way:sequence" not in by_callee(watch, what_it_has_made)
