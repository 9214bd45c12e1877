"""Numbers that are read every N steps: the user's lines get old ones in between, and nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.trials.patches import make_patches, reads
from torch_bottleneck.harness.trials.patches.base import NotSwitchable, Patch, Program
from torch_bottleneck.model.verify import Wish

EVERY = 4


def patch_of(**options: Any) -> Patch:
    (patch,) = make_patches((Wish(fix="FX501", options=options),))
    return patch


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Patch]:
    """One that is on, with tensors of the CPU in the part of a device's."""
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cuda")
    monkeypatch.setattr(reads, "is_waited_for", torch.Tensor.is_floating_point)
    before = [vars(torch.Tensor).get(name) for name in ("item", "__float__")]
    patch = patch_of(every=EVERY)
    patch.switch_on(Program(roots=(), optimizers=()))
    yield patch
    if patch.is_on:
        patch.switch_off()
    assert [vars(torch.Tensor).get(name) for name in ("item", "__float__")] == before
    assert torch.tensor(3.0).item() == 3.0 and float(torch.tensor(4.0)) == 4.0


def train(steps: int) -> dict[str, list[Any]]:
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    seen: dict[str, list[Any]] = {"item": [], "float": [], "text": [], "size": [], "weight": []}
    for step in range(steps):
        loss = torch.tensor(float(step))
        seen["item"].append(loss.item())
        seen["float"].append(float(loss))
        seen["text"].append(f"{loss:.1f}")
        seen["size"].append(torch.tensor(step).item())
        weight.grad = torch.ones(())
        optimizer.step()
        seen["weight"].append(weight.tolist())
    return seen


def test_a_line_reads_once_in_so_many_steps_and_gets_what_it_read_last(patch: Patch) -> None:
    seen = train(9)
    expected = [0.0] * 4 + [4.0] * 4 + [8.0]
    assert seen["item"] == seen["float"] == expected
    assert seen["text"] == [f"{value:.1f}" for value in expected]
    assert seen["size"] == list(range(9)), "a size or an index decides what is computed"
    assert seen["weight"] == [-1.0 - step for step in range(9)]
    patch.switch_off()
    found = patch.found()
    assert found.state == "applied" and found.count == 3 * 6
    assert "18 reads left out, one every 4 steps made" in found.evidence
    assert {site.file for site in found.sites} == {__file__}


def test_a_loop_that_waits_for_a_number_ends(patch: Patch) -> None:
    error, turns = torch.tensor(1.0), 0
    while error.item() > 0.5:
        error, turns = error / 2, turns + 1
        assert turns <= 2 * reads.STALE_AT_MOST
    assert patch.count


def test_what_libraries_read_is_true(patch: Patch) -> None:
    values = [torch.nn.utils.clip_grad_norm_([], 1.0), *map(torch.tensor, (1.0, 2.0, 3.0))]
    assert list(map(torch.Tensor.item, values[1:])) == [1.0] * 3, "a line of the user's"
    namespace: dict[str, Any] = {}
    exec(compile("def read(t):\n    return t.item()", "<library>", "exec"), namespace)
    assert [namespace["read"](value) for value in values[1:]] == [1.0, 2.0, 3.0]


def test_on_a_cpu_nothing_waits() -> None:
    if torch_private.device_kind() == "cpu":
        with pytest.raises(NotSwitchable, match="nothing waits"):
            patch_of().switch_on(Program(roots=(), optimizers=()))
