"""Calls that have a cheaper way, found in real traces."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded.cases import CASES

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.ingest import read_trace
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


def found(trace: Trace) -> dict[str, CostlyRows]:
    return {each.callee: each for each in costly_rows(trace)}


@pytest.mark.parametrize(
    ("step", "callee"),
    [
        (lambda x: x.quantile(0.5), "torch.quantile"),
        (lambda x: torch.nanquantile(x, torch.tensor([0.1, 0.5]), dim=0), "torch.nanquantile"),
        (lambda x: torch.sparse.mm(COO, x), "torch.sparse.mm"),
        (lambda x: COO @ x, "torch.sparse.mm"),
    ],
    ids=["quantile", "nanquantile", "sparse.mm", "@"],
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


def test_the_step_without_the_call_is_near_what_the_cure_of_the_thread_measured() -> None:
    case = CASES["cpu-thread-quantile"]
    first = diagnose_paths([case.folder]).suggestions[0]
    assert (first.fix, first.bound) == ("FX331", True)
    assert first.site is not None
    assert (first.site.line, first.site.function) == (48, "marks")
    fixed_ms = float(case.facts["measured_fixed_ms"])
    assert first.predicted_ms is not None
    assert 0.75 * fixed_ms < first.predicted_ms < fixed_ms, "a bound: selecting takes time, too"
