"""Copies of memory that stays as it is on the host: found, and taken from the device instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torch_bottleneck.harness.events.copied import OUTLIVED, CopiedBook, Source
from torch_bottleneck.harness.trials.patches import copies, make_patches
from torch_bottleneck.harness.trials.patches.base import Program
from torch_bottleneck.model.run import CopyFacts, SourceSite
from torch_bottleneck.model.verify import Wish

LINE = SourceSite(file="train.py", line=7, function="main")
STEPS = 6
PROGRAM = Program(roots=(), optimizers=())


def copied(batches: Any, *, steps: int = STEPS) -> CopyFacts:
    """What is said of steps that copy one batch each, `batches(step)`."""
    book = CopiedBook()
    for step in range(steps):
        book.note(batches(step), step, LINE)
    facts = book.facts(steps)
    assert facts is not None
    return facts


def test_slices_of_what_lives_on_are_kept_and_all_of_it_is_what_would_be_held() -> None:
    rollout = torch.rand(8, 100)
    facts = copied(lambda step: rollout[step : step + 2])
    assert (facts.calls, facts.kept_calls) == (STEPS - OUTLIVED + 1, STEPS - OUTLIVED + 1)
    assert (facts.kept_bytes, facts.bytes) == (facts.calls * 800, facts.calls * 800)
    assert (facts.kept_sizes, facts.held_bytes) == ([800], 3200)
    assert [(each.site, each.count) for each in facts.sites] == [(LINE, facts.kept_calls)]


def test_batches_that_are_made_for_a_step_are_not_kept_though_the_last_one_is_still_alive() -> None:
    last: list[torch.Tensor] = []

    def batch(_step: int) -> torch.Tensor:
        last[:] = [torch.rand(100)]
        return last[0]

    facts = copied(batch)
    assert (facts.calls, facts.kept_calls, facts.held_bytes) == (STEPS - OUTLIVED + 1, 0, 0)


def test_batches_that_a_script_collects_are_not_kept_for_it_may_never_copy_them_again() -> None:
    all_of_them: list[torch.Tensor] = []

    def batch(_step: int) -> torch.Tensor:
        all_of_them.append(torch.rand(100))
        return all_of_them[-1]

    assert copied(batch).kept_calls == 0
    assert copied(lambda step: all_of_them[step % 2]).kept_calls == STEPS - OUTLIVED + 1


@pytest.mark.parametrize("by_numpy", [True, False], ids=["numpy", "torch"])
def test_a_buffer_that_is_filled_anew_for_each_step_is_not_kept(by_numpy: bool) -> None:
    array = np.zeros(1000, dtype=np.float32)
    buffer = torch.from_numpy(array)

    def batch(step: int) -> torch.Tensor:
        if by_numpy:
            array[:] = step
        else:
            buffer.fill_(step)
        return buffer

    assert copied(batch).kept_calls == 0


def test_a_buffer_that_torch_has_written_is_not_kept_though_it_looks_the_same() -> None:
    buffer = torch.zeros(1000)

    def batch(step: int) -> torch.Tensor:
        buffer[5 + step] = 1.0
        return buffer

    assert copied(batch).kept_calls == 0


def test_sizes_that_other_copies_have_too_are_not_said() -> None:
    mask = torch.ones(4, 25)
    facts = copied(lambda step: mask if step % 2 else torch.rand(100))
    assert facts.kept_calls > 0
    assert facts.kept_sizes == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.nn.Parameter(torch.rand(3)),
        torch.empty(0),
        torch.eye(3).to_sparse(),
        torch.rand(3, device="meta"),
    ],
    ids=["trained", "empty", "sparse", "no memory"],
)
def test_what_is_trained_or_has_no_memory_is_left_out(tensor: torch.Tensor) -> None:
    assert Source.of(tensor) is None


def test_nothing_is_kept_alive() -> None:
    book, tensor = CopiedBook(), torch.rand(1000)
    source = Source.of(tensor)
    assert source is not None
    assert source.stays() == 4000
    book.note(tensor, 0, None)
    del tensor
    assert source.stays() == 0


# -- the patch, with a device that holds no values ------------------------------------------------


class Turn:
    """FX523 in force; what is copied reaches torch's own `Tensor.to`, which is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (self.patch,) = make_patches((Wish(fix="FX523"),))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 10**9))
        self.copied: list[torch.Size] = []
        to = torch.Tensor.to

        def noted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if tensor.device.type == "cpu":
                self.copied.append(tensor.shape)
            return to(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, "to", noted)

    def run(self, batches: Any, steps: int = 8) -> list[torch.Tensor]:
        weight = torch.ones(1, requires_grad=True)
        got = []
        self.patch.switch_on(PROGRAM)
        for step in range(steps):
            got.append(batches(step).to("meta"))
            weight.sum().backward()
        self.patch.switch_off()
        return got


def test_a_rollout_is_copied_once_and_each_batch_has_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, rollout = Turn(monkeypatch), torch.rand(8, 4, 3)
    got = turn.run(lambda step: rollout[step].t())
    # Twice before it is known to stay, once to learn the device, once whole, as bytes.
    assert turn.copied == [*[(3, 4)] * (OUTLIVED + 1), (8 * 4 * 3 * 4,)]
    assert {(x.shape, x.stride(), x.dtype) for x in got[OUTLIVED:]} == {((3, 4), (1, 3), torch.float32)}
    assert turn.patch.found().count == 8 - OUTLIVED


def test_batches_of_a_step_are_copied_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn(monkeypatch)
    turn.run(lambda _step: torch.rand(5))
    assert len(turn.copied) == 8
    assert turn.patch.found().reason.startswith("nothing was copied to the device from memory that stays")


def test_a_buffer_that_is_filled_anew_is_copied_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, buffer = Turn(monkeypatch), torch.zeros(500)
    turn.run(lambda step: buffer.fill_(step))
    assert len(turn.copied) == 8


def test_what_the_script_changes_on_the_device_is_copied_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, rollout = Turn(monkeypatch), torch.rand(8, 5)
    weight = torch.ones(1, requires_grad=True)
    turn.patch.switch_on(PROGRAM)
    for step in range(8):
        rollout[step].to("meta").add_(1)
        weight.sum().backward()
    turn.patch.switch_off()
    # Only the first taken from it was changed.
    assert turn.patch.found().count == 1
    assert len(turn.copied) == 8 + 1


def test_a_change_of_one_batch_leaves_a_backward_alone_that_has_saved_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn, rollout = Turn(monkeypatch), torch.rand(8, 5)
    turn.run(lambda step: rollout[step])
    turn.patch.switch_on(PROGRAM)
    weight = torch.ones(5, requires_grad=True, device="meta")
    for step in range(6):
        batch, other = rollout[step].to("meta"), rollout[step + 1].to("meta")
        loss = (weight * batch).sum()
        other.add_(1)
        loss.backward()
    turn.patch.switch_off()
    assert turn.patch.found().count == 2


def test_a_tensor_that_needs_a_gradient_is_copied_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, rollout = Turn(monkeypatch), torch.rand(8, 5)
    trained = rollout[7].requires_grad_()
    got = turn.run(lambda step: trained if step == 6 else rollout.detach()[step])
    assert [each.requires_grad for each in got] == [step == 6 for step in range(8)]
    assert turn.patch.found().count > 0


def test_where_there_is_no_room_it_is_copied_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, rollout = Turn(monkeypatch), torch.rand(8, 5)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100, 10**9))
    turn.run(lambda step: rollout[step])
    assert turn.patch.found().reason == "the device has no room for all of the memory that is copied from"


@pytest.mark.parametrize("kind", [torch.float64, torch.uint8])
def test_the_values_are_those_of_the_batch(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied to the CPU, which for this test is another device."""
    turn = Turn(monkeypatch)
    monkeypatch.setattr(copies, "goes_to_device", lambda *_: True)
    base = torch.rand(6, 4, 3).mul(200).to(kind)
    views = [
        base[2],
        base[1:5:2].transpose(0, 2),
        base[3, :, 1],
        base[5].flatten()[7:],
        base[0, 0].expand(5, 3),
    ]
    weight = torch.ones(1, requires_grad=True)
    turn.patch.switch_on(PROGRAM)
    for _ in range(OUTLIVED):
        base.to("cpu")
        weight.sum().backward()
    got = [(view, view.to("cpu")) for view in views]
    turn.patch.switch_off()
    assert turn.patch.found().count == len(views)
    assert all(torch.equal(view, taken) and view.data_ptr() == taken.data_ptr() for view, taken in got)
