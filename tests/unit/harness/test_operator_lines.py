"""Below which of the user's lines operators are called, with and without gradients."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.facts import repeats
from torch_bottleneck.harness.facts.repeats import RepeatWatch
from torch_bottleneck.harness.lines import operator_lines
from torch_bottleneck.model.run import OperatorLines

pytestmark = pytest.mark.usefixtures("nothing_compiled")


class _AsOnADevice:
    """What is asked for the kind of the device to know whether to mark."""

    @staticmethod
    def device_kind() -> str:
        return "cuda"


@pytest.fixture(autouse=True)
def _marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_lines, "torch_private", _AsOnADevice)


def noted(run: Callable[[], object], *, before: Callable[[], object] | None = None) -> OperatorLines | None:
    """Return what is noted of one step; `before` it, another step runs."""
    watch = RepeatWatch()
    watch.begin()
    try:
        if before is not None:
            before()
            watch.step()
        with profile(activities=[ProfilerActivity.CPU], acc_events=False) as recorded:
            run()
        return watch.operators(recorded)
    finally:
        watch.end()


def lines(found: OperatorLines | None, name: str) -> list[str]:
    """Return the innermost line of each call of an operator; "" where none is known."""
    assert found is not None
    return [found.texts[found.chains[chain][0]] if chain >= 0 else "" for chain in found.calls.get(name, [])]


def advantages(values: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        later = values.cumsum(0)
        return later / later.std()


def test_each_call_has_its_line_whether_or_not_it_records_anything() -> None:
    weight = torch.ones(4, requires_grad=True)

    def step() -> None:
        first = advantages(torch.ones(4))
        loss = (weight * first).sum()
        again = advantages(loss.detach() * torch.ones(4))
        (loss + again.sum()).backward()

    found = noted(step)
    assert lines(found, "aten::cumsum") == ["later = values.cumsum(0)"] * 2
    assert [line for line in lines(found, "aten::sum") if line] == [
        "loss = (weight * first).sum()",
        "(loss + again.sum()).backward()",
    ], "and not those that std() calls"
    assert lines(found, "aten::mul")[:2] == [
        "loss = (weight * first).sum()",
        "again = advantages(loss.detach() * torch.ones(4))",
    ]
    assert found is not None
    callers = {
        tuple(found.texts[line] for line in found.chains[chain][:2]) for chain in found.calls["aten::cumsum"]
    }
    assert callers == {
        ("later = values.cumsum(0)", "first = advantages(torch.ones(4))"),
        ("later = values.cumsum(0)", "again = advantages(loss.detach() * torch.ones(4))"),
    }, "the lines that lead to it"
    site = found.sites[found.chains[found.calls["aten::cumsum"][0]][0]]
    assert (site.function, site.file) == ("advantages", __file__)
    assert site.line == inspect.getsourcelines(advantages)[1] + 2


def test_what_another_operator_calls_is_counted_but_has_no_line_of_its_own() -> None:
    weight = torch.ones(3, 3)
    found = noted(lambda: nn.functional.linear(weight, weight).clone())
    assert found is not None
    assert "aten::mm" not in found.calls
    assert {"aten::linear", "aten::clone"} <= found.calls.keys()
    both = noted(lambda: (torch.matmul(weight, weight), nn.functional.linear(weight, weight)))
    assert both is not None
    assert [chain >= 0 for chain in both.calls["aten::matmul"]] == [True, False], "linear calls the second"


def test_one_step_is_marked_the_first() -> None:
    def step() -> torch.Tensor:
        return torch.ones(3).cumsum(0)

    assert noted(step) is not None
    assert noted(step, before=step) is None


def test_nothing_is_marked_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_lines, "torch_private", torch_private)
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cpu")
    assert noted(lambda: torch.ones(3).cumsum(0)) is None


def test_an_error_of_the_scripts_ends_its_mark() -> None:
    def step() -> None:
        with pytest.raises(RuntimeError):
            torch.ones(3) @ torch.ones(4)
        torch.ones(3).cumsum(0)

    assert lines(noted(step), "aten::cumsum") == ["torch.ones(3).cumsum(0)"]


def test_putting_a_mark_is_no_time_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is called twice takes as large a share of the calls with marks as without."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) + self.body(x)

    now_ns = 0

    def clock() -> int:
        nonlocal now_ns
        now_ns += 1
        return now_ns

    class Slow(operator_lines.OperatorMarks):
        def enter(self, caller: object) -> bool:
            nonlocal now_ns
            now_ns += 1_000_000
            return super().enter(caller)  # type: ignore[arg-type]

        def leave(self) -> None:
            nonlocal now_ns
            now_ns += 1_000_000
            super().leave()

    monkeypatch.setattr(repeats, "perf_counter_ns", clock)
    model, x = Twice(), torch.ones(2, 4)

    def share(marks: type[operator_lines.OperatorMarks]) -> float:
        monkeypatch.setattr(repeats, "OperatorMarks", marks)
        watch = RepeatWatch()
        watch.begin()
        model(x)
        found = watch.end()
        assert found is not None
        return found.share

    assert share(Slow) == pytest.approx(share(operator_lines.OperatorMarks), rel=0.01)


def test_a_step_that_ends_inside_a_call_ends_its_mark() -> None:
    """As one of a script without optimizers does, inside its backward."""
    watch = RepeatWatch()
    watch.begin()
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda _: watch.step())
    with profile(activities=[ProfilerActivity.CPU], acc_events=False) as recorded:
        x.sum().backward()
        torch.ones(3).cumsum(0)
    watch.end()
    marks = [event for event in recorded.events() if event.name.startswith(operator_lines._MARK)]
    (last,) = [event for event in recorded.events() if event.name == "aten::cumsum"]
    assert marks
    assert all(mark.time_range.end <= last.time_range.start for mark in marks)


class Seen(TorchDispatchMode):
    """What a mode of the script's sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mark_is_no_operator_that_a_mode_of_the_scripts_sees() -> None:
    """What `torch.jit.trace` records, too, is what operators are called."""
    seen = Seen()

    def step() -> None:
        with seen:
            torch.ones(3).cumsum(0)

    assert lines(noted(step), "aten::cumsum")[0] == "torch.ones(3).cumsum(0)"
    assert "aten.cumsum.default" in seen.names
    assert not [name for name in seen.names if name.startswith("profiler")]


def test_of_a_step_that_is_not_looked_at_to_its_end_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a stream is captured, which may not be waited for."""
    calls = 0

    def wait() -> None:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise RuntimeError("captured")

    monkeypatch.setattr(torch_private, "wait_for_device", wait)
    assert noted(lambda: [torch.ones(3).cumsum(0) for _ in range(5)]) is None


def test_nothing_of_the_script_is_held_at_the_end() -> None:
    watch = RepeatWatch()
    watch.begin()
    torch.ones(3).cumsum(0)
    watch.end()
    assert not watch._marks._marks


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_what_is_sent_between_ranks_has_its_line() -> None:
    before = distributed.all_reduce, distributed.distributed_c10d.all_reduce

    def step() -> None:
        values = torch.ones(3)
        for _ in range(2):
            distributed.all_reduce(values)
        distributed.distributed_c10d.broadcast(values, 0)

    found = noted(step)
    assert lines(found, "c10d::allreduce_") == ["distributed.all_reduce(values)"] * 2
    assert lines(found, "c10d::broadcast_") == ["distributed.distributed_c10d.broadcast(values, 0)"]
    assert (distributed.all_reduce, distributed.distributed_c10d.all_reduce) == before


@pytest.mark.usefixtures("alone")
def test_operations_between_two_ranks_can_be_made_while_calls_are_marked() -> None:
    """`P2POp` takes torch's own functions only."""
    made: list[distributed.P2POp] = []

    def step() -> None:
        torch.ones(3).cumsum(0)
        made.append(distributed.P2POp(distributed.isend, torch.ones(3), 0))

    assert noted(step) is not None
    assert made[0].op is distributed.isend


@pytest.mark.usefixtures("alone")
def test_another_thread_marks_nothing() -> None:
    def step() -> None:
        torch.ones(3).cumsum(0)
        beside = threading.Thread(target=lambda: distributed.all_reduce(torch.ones(3)))
        beside.start()
        beside.join()

    assert not any(lines(noted(step), "c10d::allreduce_"))


def test_lines_are_known_beside_a_default_device() -> None:
    torch.set_default_device("cpu")
    try:
        assert lines(noted(lambda: torch.ones(3).cumsum(0)), "aten::cumsum") == [
            'assert lines(noted(lambda: torch.ones(3).cumsum(0)), "aten::cumsum") == ['
        ]
        torch.set_default_device("meta")
        assert torch.ones(3).device.type == "meta"
    finally:
        torch.set_default_device(None)
    assert torch.ones(3).device.type == "cpu"


@pytest.mark.parametrize("kind", ["meta", "cpu"])
def test_a_device_that_the_script_is_inside_of_ends_with_its_block(kind: str) -> None:
    """Leaving it takes the mode on top away, whichever that is."""
    watch = RepeatWatch()
    with torch.device(kind):
        watch.begin()
        torch.ones(3)
    assert torch.ones(3).device.type == "cpu"
    assert not torch_private.function_modes()
    watch.end()
    assert torch.ones(3).device.type == "cpu"
