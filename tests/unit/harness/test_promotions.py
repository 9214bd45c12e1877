"""The lines at which 16 bits become 32."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

from torch_bottleneck.harness.facts.repeats import RepeatWatch

pytestmark = pytest.mark.usefixtures("nothing_compiled")

HALF, FULL = torch.ones(4, 4, dtype=torch.bfloat16), torch.ones(4, 4)


def adapter() -> torch.Tensor:
    base = HALF @ HALF
    update = HALF.float() @ FULL
    return base + 2.0 * update


def table() -> torch.Tensor:
    return torch.cat([HALF, FULL]).sum() * torch.where(FULL > 0, HALF, FULL)


def asked() -> torch.Tensor:
    return HALF.type_as(FULL) + HALF.to(FULL) + HALF.float()


def kept() -> torch.Tensor:
    total = torch.zeros(4, 4)
    total += HALF
    return total.add_(HALF)


def scaled() -> torch.Tensor:
    return HALF * torch.tensor(2.0) + HALF * 0.5


def lines(step: Callable[[], torch.Tensor]) -> list[str]:
    watch = RepeatWatch()
    watch.begin()
    try:
        step()
        text, first = inspect.getsourcelines(step)
        return [
            text[site.line - first].strip() for site in watch.promotions() if site.function == step.__name__
        ]
    finally:
        watch.end()
        assert not watch.promotions()


def test_the_line_is_where_both_kinds_meet() -> None:
    assert lines(adapter) == ["return base + 2.0 * update"]
    assert lines(table) == ["return torch.cat([HALF, FULL]).sum() * torch.where(FULL > 0, HALF, FULL)"]


@pytest.mark.parametrize("step", [asked, kept, scaled])
def test_what_is_asked_for_or_kept_in_float32_is_none(step: Callable[[], torch.Tensor]) -> None:
    assert lines(step) == []
