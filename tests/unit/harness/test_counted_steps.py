"""Steps of a watched job that are only counted: handed over again and again, and all of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.clocks import perf_counter_ns
from torch_bottleneck.harness.job import steps as module
from torch_bottleneck.harness.job.account import Counted, Stretch
from torch_bottleneck.harness.job.steps import StepWatch
from torch_bottleneck.harness.job.watch import JobWatch
from torch_bottleneck.runs.store import Store

STEPS = 1500


class Job:
    """What a `JobWatch` is to a `StepWatch`: here nothing is divided."""

    has_baseline = True
    wants_step = wants_look = wants_capture = False
    problem = ""

    def __init__(self) -> None:
        self.began_ns = perf_counter_ns()
        self.taken: list[Any] = []
        self.validations = 0
        self.acting: set[bool] = set()
        self.account = SimpleNamespace(usual_ms=None)
        self.first_step_ns: int | None = None

    def ended(self, taken: Any) -> None:
        self.taken.append(taken)
        if len(self.taken) == 40:
            self.account.usual_ms = 0.3

    def seen_at(self, part: str, _site: object) -> None:
        self.validations += part == "validation"

    def seen_batch(self, elements: int) -> None:
        assert elements == 4

    found = JobWatch.forked


def batches(*, loader: bool) -> Iterator[torch.Tensor]:
    if loader:
        for (x,) in DataLoader(TensorDataset(torch.randn(STEPS, 4)), batch_size=1):
            yield x
    else:
        for _ in range(STEPS):
            yield torch.randn(1, 4)


@pytest.mark.parametrize("loader", [True, False], ids=["with a loader", "without a loader"])
def test_counting_goes_on_while_what_was_counted_is_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: bool
) -> None:
    monkeypatch.setattr(module, "COUNTED_NS", 10_000_000)
    monkeypatch.setattr(module, "COUNTED_FOR_NS", 60_000_000)
    # However few steps a busy machine lets through in so short a time.
    monkeypatch.setattr(module, "LEAST_COUNTED", 0)
    job: Any = Job()
    watch = StepWatch(job, Store(tmp_path / "main"))
    watch.install()
    try:
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x in batches(loader=loader):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tail = watch.tail()
    finally:
        watch.uninstall()
    assert not job.problem
    assert tail is not None
    steps = [len(taken.ends_ns) - 1 if isinstance(taken, Counted) else 1 for taken in job.taken]
    assert sum(steps) + tail.whole == STEPS
    # Each begins where the one before has ended, and bears its number. Work of ours may lie before others.
    number = 0
    for before, after, count in zip(job.taken, job.taken[1:], steps, strict=False):
        assert after.begin_ns >= before.end_ns
        assert after.begin_ns == before.end_ns or not isinstance(after, Counted)
        assert (before.first if isinstance(before, Counted) else before.row.index) == number
        number += count
    # Several in a row without a step between them of which all was noted; and such steps come again.
    kinds = "".join("c" if isinstance(taken, Counted) else "n" for taken in job.taken)
    assert "ccc" in kinds
    assert "cn" in kinds and kinds.rindex("n") > kinds.index("c")
    assert all(taken.row.wall_ms > 0 for taken in job.taken if isinstance(taken, Stretch))


def test_classes_of_torch_keep_their_methods_between_counting_and_noting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COUNTED_NS", 5_000_000)
    monkeypatch.setattr(module, "COUNTED_FOR_NS", 10_000_000)
    monkeypatch.setattr(module, "LEAST_COUNTED", 0)
    monkeypatch.setattr(module, "WIDENED", 3)
    job: Any = Job()
    # An old job: an eighth of its age is more than this test takes.
    job.began_ns -= int(3600e9)
    watch = StepWatch(job, Store(tmp_path / "main"))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    methods: list[Any] = []

    def train(x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        methods.append((vars(torch.nn.Module)["__call__"], vars(torch.nn.Linear).get("__call__")))

    watch.install()
    try:
        for x in batches(loader=False):
            train(x)
        early, changes = len(job.taken), sum(a != b for a, b in pairwise(methods))
        for x in batches(loader=False):
            train(x)
        assert sum(a != b for a, b in pairwise(methods)) == changes <= 2 * 3 + 1
        kinds = "".join("c" if isinstance(taken, Counted) else "n" for taken in job.taken[early:])
        assert kinds.count("nc") >= 5
        with torch.no_grad():
            model(x)
        assert job.validations == 1 and job.acting == {True}
        model.eval()
        monkeypatch.setitem(sys.modules, "gymnasium", ModuleType("gymnasium"))
        with torch.no_grad():
            model(x)
        assert job.acting == {True}
    finally:
        watch.uninstall()
    assert "__call__" not in vars(torch.nn.Linear)
    assert not job.problem
