"""Calls that have a cheaper way, found in real traces."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded.cases import CASES
from torch.nn import functional as F

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.ingest import read_trace
from torch_bottleneck.model.run import CostlyCalls
from torch_bottleneck.timeline.lanes.costly import CostlyRows, costly_rows
from torch_bottleneck.timeline.trace.table import Trace

COO = torch.eye(50).to_sparse()
PLAIN = torch.nn.Embedding(50, 3)
BOUNDED = torch.nn.Embedding(50, 3, max_norm=1.0)


def traced(step: Callable[[torch.Tensor], torch.Tensor], folder: Path) -> Trace:
    """Profile two steps of forward and backward."""
    x = torch.randn(50, 3, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            step(x).sum().backward()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return read_trace(folder / "trace.json")


NET, HEADS = torch.nn.Linear(3, 8), [torch.nn.Linear(8, 1) for _ in range(3)]
SGD = torch.optim.SGD([each for part in (NET, *HEADS) for each in part.parameters()], lr=0.1)
ONE = torch.optim.SGD(HEADS[0].parameters(), lr=0.1)


def trained(go_back: Callable[[list[torch.Tensor]], object], folder: Path) -> Trace:
    """Profile two steps of a body with three heads, and how they go back from its losses."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(2):
            SGD.zero_grad()
            body = NET(torch.randn(4, 3)).relu()
            go_back([head(body).sum() for head in HEADS])
            SGD.step()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return read_trace(folder / "trace.json")


def each(losses: list[torch.Tensor]) -> None:
    for loss in losses:
        loss.backward(retain_graph=True)


def with_an_update_between(losses: list[torch.Tensor]) -> None:
    losses[0].backward(retain_graph=True)
    ONE.step()
    torch.autograd.backward(losses[1:])


def of_a_gradient(losses: list[torch.Tensor]) -> None:
    (slope,) = torch.autograd.grad(losses[0], NET.weight, create_graph=True)
    (slope.square().sum() + losses[1]).backward()


def test_a_backward_for_each_loss_goes_anew_through_what_they_share(tmp_path: Path) -> None:
    trace = trained(each, tmp_path)
    calls = found(trace)["torch.Tensor.backward"]
    names = [trace.name_of(row).rpartition(" ")[2] for row in calls.gone.tolist()]
    assert len(calls.rows) == 2 * 2, "two of three in each of two steps"
    assert names.count("ReluBackward0") == names.count("AddmmBackward0") == 4
    assert names.count("torch::autograd::AccumulateGrad") == 2 * 4, (
        "of the body's two parameters, not of the heads"
    )


def test_a_part_that_is_written_has_the_number_of_another_node_and_no_second_visit(tmp_path: Path) -> None:
    def write(losses: list[torch.Tensor]) -> None:
        parts = torch.zeros(len(losses))
        for i, loss in enumerate(losses):
            parts[i] = 2 * loss
        parts.sum().backward()

    assert "torch.Tensor.backward" not in found(trained(write, tmp_path))


@pytest.mark.parametrize(
    "go_back", [lambda losses: sum(losses).backward(), with_an_update_between, of_a_gradient],
    ids=["sum", "an update between", "gradient of a gradient"],
)  # fmt: skip
def test_one_backward_of_the_sum_and_what_cannot_be_summed_is_left_alone(
    go_back: Callable[[list[torch.Tensor]], object], tmp_path: Path
) -> None:
    assert "torch.Tensor.backward" not in found(trained(go_back, tmp_path))


def found(trace: Trace, *seen: CostlyCalls) -> dict[str, CostlyRows]:
    return {each.callee: each for each in costly_rows(trace, seen=seen)}


def seen(operator: str, *places: int, of: int, tensors: int = 0) -> CostlyCalls:
    return CostlyCalls(operator=operator, places=list(places), of=of, tensors=tensors)


class Spread(torch.autograd.Function):
    """Hands numbers on; its backward, written by hand, adds them up."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].scatter_add(1, torch.zeros(50, 3, dtype=torch.long), gradients[0])


def test_a_call_in_a_backward_that_is_written_by_hand_is_one_of_the_step(tmp_path: Path) -> None:
    trace = traced(Spread.apply, tmp_path)
    assert not found(trace)
    tried = CostlyCalls(operator="aten::scatter_add", callee="way:whole-rows", places=[0], of=1, left=0.4)
    calls = found(trace, tried)["way:whole-rows"]
    assert len(calls.rows) == len(calls.gone) == 2


def test_a_call_that_autograd_makes_in_a_backward_is_none_of_the_scripts(tmp_path: Path) -> None:
    """The backward of a product with a single row multiplies by dots, once for each."""
    rows = torch.randn(50, 1, 64)
    trace = traced(lambda x: torch.bmm(x[:, :1, None], rows), tmp_path)
    assert "torch.bmm" not in found(trace, seen("aten::bmm", 1, of=2))


@pytest.mark.parametrize(
    ("step", "callee"),
    [
        (lambda x: x.quantile(0.5), "torch.quantile"),
        (lambda x: torch.nanquantile(x, torch.tensor([0.1, 0.5]), dim=0), "torch.nanquantile"),
        (lambda x: torch.sparse.mm(COO, x), "torch.sparse.mm"),
        (lambda x: COO @ x, "torch.sparse.mm"),
        (lambda x: x.repeat(3, 1), "torch.Tensor.repeat"),
        (lambda x: x.repeat_interleave(3, dim=0), "torch.Tensor.repeat"),
    ],
    ids=["quantile", "nanquantile", "sparse.mm", "@", "repeat", "repeat_interleave"],
)
def test_a_call_is_found_once_with_all_that_the_backward_does_for_it(
    step: Callable[[torch.Tensor], torch.Tensor], callee: str, tmp_path: Path
) -> None:
    trace = traced(step, tmp_path)
    calls = found(trace)[callee]
    assert len(calls.rows) == 2
    assert len(calls.nodes) >= 2
    names = {trace.name_of(row) for row in calls.nodes.tolist()}
    assert all("evaluate_function: " in name for name in names)
    assert not any("SumBackward" in name or "AccumulateGrad" in name for name in names)
    # The backward goes the other way: ranges are searched in order of time.
    assert calls.nodes.tolist() == sorted(calls.nodes.tolist())


@pytest.mark.parametrize(
    "step",
    [
        lambda x: F.instance_norm(x[None], weight=torch.ones(50), bias=torch.ones(50)),
        lambda x: x.repeat_interleave(torch.arange(50) % 3, dim=0),
        lambda x: x[:, None].expand(50, 3, 3),
    ],
    ids=["inside a norm", "not as often", "expanded"],
)
def test_what_broadcasting_would_not_spare_is_left_alone(
    step: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    assert "torch.Tensor.repeat" not in found(traced(step, tmp_path))


def test_a_hook_on_gradients_hides_no_node(tmp_path: Path) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.quantile(0.5, dim=0)
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
        return y

    plain = found(traced(lambda x: x.quantile(0.5, dim=0), tmp_path))["torch.quantile"]
    assert len(found(traced(step, tmp_path))["torch.quantile"].nodes) == len(plain.nodes)


def test_what_autograd_is_told_nothing_of_has_no_backward(tmp_path: Path) -> None:
    rows = torch.arange(20) % 7
    calls = found(traced(lambda x: BOUNDED(rows) * x[:20], tmp_path))["torch.embedding_renorm_"]
    assert (len(calls.rows), len(calls.nodes)) == (2, 0)


def test_what_is_done_the_cheaper_way_already_is_not_found(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this layout is a beta
        csr = COO.to_sparse_csr()
    trace = traced(lambda x: PLAIN(torch.arange(50)) * x.median() + torch.sparse.mm(csr, x), tmp_path)
    assert found(trace) == {}


def test_of_an_operator_that_is_costly_at_times_those_calls_are_taken_that_are(tmp_path: Path) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x.argmax(1), x.argmax(0)
        return F.cosine_similarity(x[:, None], x[None, :20], dim=-1)

    trace = traced(step, tmp_path)
    similar, largest = seen("aten::cosine_similarity", 0, of=1), seen("aten::argmax", 1, of=2)
    calls = found(trace, similar, largest)
    assert len(calls["torch.argmax"].rows) == len(calls["torch.cosine_similarity"].rows) == 2
    assert (len(calls["torch.argmax"].nodes), len(calls["torch.cosine_similarity"].nodes) > 4) == (0, True)
    both = trace.rows(named="aten::argmax")
    assert calls["torch.argmax"].rows.tolist() == both[1::2].tolist()
    assert found(trace, seen("aten::argmax", 0, 2, of=3)) == {}, "the steps are not alike"
    assert found(trace, seen("aten::sum", 0, of=1)) == {}, "nothing is known of it"
    assert len(found(trace, seen("aten::argmax", 0, 1, of=2))["torch.argmax"].rows) == 4
    assert found(trace) == {}


def test_parts_are_those_that_the_script_takes_itself_with_the_gradients_that_they_are_given(
    tmp_path: Path,
) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        with torch.no_grad():
            y[0]
        return sum((row for row in y.unbind(0)), y[1] + y[2])  # type: ignore[return-value]

    trace = traced(step, tmp_path)
    per_step = len(trace.rows(named="aten::select")) // 2
    calls = found(trace, seen("aten::select", *range(per_step), of=per_step))["torch.select"]
    assert [trace.name_of(row) for row in calls.nodes.tolist()] == [
        "autograd::engine::evaluate_function: SelectBackward0"
    ] * 4
    assert len(calls.rows) == 4


SELECTED = "autograd::engine::evaluate_function: SelectBackward0"
WRITTEN = "autograd::engine::evaluate_function: torch::autograd::CopySlices"


def test_parts_that_are_written_have_the_gradients_of_all_of_the_tensor(tmp_path: Path) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        values = torch.ones(50, 3, 4)
        values[..., 1] = x
        for k in (2, 3):
            values[..., k] = 2 * x * values[..., k - 1].clone() - values[..., k - 2].clone()
        # One write into what is no part, and one into a part of another tensor.
        other = x * 2.0
        other.view(-1).mul_(2.0)
        other[:25] = 0.0
        return values + other.sum()

    trace = traced(step, tmp_path)
    # The backward selects, too.
    of = len(trace.rows(named="aten::select")) // 2
    calls = found(trace, seen("aten::select", *range(7), of=of, tensors=1), seen("aten::slice", 0, of=1))
    its = calls["torch.select"]
    names = [trace.name_of(row) for row in its.nodes.tolist()]
    assert (names.count(SELECTED), names.count(WRITTEN), len(names)) == (2 * 4, 2 * 3, 14)
    assert its.nodes.tolist() == sorted(its.nodes.tolist())
    assert its.gone.tolist() == its.nodes.tolist(), "a stack writes all once, too, and no gradient of all"
    assert [trace.name_of(row) for row in calls["torch.narrow"].nodes.tolist()] == [WRITTEN] * 2
    assert "torch.narrow" not in found(trace, seen("aten::select", *range(7), of=of))


def test_of_what_is_taken_apart_one_gradient_of_all_stays(tmp_path: Path) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2.0
        return sum(y[:, t] for t in range(3)) + y[:25].sum() + y[25:].sum()  # type: ignore[return-value]

    trace = traced(step, tmp_path)
    per_step = len(trace.rows(named="aten::select")) // 2
    calls = found(trace, seen("aten::select", *range(per_step), of=per_step, tensors=per_step // 3))
    its = calls["torch.select"]
    assert (len(its.rows), len(its.nodes), len(its.gone)) == (6, 6, 4)
    assert set(its.gone.tolist()) < set(its.nodes.tolist())


def test_without_the_copies_the_step_is_longer_than_with_broadcasting() -> None:
    facts = CASES["cpu-thread-pairs"].facts
    diagnosis = diagnose_paths([CASES["cpu-thread-pairs"].folder])
    first = diagnosis.suggestions[0]
    assert (first.fix, first.bound) == ("FX343", False)
    assert first.site is not None
    assert first.site.line == 43
    assert first.predicted_ms is not None
    share = first.predicted_ms / diagnosis.step.true_ms
    by_hand = float(facts["measured_fixed_ms"]) / float(facts["measured_slow_ms"])
    assert by_hand < share < 1.25 * by_hand, "what works on the copies is shorter, too"


@pytest.mark.parametrize(
    ("case", "fix", "line"),
    [
        ("cpu-thread-quantile", "FX331", 48),
        ("cpu-thread-argmax", "FX335", 32),
        ("cpu-thread-integers", "FX336", 35),
        ("cpu-thread-slices", "FX339", 38),
    ],
)
def test_the_step_without_the_call_is_near_what_the_cure_of_the_thread_measured(
    case: str, fix: str, line: int
) -> None:
    facts = CASES[case].facts
    diagnosis = diagnose_paths([CASES[case].folder])
    first = diagnosis.suggestions[0]
    assert (first.fix, first.bound) == (fix, True)
    assert first.site is not None
    assert first.site.line == line
    assert first.predicted_ms is not None
    share = first.predicted_ms / diagnosis.step.true_ms
    by_hand = float(facts["measured_fixed_ms"]) / float(facts["measured_slow_ms"])
    assert 0.65 * by_hand < share < 1.2 * by_hand, "a bound: the other way takes time, too"
