"""Outputs that the loss does not look at: which nodes work on them, and how much of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from recorded.cases import CASES
from torch import nn
from torch.nn import functional as F

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.lines.graph_lines import GraphWatch

ROWS, LENGTH, ASKED, WORDS = 4, 10, 6, 50
TOKENS = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % WORDS


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def ignored(logits: torch.Tensor) -> torch.Tensor:
    labels = TOKENS.clone()
    labels[:, :ASKED] = -100
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def masked(logits: torch.Tensor) -> torch.Tensor:
    each = F.cross_entropy(logits.flatten(0, 1), TOKENS.flatten(), reduction="none").view(ROWS, LENGTH)
    mask = (torch.arange(LENGTH) >= ASKED).float()
    return (each * mask).sum() / mask.sum()


def last(logits: torch.Tensor) -> torch.Tensor:
    return logits[:, -1].square().mean()


def spread(logits: torch.Tensor) -> torch.Tensor:
    """Every row counts, in more numbers than the last layer makes."""
    return F.interpolate(logits.transpose(1, 2), scale_factor=3.0).square().mean()


def paired(logits: torch.Tensor) -> torch.Tensor:
    return (logits[:, :, None] * logits[:, None]).mean()


def every(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), TOKENS.flatten())


def idle(loss: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, float]:
    """Return the share of each node with idle rows, by its name."""
    model = nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, WORDS, bias=False))
    watch = GraphWatch()
    watch.begin()
    loss(model(TOKENS)).backward()
    graph = watch.end()
    if graph is None:
        return {}
    return {graph.names[node]: share for node, share in zip(graph.node, graph.idle, strict=True) if share}


@pytest.mark.parametrize("loss", [ignored, masked])
def test_rows_without_a_part_in_the_loss_are_those_of_the_last_layer(
    loss: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    found = idle(loss)
    # Not the layers below it, nor what follows the loss of each row.
    assert set(found) == {
        "MmBackward0",
        "UnsafeViewBackward0",
        "ViewBackward0",
        "LogSoftmaxBackward0",
        "NllLossBackward0",
    }
    assert list(found.values()) == pytest.approx([ASKED / LENGTH] * len(found))


def test_what_follows_a_selection_works_on_what_counts() -> None:
    found = idle(last)
    assert found["MmBackward0"] == pytest.approx(0.9)
    assert "PowBackward0" not in found


@pytest.mark.parametrize("loss", [spread, paired])
def test_more_numbers_of_rows_that_count_are_no_idle_rows(
    loss: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert idle(loss) == {}


def test_where_all_rows_count_there_is_nothing_to_say() -> None:
    assert idle(every) == {}


class Branch(nn.Module):
    """Half of the rows skip its layers, as with stochastic depth; all is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = (torch.arange(len(x)) % 2).float()[:, None]
        return self.head(x + gate * self.last(self.first(x).relu()))


def shares(loss: Callable[[torch.Tensor], torch.Tensor]) -> tuple[dict[str, float], list[float]]:
    """Return the share of idle rows in the branch by name of its nodes but products, and of all products."""
    below = nn.Linear(8, 8)
    watch = GraphWatch()
    watch.begin()
    loss(Branch()(below(torch.randn(20, 8)))).backward()
    graph = watch.end()
    if graph is None:
        return {}, []
    each = [(graph.names[node], share) for node, share in zip(graph.node, graph.idle, strict=True)]
    products = [share for name, share in each if name == "AddmmBackward0"]
    return {name: share for name, share in each if share and name != "AddmmBackward0"}, products


def test_rows_that_a_model_multiplies_by_zero_are_those_of_the_layers_before() -> None:
    others, products = shares(lambda logits: F.cross_entropy(logits, torch.arange(20)))
    # The layer below the branch and the last one need all rows, and so does their sum.
    assert products == pytest.approx([0.0, 0.5, 0.5, 0.0])
    assert others == pytest.approx({"ReluBackward0": 0.5, "MulBackward0": 0.5})


def test_rows_that_the_loss_leaves_out_are_idle_in_the_last_layer_only() -> None:
    """A fifth of the rows has no label: of the branch, half of these are left out for another reason."""

    def loss(logits: torch.Tensor) -> torch.Tensor:
        labels = torch.arange(20)
        labels[:4] = -100
        return F.cross_entropy(logits, labels)

    _, products = shares(loss)
    assert products == pytest.approx([0.0, 0.4, 0.4, 0.2])


def curved(detaches: bool) -> tuple[float, object]:
    """Return the largest first gradient of outputs that wide layers make, and what is idle in the second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    watch = GraphWatch()
    watch.begin()
    outputs = model(torch.randn(20, 8))
    away = (outputs - (outputs.detach() if detaches else 1.0)).square().sum()
    slope = torch.autograd.grad(away, list(model.parameters()), create_graph=True)
    sum(each.sum() for each in slope).backward()
    return max(float(each.detach().abs().max()) for each in slope), watch.end()


@pytest.mark.parametrize("detaches", [True, False])
def test_zero_rows_say_nothing_where_the_gradient_s_gradient_is_wanted(detaches: bool) -> None:
    largest, found = curved(detaches)
    assert (largest == 0.0) == detaches
    assert found is None


def test_nothing_is_launched_into_a_graph_that_the_script_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "is_capturing", lambda: True)
    assert idle(ignored) == {}


def test_on_the_cpu_their_price_is_their_share_of_both_ways(tmp_path: Path) -> None:
    case = CASES["cpu-thread-unread-gradients"].folder
    folder = tmp_path / "run"
    shutil.copytree(case, folder)
    run = msgspec.json.decode((case / "run.json").read_bytes())
    costs = []
    for share in (0.4, 0.8):
        run["graph"]["idle"] = [share] * len(run["graph"]["node"])
        (folder / "run.json").write_bytes(msgspec.json.encode(run))
        found = {finding.code: finding for finding in diagnose_paths([folder]).findings}["BN320"]
        assert found.cost_ms is not None
        costs.append(found.cost_ms)
    assert costs[1] == pytest.approx(2 * costs[0], rel=0.02)
    # Forward and backward together are nearly all of this step.
    assert 0.6 < costs[1] / (0.8 * diagnose_paths([folder]).step.true_ms) < 1.0
