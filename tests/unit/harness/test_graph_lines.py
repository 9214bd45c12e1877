"""Which of the user's lines recorded each node of the backward's graph."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torch_bottleneck.harness import autograd_private, torch_private
from torch_bottleneck.harness.lines import graph_lines
from torch_bottleneck.harness.lines.graph_lines import GraphWatch
from torch_bottleneck.model.run import GraphLines


@pytest.fixture(autouse=True)
def _as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has, and whatever other tests of this process have compiled."""
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cuda")
    monkeypatch.setattr(torch_private, "dynamo_looks", lambda: False)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(5, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        found = self.rows[index]
        return self.out(found)


def noted(graph: GraphLines) -> dict[str, str]:
    return {
        graph.names[node]: graph.texts[line] if line >= 0 else ""
        for node, line in zip(graph.node, graph.line, strict=True)
    }


def seen(model: nn.Module, index: torch.Tensor) -> GraphLines | None:
    watch = GraphWatch()
    assert watch.begin()
    model(index).sum().backward()
    return watch.end()


def test_each_node_has_the_line_of_the_user_that_recorded_it() -> None:
    graph = seen(Table(), torch.tensor([0, 1, 1]))
    assert graph is not None
    lines = noted(graph)
    assert lines["IndexBackward0"] == "found = self.rows[index]"
    assert lines["AddmmBackward0"] == "return self.out(found)"
    assert lines["SumBackward0"] == "model(index).sum().backward()"
    assert graph.names[graph.node[0]] == "IndexBackward0", "in the order in which they were recorded"
    first = inspect.getsourcelines(Table.forward)[1]
    assert graph.sites[0].line == first + 1
    assert (graph.sites[0].function, graph.sites[0].file) == ("forward", __file__)


def test_the_lines_that_lead_to_it_are_known_too() -> None:
    graph = seen(nn.Sequential(Table(), nn.Tanh()), torch.tensor([0, 1, 1]))
    assert graph is not None
    chains = {
        graph.names[node]: [graph.texts[line] for line in graph.chains[chain]]
        for node, chain in zip(graph.node, graph.chain, strict=True)
    }
    assert chains["AddmmBackward0"][:2] == ["return self.out(found)", "model(index).sum().backward()"]
    assert chains["TanhBackward0"][0] == "model(index).sum().backward()", "no line of its module's own"


def test_gradients_are_the_same_and_nothing_is_left_behind() -> None:
    torch.manual_seed(0)
    model, index = Table(), torch.tensor([0, 1, 1])
    engine = autograd_private.engine_owner()
    assert engine is not None
    before = getattr(*engine)
    seen(model, index)
    with_it = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(index).sum().backward()
    assert not torch.is_anomaly_enabled()
    assert getattr(*engine) is before
    assert all(torch.equal(a, p.grad) for a, p in zip(with_it, model.parameters(), strict=True))


def test_anomaly_detection_of_the_script_stays_on() -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert seen(Table(), torch.tensor([0])) is not None
        assert torch.is_anomaly_enabled()
        assert torch.is_anomaly_check_nan_enabled()


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_records_in_backward_is_none_of_the_forward(reentrant: bool) -> None:
    model = Table()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model.out, x, use_reentrant=reentrant).sum()

    watch = GraphWatch()
    watch.begin()
    loss(torch.randn(3, 4, requires_grad=True)).backward()
    graph = watch.end()
    assert graph is not None
    assert len(graph.node) == len(set(graph.node)) or graph.names.count("SumBackward0") == 1


def test_nothing_is_looked_at_without_a_device_or_in_compiled_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_private, "dynamo_looks", lambda: True)
    assert not GraphWatch().begin()
    monkeypatch.setattr(torch_private, "dynamo_looks", lambda: False)
    monkeypatch.setattr(torch_private, "device_kind", lambda: "cpu")
    watch = GraphWatch()
    assert not watch.begin()
    watch.end()
    assert not torch.is_anomaly_enabled()


def test_a_line_of_a_package_of_models_stands_below_the_users() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    watch = GraphWatch()
    watch.begin()
    model(input_ids=torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    graph = watch.end()
    assert graph is not None
    norm = graph.names.index("NativeLayerNormBackward0")
    at = graph.node.index(norm)
    assert graph.texts[graph.line[at]].startswith("model(input_ids=")
    inner = graph.sites[graph.inner[at]]
    assert (inner.file.endswith("modeling_gpt2.py"), "ln_1" in graph.texts[graph.inner[at]]) == (True, True)


def test_the_script_hears_of_its_own_errors_as_ever(capfd: pytest.CaptureFixture[str]) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            raise ValueError("of the script")

    watch = GraphWatch()
    watch.begin()
    x = torch.ones(2, requires_grad=True)
    loss = Fails.apply(x).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="of the script"):
            loss.backward()
    graph = watch.end()
    assert graph is not None
    assert "FailsBackward" in graph.names
    assert not torch.is_anomaly_enabled()
    assert capfd.readouterr() == ("", "")


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


@pytest.mark.parametrize(("trained", "dropped"), [(False, {"ProductBackward": 0.5}), (True, {})])
def test_gradients_that_autograd_drops_are_counted(trained: bool, dropped: dict[str, float]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(4, 5, requires_grad=trained)
    watch = GraphWatch()
    watch.begin()
    loss = Product.apply(Product.apply(x, weight) @ torch.randn(5, 4), weight).sum()
    loss.backward()
    graph = watch.end()
    assert graph is not None
    assert graph.dropped == dropped
    assert x.grad is not None


def test_an_error_of_ours_is_none_of_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_frame: object) -> int:
        raise RuntimeError("ours")

    monkeypatch.setattr(graph_lines, "line_of", fails)
    model, index = Table(), torch.tensor([0, 1])
    graph = seen(model, index)
    assert graph is not None
    assert set(graph.line) == {-1}
    assert all(parameter.grad is not None for parameter in model.parameters())
