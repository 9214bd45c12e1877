"""Constants that are made on the device in each step: which of them are handed out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from torch_bottleneck.harness.trials.patches.base import Program
from torch_bottleneck.harness.trials.patches.once import ConstantsKept

# There is no other device here; a tensor of it has no values, but an address and a state.
DEVICE = "meta"


@pytest.fixture
def patch() -> Iterator[ConstantsKept]:
    weight = torch.ones(2, requires_grad=True)
    patch = ConstantsKept({})
    patch.switch_on(Program(roots=(), optimizers=()))
    patch.backward = lambda: weight.sum().backward()  # type: ignore[attr-defined]
    yield patch
    if patch.is_on:
        patch.switch_off()


def train(patch: ConstantsKept, step: Callable[[int], Any], steps: int = 8) -> list[Any]:
    """Return what the steps made."""
    made = []
    for i in range(steps):
        made.append(step(i))
        patch.backward()  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("numbers", [0.5, 3, True, [1, 2], [[0.5, 1.0], [2.0, 3.0]], np.ones(3, np.float32)])
def test_the_same_numbers_are_made_once(patch: ConstantsKept, numbers: Any) -> None:
    made = train(patch, lambda _: torch.tensor(numbers, device=DEVICE))
    # Kept from the second time on.
    assert len({id(each) for each in made}) == 2
    assert patch.count == 6


def test_a_copy_of_the_same_values_is_made_once(patch: ConstantsKept) -> None:
    made = train(patch, lambda _: torch.arange(4).to(DEVICE))
    assert len({id(each) for each in made}) == 2


def test_other_numbers_are_made_each_time_and_not_kept(patch: ConstantsKept) -> None:
    numbers = train(patch, lambda i: torch.tensor(float(i), device=DEVICE))
    batches = train(patch, lambda i: torch.full((4,), i).to(DEVICE))
    assert len({id(each) for each in (*numbers, *batches)}) == 16
    assert not patch.count
    assert not patch._kept


def test_a_line_may_make_several(patch: ConstantsKept) -> None:
    def step(i: int) -> list[torch.Tensor]:
        return [torch.tensor(number, device=DEVICE) for number in (0.5, 2.0, 10.0 + i)]

    train(patch, step)
    assert patch.count == 2 * 6
    assert len(patch._kept) == 2


def test_what_the_script_changes_is_made_anew(patch: ConstantsKept) -> None:
    def step(_: int) -> torch.Tensor:
        total = torch.tensor(0.0, device=DEVICE)
        total += 1
        return total

    assert len({id(each) for each in train(patch, step)}) == 8
    assert not patch.count


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(0.5),
        lambda: torch.tensor(0.5, device=DEVICE, requires_grad=True),
        lambda: torch.ones(2).to(torch.float64),
        lambda: torch.ones(2, requires_grad=True).to(DEVICE),
        lambda: torch.ones(2).to(torch.ones(1, device=DEVICE)),
    ],
)
def test_what_is_no_constant_of_a_device_is_left_alone(
    patch: ConstantsKept, make: Callable[[], torch.Tensor]
) -> None:
    assert len({id(each) for each in train(patch, lambda _: make())}) == 8
    assert not patch.count


def test_batches_that_were_recorded_come_again_and_are_no_constants() -> None:
    weight, batch = torch.ones(2, requires_grad=True), torch.ones(4)
    patch = ConstantsKept({})
    patch.switch_on(Program(roots=(), optimizers=(), replays=lambda: True))
    for _ in range(8):
        batch.to(DEVICE)
        weight.sum().backward()
    patch.switch_off()
    assert not patch.count


def test_the_line_is_named(patch: ConstantsKept) -> None:
    train(patch, lambda _: torch.tensor(0.5, device=DEVICE))
    patch.switch_off()
    found = patch.found()
    assert found.state == "applied"
    assert found.evidence == "6 constants made once and handed out again"
    assert [site.file for site in found.sites] == [__file__]
