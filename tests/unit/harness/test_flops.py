"""FLOPs from recorded shapes, held against sums done by hand."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import profiler
from torch.nn import functional as F
from torch.nn.functional import scaled_dot_product_attention

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.facts.flops import FlopStep
from torch_bottleneck.harness.lines import operator_lines
from torch_bottleneck.harness.profiled import operator_calls
from torch_bottleneck.model.flops import COSTLY_AT_TIMES, OperatorCall, costly_calls
from torch_bottleneck.model.run import FlopCount
from torch_bottleneck.runs.store import Store


@pytest.fixture
def nothing_compiled() -> None:
    """What other tests compiled is forgotten."""
    if torch_private.dynamo_looks():
        torch._dynamo.utils.counters.clear()


def counted(work: object) -> FlopCount:
    step = FlopStep()
    step.start()
    work()  # type: ignore[operator]
    return step.stop(3)


def test_a_linear_layer_takes_three_products_forward_and_backward() -> None:
    layer, x = torch.nn.Linear(16, 24), torch.randn(8, 16, requires_grad=True)
    found = counted(lambda: layer(x).sum().backward())
    assert found.flops == 3 * 2 * 8 * 16 * 24
    assert found.by_dtype == {"float32": found.flops}
    assert found.step == 3


def test_the_products_with_most_flops_are_kept_with_how_many_there_were() -> None:
    def work() -> None:
        for rows in (2, 3, 4, 5):
            F.linear(torch.ones(rows, 8), torch.ones(6, 8), torch.ones(6))
        for _ in range(3):
            torch.ones(5, 8) @ torch.ones(8, 6)
        torch.bmm(torch.ones(10, 7, 4), torch.ones(10, 4, 9))

    found = counted(work)
    assert found.products == [(7, 4, 9, 10), (5, 8, 6, 4), (4, 8, 6, 1), (3, 8, 6, 1), (2, 8, 6, 1)]
    assert found.batches == [10, 1, 1, 1, 1]
    assert found.products_share == 1.0


@pytest.mark.parametrize(
    ("rows", "steps", "mean"), [((6, 6, 9, 9), 2, 6), ((2, 6, 10, 14, 90), 4, 8), ((3, 3), 2, 3)]
)
def test_steps_that_differ_are_counted_on_and_the_mean_is_kept(
    rows: tuple[int, ...], steps: int, mean: int, tmp_path: Path
) -> None:
    layer, flops, store = torch.nn.Linear(16, 24), FlopStep(), Store(tmp_path / "run")
    assert flops.begin(store)
    for i, many in enumerate(rows):
        layer(torch.randn(many, 16))
        if not flops.cut(store, step=30 + i, most=4):
            break
    found = store.run.flops
    assert found is not None
    assert (found.step, found.steps) == (30, steps)
    assert found.flops == found.by_operator["addmm"] == found.by_dtype["float32"] == 2 * mean * 16 * 24
    assert not torch_private.profiler_running()


def parts(x: torch.Tensor) -> None:
    sum(x[:, t].exp() for t in range(6)).sum().backward()  # type: ignore[union-attr]


def test_what_telling_values_apart_computes_is_none_of_the_steps(
    nothing_compiled: None, tmp_path: Path
) -> None:
    flops, store = FlopStep(), Store(tmp_path / "run")
    assert flops.begin(store)
    for step in range(3):
        parts(torch.randn(4, 6, requires_grad=True))
        if not flops.cut(store, step=step, most=3):
            break
    found = store.run.flops
    assert found is not None
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], acc_events=False) as alone:
        parts(torch.randn(4, 6, requires_grad=True))
    of = len(operator_calls(alone, {"aten::select"}) or ())
    assert [(call.callee, call.of) for call in found.costly] == [("torch.select", of)]


def test_the_lines_of_operators_are_those_of_the_first_step(
    nothing_compiled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_lines, "torch_private", SimpleNamespace(device_kind=lambda: "cuda"))
    layer, flops, store = torch.nn.Linear(16, 24), FlopStep(), Store(tmp_path / "run")
    assert flops.begin(store)
    for i, calls in enumerate((2, 5)):
        for _ in range(calls):
            layer(torch.ones(3, 16)).cumsum(0)
        flops.cut(store, step=i, most=2)
    found = store.run.operators
    assert found is not None
    assert len(found.calls["aten::cumsum"]) == 2
    chains = [found.chains[at] for at in found.calls["aten::cumsum"]]
    assert {found.texts[chain[0]] for chain in chains} == {"layer(torch.ones(3, 16)).cumsum(0)"}


def test_behind_the_counted_steps_come_two_for_other_ways(
    nothing_compiled: None, own_clock: None, each_way_takes_half: None, tmp_path: Path
) -> None:
    flops, store = FlopStep(), Store(tmp_path / "run")
    a, b = (torch.randn(300, 64, requires_grad=True) for _ in range(2))
    assert flops.begin(store)
    for step in range(9):
        (a[:, None] * b).sum(-1).square().mean().backward()
        if not flops.cut(store, step=step, most=2, tries=True):
            break
    found = store.run.flops
    assert found is not None
    assert (step, found.steps) == (3, 2)
    assert {call.callee for call in found.costly} == {"way:sum-of-products"}
    assert not torch_private.profiler_running()


def test_a_fork_tries_no_ways(nothing_compiled: None, tmp_path: Path) -> None:
    flops, store = FlopStep(), Store(tmp_path / "run")
    assert flops.begin(store)
    for step in range(2):
        (torch.randn(300, 1, 64) * torch.randn(300, 64)).sum(-1)
        assert flops.cut(store, step=step, most=2, tries=True)
    assert torch_private.function_modes()
    flops.forked()
    assert not torch_private.function_modes()


def test_a_script_that_ends_while_ways_are_tried_keeps_what_was_counted(
    nothing_compiled: None, own_clock: None, tmp_path: Path
) -> None:
    flops, store = FlopStep(), Store(tmp_path / "run")
    a, b = (torch.randn(300, 64, requires_grad=True) for _ in range(2))
    assert flops.begin(store)
    for step in range(3):
        (a[:, None] * b).sum(-1).square().mean().backward()
        assert flops.cut(store, step=step, most=2, tries=True)
    flops.abandon(store, reason="the script ended")
    assert store.run.flops is not None
    assert store.run.artefacts["flops"].status == "ok"
    assert not torch_private.profiler_running()
    assert not torch_private.function_modes()


def test_a_script_that_ends_while_steps_are_counted_keeps_what_was_counted(tmp_path: Path) -> None:
    layer, flops, store = torch.nn.Linear(16, 24), FlopStep(), Store(tmp_path / "run")
    assert flops.begin(store)
    layer(torch.randn(5, 16))
    assert flops.cut(store, step=30, most=4)
    flops.abandon(store, reason="the script ended")
    assert store.run.flops is not None
    assert (store.run.flops.steps, store.run.flops.flops) == (1, 2 * 5 * 16 * 24)
    assert store.run.artefacts["flops"].status == "ok"
    assert not torch_private.profiler_running()


def test_the_type_is_that_of_the_operands_under_autocast() -> None:
    layer, x = torch.nn.Linear(16, 24), torch.randn(8, 16)

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            layer(x)

    assert counted(work).by_dtype == {"bfloat16": 2.0 * 8 * 16 * 24}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2)])
def test_a_convolution_counts_its_output(stride: int, padding: int, dilation: int, groups: int) -> None:
    layer = torch.nn.Conv2d(4, 6, 3, stride=stride, padding=padding, dilation=dilation, groups=groups)
    x = torch.randn(2, 4, 9, 8, requires_grad=True)
    shape = layer(x).shape
    once = 2.0 * math.prod(shape) * (4 // groups) * 9
    assert counted(lambda: layer(x)).flops == once
    # The first layer's data needs no gradient: one product fewer.
    assert counted(lambda: layer(x).sum().backward()).flops == 3 * once
    assert counted(lambda: layer(x.detach()).sum().backward()).flops == 2 * once


def test_a_transposed_convolution_counts_its_input() -> None:
    layer, x = torch.nn.ConvTranspose2d(4, 6, 3, stride=2), torch.randn(2, 4, 5, 5)
    assert counted(lambda: layer(x)).flops == 2.0 * 2 * 4 * 25 * 6 * 9


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_counts_what_a_causal_mask_leaves(causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    forward = 2 * 2 * 2 * 3 * 16 * 16 * 8 * (0.5 if causal else 1.0)
    found = counted(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward())
    assert found.flops == pytest.approx(3.5 * forward)


def test_products_of_batches_and_sums_are_counted_once_each() -> None:
    a, b, c = torch.randn(3, 4, 5), torch.randn(3, 5, 6), torch.randn(3, 4, 6)
    assert counted(lambda: (a @ b, torch.baddbmm(c, a, b))).flops == 2 * 2 * 3 * 4 * 5 * 6


def test_a_compiled_model_counts_its_library_calls() -> None:
    layer, x = torch.compile(torch.nn.Linear(16, 24), backend="aot_eager"), torch.randn(8, 16)
    layer(x).sum().backward()
    assert counted(lambda: layer(x).sum().backward()).flops == 2 * 2 * 8 * 16 * 24


def test_counting_leaves_no_profiler_behind() -> None:
    counted(lambda: None)
    assert not torch.autograd.profiler._is_profiler_enabled


@pytest.mark.usefixtures("nothing_compiled")
def test_masks_that_mask_nothing_are_counted_with_their_line_and_attention_is_put_back(
    tmp_path: Path,
) -> None:
    store, flops, q = Store(tmp_path / "run"), FlopStep(), torch.randn(1, 2, 4, 8)
    original = F.scaled_dot_product_attention
    assert flops.begin(store)
    everywhere = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    for mask in (
        None,
        everywhere,
        everywhere.expand(1, 2, 4, 4),
        torch.zeros(4, 4),
        torch.ones(4, 4).tril().bool(),
    ):
        F.scaled_dot_product_attention(q, q, q, mask)
    scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(4, 4, requires_grad=True))
    scaled_dot_product_attention(q, q, q, attn_mask=torch.full((4, 4), -1.0))
    assert flops.cut(store, step=3, most=2)
    assert not flops.cut(store, step=4, most=2)
    masks = store.run.masks
    assert masks is not None
    assert (masks.calls, masks.masked, masks.idle) == (7, 5, 3)
    assert masks.sites[0].site.file == __file__
    # What is expanded is the same as what it was made of.
    assert [(call.mask, call.mask_dtype, call.count) for call in masks.shapes] == [
        ((1, 1, 1, 4), "bool", 2),
        ((4, 4), "float32", 1),
    ]
    assert {(call.query, call.dtype, call.gradients) for call in masks.shapes} == {
        ((1, 2, 4, 8), "float32", False)
    }
    assert F.scaled_dot_product_attention is scaled_dot_product_attention is original


@pytest.mark.usefixtures("nothing_compiled")
def test_attention_is_put_back_where_the_script_ends_in_between(tmp_path: Path) -> None:
    store, flops, original = Store(tmp_path / "run"), FlopStep(), F.scaled_dot_product_attention
    assert flops.begin(store)
    assert F.scaled_dot_product_attention is not original
    flops.abandon(store, reason="the script ended")
    assert F.scaled_dot_product_attention is scaled_dot_product_attention is original
    assert store.run.masks is None


def test_calls_with_a_cheaper_way_are_kept_by_their_place_among_those_of_the_step() -> None:
    whole, x, p = torch.ones(3, 4, 4, dtype=torch.int64), torch.randn(2, 3, 4), torch.rand(5, 6)

    def work() -> None:
        x[0] @ x[1].T, whole @ whole, x @ x.mT, whole[0] @ whole[1]
        x.argmax(-1), x.argmax(1), x.argmax(), torch.argmin(x, 2), torch.argmin(x, -3)
        F.cosine_similarity(p, p), F.cosine_similarity(p[:, None], p[None], dim=-1)
        F.cosine_similarity(p, p[:1])
        p.multinomial(9, replacement=True), p.multinomial(2), p.multinomial(1, replacement=True)

    assert [(each.operator, each.places, each.of) for each in counted(work).costly] == [
        ("aten::argmax", [1], 4),  # multinomial takes one, too
        ("aten::argmin", [1], 2),
        ("aten::bmm", [0], 2),
        ("aten::cosine_similarity", [1], 3),
        ("aten::mm", [1], 2),
        ("aten::multinomial", [1, 2], 3),
        ("aten::select", [0, 1], 4),
        ("aten::select", [2, 3], 4),
    ]


def test_products_of_one_number_are_told_from_products_of_integers() -> None:
    x, whole = torch.randn(6, 1, 8), torch.ones(6, 1, 8, dtype=torch.int64)

    def work() -> None:
        x @ x.mT, whole @ whole.mT, x.mT @ x, x @ torch.randn(6, 8, 2)

    found = {each.callee: each.places for each in counted(work).costly}
    assert found == {"torch.bmm": [0], "torch.matmul": [1]}


def test_parts_of_one_tensor_count_where_there_are_several_and_none_has_anything_of_another() -> None:
    x, y, z = torch.randn(2, 6, 4), torch.randn(2, 6), torch.randn(6)

    def work() -> None:
        [x[:, t] for t in range(5)], x[0], x[:, :, 3], y[:, 1], y[:, 1]
        x[..., :2], x[..., 2:], x[:, :-1], x[:, 1:], y[:, 0:6], y[:, -2:], z[:3], z[2:]

    # torch 2.6 records whole slices, too.
    found = {each.operator: len(each.places) for each in counted(work).costly}
    assert found == {"aten::select": 5, "aten::slice": 2}


def test_parts_are_told_by_the_shape_of_what_they_are_taken_of_and_of_how_many_tensors() -> None:
    x, y, z = torch.randn(2, 6, 4), torch.randn(2, 6, 4), torch.randn(2, 6)

    def work() -> None:
        for t in range(6):
            x[:, t], y[:, t], z[:, t]
        x[:, 3], z[0], z[1]

    found = [(len(each.places), each.tensors) for each in counted(work).costly]
    assert found == [(13, 2), (6, 1), (2, 1)]


def test_calls_recorded_with_other_arguments_count_for_nothing() -> None:
    calls = [OperatorCall(name, [], [], []) for name in COSTLY_AT_TIMES]
    assert costly_calls(calls, on_gpu=False) == []
