"""A trial begins where every other one began: state and batches are put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.harness.trials.batches import BatchTape
from torch_bottleneck.harness.trials.losses import LossBook
from torch_bottleneck.harness.trials.state import KeptState


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.5)
        self.two = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.drop(self.norm(self.one(x))))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[float]:
    losses = []
    for _ in range(steps):
        shift = float(np.random.normal())  # noqa: NPY002 - the state that scripts use
        x = torch.randn(8, 6) + shift + random.random()
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
        lambda p: torch.optim.Adagrad(p, lr=1e-2),
    ],
)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_the_same_steps_again_give_the_same_losses(make: Any, steps_before: int) -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = make(net.parameters())
    train(net, optimizer, steps_before)
    objects = [id(p) for p in net.parameters()]
    kept = KeptState([net], [optimizer])
    first = train(net, optimizer)
    optimizer.param_groups[0]["lr"] = 5.0
    kept.put_back()
    assert optimizer.param_groups[0]["lr"] == 1e-2
    assert train(net, optimizer) == first
    kept.put_back()
    assert train(net, optimizer) == first, "it can be put back more than once"
    assert [id(p) for p in net.parameters()] == objects


def test_a_scaler_and_gradients_that_were_not_there_are_put_back() -> None:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    kept = KeptState([net], [optimizer], scaler)
    scaler.scale(net(torch.randn(8, 6)).sum()).backward()
    scaler.step(optimizer)
    scaler.update(4.0)
    kept.put_back()
    assert scaler.get_scale() == 8.0
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_handed_out_again_and_the_loader_does_not_move(workers: int) -> None:
    data = TensorDataset(torch.arange(40.0))
    tape = BatchTape()
    iterator = iter(DataLoader(data, batch_size=4, num_workers=workers))
    tape.record()
    first = [next(iterator)[0] for _ in range(3)]
    seen = [batch.clone() for batch in first]
    first[0].zero_()  # the script may change its batch in place
    tape.replay()
    for _ in range(2):
        again = [next(iterator)[0] for _ in range(3)]
        assert all(torch.equal(a, b) for a, b in zip(again, seen, strict=True))
        again[0].zero_()
        tape.replay()
    tape.stop()
    assert next(iterator)[0].tolist() == [12.0, 13.0, 14.0, 15.0]
    tape.close()
    assert next(iterator)[0].tolist() == [16.0, 17.0, 18.0, 19.0]


def test_after_the_last_recorded_batch_come_the_loaders_own() -> None:
    tape = BatchTape()
    iterator = iter(DataLoader(TensorDataset(torch.arange(16.0)), batch_size=4))
    tape.record()
    next(iterator)
    tape.replay()
    assert [next(iterator)[0][0].item() for _ in range(3)] == [0.0, 4.0, 8.0]
    tape.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_pass_gives_no_more_batches_than_its_length(workers: int) -> None:
    tape = BatchTape()
    loader = DataLoader(
        TensorDataset(torch.arange(12.0)), batch_size=4, num_workers=workers, persistent_workers=workers > 0
    )
    iterator = iter(loader)
    tape.record()
    first = [next(iterator)[0][0].item() for _ in range(2)]
    tape.replay()
    assert [batch[0][0].item() for batch in iterator] == first[:1]
    assert [batch[0][0].item() for batch in loader] == [4.0, 0.0, 4.0]
    tape.close()
    assert [batch[0][0].item() for batch in loader] == [0.0, 4.0, 8.0]


class Noisy(torch.utils.data.Dataset):
    """Draws random numbers in the process that fetches."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers_go_on_as_at_the_recording_though_no_new_pass_begins(workers: int) -> None:
    """A dropout behind a new pass, or behind a noisy dataset, is the same again; without them it is not."""
    tape = BatchTape()
    loader = DataLoader(Noisy(), batch_size=4, num_workers=workers, shuffle=True)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    endless = batches()
    next(endless)
    tape.record()

    def drawn() -> list[float]:
        return [(next(endless).sum() + torch.rand(())).item() for _ in range(2)]

    began = torch.get_rng_state()
    first = drawn()
    for with_random in (True, False):
        torch.set_rng_state(began)
        tape.replay(with_random=with_random)
        assert (drawn() == first) is with_random
    tape.close()


def test_another_loader_reads_its_own_batches_while_those_of_the_first_are_handed_out() -> None:
    tape = BatchTape()
    training = iter(DataLoader(TensorDataset(torch.arange(12.0)), batch_size=4))
    tape.record()
    next(training)
    tape.replay()
    assert next(iter(DataLoader(TensorDataset(torch.arange(-2.0, 0.0)), batch_size=2)))[0].tolist() == [
        -2,
        -1,
    ]
    assert next(training)[0][0].item() == 0.0
    tape.close()


def test_a_batch_that_cannot_be_copied_is_a_reason() -> None:
    class Stubborn:
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no")

    tape = BatchTape()
    iterator = iter(DataLoader([Stubborn()] * 3, batch_size=1, collate_fn=lambda items: items[0]))
    tape.record()
    next(iterator)
    assert "TypeError" in tape.problem
    tape.close()


def test_a_norm_that_cannot_be_taken_is_a_note_even_where_the_error_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(torch, "_foreach_norm", refuse)
    book = LossBook()
    book.install()
    try:
        parameter = nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        torch.optim.SGD([parameter], 0.1).step()
    finally:
        book.uninstall()
    assert book.notes == ["gradient norms: NotImplementedError"]
