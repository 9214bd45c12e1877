"""Which lines of the user's write into what is trained, or into its gradients."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torch_bottleneck.harness.facts.repeats import RepeatWatch
from torch_bottleneck.harness.facts.trained_writes import TrainedWrites
from torch_bottleneck.harness.lines.promotions import Promotions

pytestmark = pytest.mark.usefixtures("nothing_compiled")


class Training:
    def __init__(self) -> None:
        self.model = nn.Linear(4, 4)
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def clip(self) -> None:
        total = sum((p.grad**2).sum() for p in self.model.parameters())
        for p in self.model.parameters():
            p.grad.mul_(1.0 / total)

    def clip_all(self) -> None:
        torch._foreach_clamp_max_([p.grad for p in self.model.parameters()], 1.0)

    def scale(self) -> None:
        for p in self.model.parameters():
            p.grad *= 0.5

    def replace(self) -> None:
        for p in self.model.parameters():
            p.grad = p.grad / 2.0

    def limit(self) -> None:
        with torch.no_grad():
            for p in self.model.parameters():
                p.data.clamp_(-0.1, 0.1)

    def mask(self) -> None:
        with torch.no_grad():
            self.model.weight[0] = 0.0

    def move_average(self) -> None:
        for kept, p in zip(self.average, self.model.parameters(), strict=True):
            kept.mul_(0.9).add_(p.detach(), alpha=0.1)

    def look(self) -> float:
        return sum(float(p.grad.norm().clone().mul_(2.0)) for p in self.model.parameters())

    def freeze(self) -> None:
        for p in self.model.parameters():
            p.requires_grad_(True)

    def into(self) -> None:
        for p in self.model.parameters():
            torch.mul(p.grad, 0.5, out=p.grad)

    def load(self) -> None:
        self.model.load_state_dict({name: 0.5 * each for name, each in self.model.state_dict().items()})

    def handle(self) -> None:
        self.clip()


def functions(between: Callable[[Training], object]) -> set[str]:
    """Return the functions of `Training` whose lines are noted in two steps."""
    training = Training()
    watch = RepeatWatch(lambda: [training.optimizer])
    watch.begin()
    try:
        for _ in range(2):
            training.model(torch.ones(2, 4)).relu_().sum().backward()
            between(training)
            training.optimizer.step()
            training.optimizer.zero_grad()
            watch.step()
        return {site.function for site in watch.trained_writes()} & vars(Training).keys()
    finally:
        watch.end()


@pytest.mark.parametrize(
    "write",
    [
        Training.clip, Training.clip_all, Training.scale, Training.replace, Training.limit, Training.mask,
        Training.into, Training.load,
    ],
)  # fmt: skip
def test_what_changes_gradients_or_weights_is_noted(write: Callable[[Training], None]) -> None:
    assert functions(write) == {write.__name__}


def test_so_are_the_lines_that_lead_there_and_those_that_read_for_it() -> None:
    assert functions(Training.handle) == {"handle", "clip"}
    training = Training()
    lines, first = inspect.getsourcelines(Training.clip)
    watch = RepeatWatch(lambda: [training.optimizer])
    watch.begin()
    try:
        training.model(torch.ones(2, 4)).sum().backward()
        training.clip()
        noted = {site.line - first for site in watch.trained_writes() if site.function == "clip"}
        assert {lines[at].strip() for at in noted} == {
            "total = sum((p.grad**2).sum() for p in self.model.parameters())",
            "p.grad.mul_(1.0 / total)",
        }
    finally:
        watch.end()


def test_a_kind_of_tensor_of_the_scripts_is_not_asked() -> None:
    asked: list[str] = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    values, training = torch.ones(3).as_subclass(Counted), Training()
    writes = TrainedWrites(lambda: [training.optimizer])
    writes.note(sys._getframe(), torch.Tensor.mul_, (values, 2.0), {})
    writes.note(sys._getframe(), torch.mul, (values, 2.0), {"out": values})
    Promotions().note(sys._getframe(), torch.mul, (values, values.bfloat16()), values)
    assert set(asked) <= {"bfloat16"}, "which the test calls"


def test_a_function_that_calls_an_optimizer_reads_for_nothing() -> None:
    """Its other lines may look at gradients for a log."""

    def beside(training: Training) -> None:
        training.optimizer.step()
        training.look()

    assert functions(beside) == set()
    assert functions(lambda training: nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)) == set()


def test_nothing_is_known_once_it_is_over() -> None:
    training = Training()
    watch = RepeatWatch(lambda: [training.optimizer])
    watch.begin()
    training.model(torch.ones(2, 4)).sum().backward()
    training.clip()
    watch.end()
    assert not watch.trained_writes()
    assert not (watch._writes._lines or watch._writes._read or watch._writes._written)
    assert watch._writes._at is None


def test_a_tensor_without_memory_is_nothing_that_is_trained() -> None:
    def beside(training: Training) -> None:
        with torch.no_grad():
            torch.eye(3).to_sparse().mul_(2.0)
            torch.empty(0).mul_(2.0)

    assert functions(beside) == set()
