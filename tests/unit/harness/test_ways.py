"""Other ways to what a call computes: the same values and gradients, found where they are faster."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import profiler
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.lines.functions import Functions
from torch_bottleneck.harness.ways import timing
from torch_bottleneck.harness.ways import watch as watch_module
from torch_bottleneck.harness.ways.timing import stands_in, timed
from torch_bottleneck.harness.ways.watch import WAYS, WayWatch
from torch_bottleneck.harness.ways.way import Call, Instead, same, tensors_of
from torch_bottleneck.model.run import SourceSite

# Some releases of torch warn of what `acc_events` is asked not to do.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Profiler clears events"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
]


class Calls(TorchFunctionMode):
    """Notes each call, and which of them has made a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Call] = []
        self.outputs: list[tuple[torch.Tensor, Call]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        call = Call(func, "real" if name == "__get__" else name, args, kwargs or {}, lambda _: True)
        self.all.append(call)
        self.outputs += [(each, call) for each in tensors_of(out)]
        return out

    def made(self, value: Any) -> Call | None:
        return next((call for out, call in self.outputs if out is value), None)


def found(function: Callable[[], Any], callee: str) -> Instead:
    """Return the other way for the last call that has one of this name."""
    with Calls() as calls:
        function()
    for call in reversed(calls.all):
        for way in WAYS.get(call.name, ()):
            if way.callee == callee and (instead := way.instead(call, calls.made)) is not None:
                return instead
    raise AssertionError(f"no way {callee} of {[call.name for call in calls.all]}")


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def spd(*shape: int) -> torch.Tensor:
    x = torch.randn(*shape, dtype=torch.float64)
    return (x @ x.mT + shape[-1] * torch.eye(shape[-1])).requires_grad_()


def square() -> torch.Tensor:
    return (torch.randn(5, 3, 3, dtype=torch.float64) + 4 * torch.eye(3)).requires_grad_()


def skew() -> torch.Tensor:
    x = torch.randn(4, 3, 3, dtype=torch.float64)
    return x - x.mT


def attended(scores: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], rank: int) -> torch.Tensor:
    q, k, v = (leaf(*((2, 3, 6, 8)[4 - rank :])) for _ in range(3))
    return scores(q, k.transpose(-1, -2)).softmax(dim=-1) @ v


def masked(mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(*(leaf(2, 3, 6, 8) for _ in range(3)), attn_mask=mask)


def pairs_apart(x: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(1) - x.unsqueeze(2)).abs()


def bell() -> torch.Tensor:
    line = torch.exp(-(torch.arange(-2.0, 3.0, dtype=torch.float64) ** 2))
    return line[:, None] * line


LIMITS = torch.tensor([0.5, -1.0, 0.0, 1.0], dtype=torch.float64)
NUMBERS = torch.tensor([[-2.0, 0.5, 0.3], [1.0, 9.0, -1.0]], dtype=torch.float64)


def nearly_empty() -> torch.Tensor:
    return torch.eye(9, dtype=torch.float64) * 2


def windows(x: torch.Tensor) -> torch.Tensor:
    return x.unfold(2, 4, 2).unfold(3, 3, 1)


SOURCES, TARGETS = torch.randint(0, 9, (2, 40))


def messages(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    rows = x.index_select(0, SOURCES)
    rows = rows if weight is None else weight * rows
    index = TARGETS[:, None].expand_as(rows)
    return torch.zeros(9, 3, dtype=torch.float64).scatter_add(0, index, rows)


COUNTS = torch.tensor([0.0, 0.0, 3.0, 0.0, 1.0, 0.0] * 30)
INDEX = torch.randint(0, 4, (7,))
ROWS = torch.stack([INDEX, INDEX.flip(0)])[:, :, None].expand(2, 7, 3)

CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "solve": ("way:inverse", lambda: torch.linalg.inv(square()) @ leaf(5, 3, 2)),
    "solve for a vector": ("way:inverse", lambda: square()[0].inverse() @ leaf(3)),
    "solve from the right": ("way:inverse", lambda: leaf(5, 2, 3) @ torch.linalg.inv(square())),
    "matrix product": ("way:sum-of-products", lambda: (leaf(5, 1, 8) * leaf(1, 4, 8)).sum(-1)),
    "a vector": ("way:sum-of-products", lambda: (leaf(5, 3, 8) * leaf(8)).sum(-1, keepdim=True)),
    "with a vector": ("way:sum-of-products", lambda: (leaf(1, 8) * leaf(5, 8)).sum(-1)),
    "mean of two axes": ("way:sum-of-products", lambda: (leaf(5, 3, 8) * leaf(5, 3, 8)).mean((0, 2))),
    "expanded": ("way:sum-of-products", lambda: (leaf(5, 1).expand(5, 6) * leaf(5, 6)).sum(1)),
    "expanded over the sum": ("way:sum-of-products", lambda: (leaf(5, 1).expand(5, 6) * leaf(5, 1)).sum(1)),
    "from the right": ("way:order-of-products", lambda: leaf(6, 5) @ leaf(5, 4) @ leaf(4, 1)),
    "from the left": ("way:order-of-products", lambda: leaf(1, 5) @ (leaf(5, 4) @ leaf(4, 6))),
    "pair by pair": (
        "way:order-of-products",
        lambda: torch.einsum("ij,jk,kl->il", leaf(2, 3), leaf(3, 4), leaf(4, 5)),
    ),
    "einsum of two": (
        "way:sum-of-products",
        lambda: torch.einsum("iajb,cjd->idacb", leaf(2, 3, 4, 5), leaf(6, 4, 3)),
    ),
    "einsum of two, complex": (
        "way:sum-of-products",
        lambda: torch.einsum(
            "abc,db->adc", torch.randn(2, 3, 2, dtype=torch.complex64), leaf(3, 3).to(torch.complex64)
        ),
    ),
    "rows that two numbers tell": ("way:whole-rows", lambda: leaf(4, 5, 3)[INDEX[:, None], INDEX, :]),
    "numbers of three axes": ("way:whole-rows", lambda: leaf(4, 4, 4)[INDEX, INDEX, INDEX]),
    "rows of each": ("way:whole-rows", lambda: leaf(2, 4, 3).gather(1, ROWS)),
    "rows added up in each": ("way:whole-rows", lambda: leaf(2, 4, 3).scatter_add(1, ROWS, leaf(2, 7, 3))),
    "matrices for some axes": ("way:layout", lambda: leaf(5, 3, 1, 4) @ leaf(3, 4, 2)),
    "matrices for other axes": ("way:layout", lambda: leaf(1, 3, 6, 4) @ leaf(5, 1, 1, 4, 2)),
    "matrices for one": ("way:layout", lambda: leaf(5, 6, 4) @ leaf(1, 4, 2)),
    "one-hot": ("way:one-hot", lambda: F.one_hot(INDEX, 4).double() @ leaf(4, 3)),
    "one-hot by linear": ("way:one-hot", lambda: F.linear(F.one_hot(INDEX, 4).double(), leaf(3, 4))),
    "rows added": (
        "way:one-hot",
        lambda: (
            torch.zeros(2, 9, dtype=torch.float64).scatter(1, torch.tensor([[1, 4], [0, 8]]), leaf(2, 2))
            @ leaf(9, 3)
        ),
    ),
    "a Kronecker product": (
        "way:order-of-products",
        lambda: F.linear(leaf(5, 6), torch.kron(leaf(4, 2), leaf(2, 3)) * 0.5),
    ),
    "a weight and its update": (
        "way:order-of-products",
        lambda: F.linear(
            leaf(2, 5, 6), leaf(4, 6) + leaf(4, 2) @ leaf(2, 6) / 2, torch.ones(4, dtype=torch.float64)
        ),
    ),
    "pairs of numbers": ("way:pairs-apart", lambda: pairs_apart(leaf(2, 5, 3)).sum(dim=(1, 2))),
    "their mean": ("way:pairs-apart", lambda: pairs_apart(leaf(2, 5)).mean((-1, -2))),
    "axis by axis": (
        "way:convolution",
        lambda: F.conv3d(
            leaf(2, 1, 9, 9, 9), torch.ones(1, 1, 3, 5, 3, dtype=torch.float64), padding=(1, 2, 1)
        ),
    ),
    "a bell for each channel": (
        "way:convolution",
        lambda: F.conv2d(leaf(2, 3, 9, 9), bell()[None, None].repeat(3, 1, 1, 1), groups=3, stride=2),
    ),
    "frames": ("way:frames", lambda: F.unfold(leaf(2, 3, 8, 9), (2, 3), stride=(2, 1), padding=1)),
    "integers": ("torch.matmul", lambda: torch.arange(6).view(2, 3) @ torch.arange(6).view(3, 2)),
    "dots": ("torch.bmm", lambda: torch.bmm(leaf(5, 1, 8), leaf(5, 8, 1))),
    "dots by einsum": ("torch.bmm", lambda: torch.einsum("bd,bd->b", leaf(5, 8), leaf(5, 8))),
    "pairs": ("torch.cosine_similarity", lambda: F.cosine_similarity(leaf(5, 1, 8), leaf(1, 4, 8), dim=-1)),
    "distances": ("way:distances", lambda: torch.cdist(leaf(5, 8), leaf(4, 8))),
    "svd": ("way:decomposition", lambda: torch.linalg.svd(leaf(12, 3), full_matrices=False)),
    "svd with V": ("way:decomposition", lambda: torch.svd(torch.randn(12, 3))),
    "singular values": ("way:decomposition", lambda: torch.linalg.svdvals(leaf(6, 3))),
    "largest of them": ("way:decomposition", lambda: torch.linalg.matrix_norm(leaf(2, 6, 3), 2)),
    "all of them": ("way:decomposition", lambda: torch.linalg.norm(leaf(6, 3), "nuc")),
    "symmetric": ("way:decomposition", lambda: torch.linalg.eigvals(spd(4, 4))),
    "pseudo-inverse": ("way:decomposition", lambda: torch.linalg.pinv(leaf(6, 3))),
    "wide pseudo-inverse": ("way:decomposition", lambda: torch.linalg.pinv(leaf(3, 6))),
    "cholesky solve": ("way:decomposition", lambda: torch.linalg.solve(spd(2, 4, 4), leaf(2, 4, 3))),
    "cholesky log det": ("way:decomposition", lambda: torch.logdet(spd(2, 4, 4))),
    "cholesky inverse": ("way:decomposition", lambda: torch.linalg.inv(spd(2, 4, 4))),
    "formula inverse": ("way:small-matrices", lambda: torch.linalg.inv(square())),
    "formula of two": ("way:small-matrices", lambda: torch.linalg.inv(square()[:, :2, :2])),
    "formula solve": ("way:small-matrices", lambda: torch.linalg.solve(square(), leaf(5, 3))),
    "formula det": ("way:small-matrices", lambda: torch.linalg.det(square())),
    "rotation": ("way:small-matrices", lambda: torch.linalg.matrix_exp(skew())),
    "mostly equal": ("way:once-per-value", lambda: torch.lgamma(COUNTS + 0.5)),
    "expanded function": ("way:once-per-value", lambda: leaf(5, 1).expand(5, 6).exp()),
    "a power": ("way:once-per-value", lambda: leaf(5, 6).pow(5)),
    "first of a sort": ("way:sort", lambda: leaf(3, 9).sort(-1, descending=True)[0][:, :2]),
    "last of a sort": ("way:sort", lambda: leaf(9).sort().values[-2:]),
    "largest of a sort": ("way:sort", lambda: leaf(3, 9).sort(descending=True).values[:, 0]),
    "places of a sort": ("way:sort", lambda: leaf(9).argsort()[:3]),
    "argmax": ("torch.argmax", lambda: leaf(3, 4).argmax(0)),
    "quantile": ("torch.quantile", lambda: leaf(3, 9).quantile(0.3, dim=1, keepdim=True)),
    "unique rows": ("torch.unique", lambda: torch.randint(0, 3, (20, 2)).unique(dim=0)),
    "rows by index": ("way:whole-rows", lambda: leaf(4, 3).gather(0, INDEX[:, None].expand(7, 3))),
    "rows summed": (
        "way:whole-rows",
        lambda: leaf(4, 3).scatter_add(0, INDEX[:, None].expand(7, 3), leaf(7, 3)),
    ),
    "side by side": ("way:layout", lambda: leaf(4, 3).t().softmax(-1)),
    "along the last axis": ("way:layout", lambda: leaf(4, 3).cumsum(0)),
    "sorted along the last axis": ("way:layout", lambda: leaf(4, 3).sort(dim=0)),
    "running maximum": ("way:layout", lambda: leaf(4, 3).cummax(0)),
    "in float32": ("way:type", lambda: torch.randn(4, 3).bfloat16().softmax(-1)),
    "in 32 bits": ("way:type", lambda: torch.arange(9).remainder(4)),
    "half a transform": ("way:real-fft", lambda: torch.fft.fft(leaf(3, 9), dim=0)),
    "real part": ("way:real-fft", lambda: torch.fft.ifft(torch.fft.fft(leaf(3, 8))).real),
    "by transforms": (
        "way:convolution",
        lambda: F.conv1d(leaf(2, 3, 40), leaf(4, 3, 17), leaf(4), padding=8),
    ),
    "by transforms of groups": (
        "way:convolution",
        lambda: F.conv1d(leaf(2, 4, 40), leaf(4, 2, 17), groups=2),
    ),
    "by a product": ("way:convolution", lambda: F.conv2d(leaf(2, 3, 5, 5), leaf(4, 3, 1, 1), leaf(4))),
    "by patches": (
        "way:convolution",
        lambda: F.conv2d(leaf(2, 3, 6, 6), leaf(4, 3, 3, 3), leaf(4), stride=3),
    ),
    "without groups": ("way:convolution", lambda: F.conv2d(leaf(2, 4, 5, 5), leaf(6, 2, 3, 3), groups=2)),
    "pooled to one": ("way:convolution", lambda: F.adaptive_avg_pool2d(leaf(2, 3, 5, 5), 1)),
    "nearest": ("way:convolution", lambda: F.interpolate(leaf(2, 3, 5, 5), scale_factor=2)),
    "attention": ("way:attention", lambda: attended(lambda q, k: q @ k / 8**0.5, 4)),
    "attention of batches": (
        "way:attention",
        lambda: attended(
            lambda q, k: torch.baddbmm(torch.empty(3, 6, 6, dtype=q.dtype), q, k, beta=0, alpha=0.3), 3
        ),
    ),
    "attention with a mask": (
        "way:attention",
        lambda: attended(lambda q, k: (q @ k).mul(0.3).masked_fill(torch.eye(6).bool(), -math.inf), 4),
    ),
    "a causal mask": ("way:mask", lambda: masked(torch.ones(6, 6, dtype=torch.bool).tril())),
    "a causal bias": ("way:mask", lambda: masked(torch.full((6, 6), -math.inf).triu(1).double()[None, None])),
    "windows": (
        "way:mask",
        lambda: masked(torch.block_diag(*[torch.ones(2, 2)] * 3).bool().expand(2, 3, 6, 6)),
    ),
    "diagonal": ("way:diagonal", lambda: (leaf(2, 4, 6) @ leaf(2, 6, 5)).diagonal(dim1=-2, dim2=-1)),
    "diagonal of a matrix": ("way:diagonal", lambda: (leaf(4, 6) @ leaf(6, 4)).diag()),
    "trace": ("way:diagonal", lambda: torch.trace(torch.mm(leaf(4, 6), leaf(6, 4)))),
    "bags": ("way:bag", lambda: F.embedding(INDEX.view(1, 7), leaf(4, 3)).sum(1)),
    "means of bags": ("way:bag", lambda: F.embedding(INDEX.repeat(2, 1), leaf(4, 3)).mean(dim=-2)),
    "bags with padding": (
        "way:bag",
        lambda: F.embedding(INDEX.repeat(2, 3, 1).clamp(max=2), leaf(4, 3), padding_idx=3).sum(2),
    ),
    "above limits": ("way:search", lambda: (NUMBERS[..., None] > LIMITS).sum(-1)),
    "from limits on": ("way:search", lambda: torch.le(LIMITS, NUMBERS[..., None]).float().sum(dim=-1)),
    "limits above": ("way:search", lambda: (LIMITS[:, None, None] > NUMBERS).long().sum(0)),
    "limits from it on": ("way:search", lambda: (NUMBERS[:, None] <= LIMITS[:, None]).sum(1)),
    "one of a list": ("way:search", lambda: (NUMBERS.unsqueeze(-1) == LIMITS).any(-1)),
    "logs of products": (
        "way:sum-of-exps",
        lambda: torch.logsumexp(leaf(2, 5, 4).unsqueeze(-1) + leaf(4, 6), dim=-2),
    ),
    "logs with a vector": ("way:sum-of-exps", lambda: (leaf(5, 4) + leaf(4)).logsumexp(1)),
    "means of windows": ("way:convolution", lambda: leaf(2, 9).unfold(1, 3, 2).mean(-1)),
    "largest of windows": ("way:convolution", lambda: leaf(3, 2, 9, 8).unfold(2, 3, 3).amax(-1)),
    "means of two axes": ("way:convolution", lambda: windows(leaf(2, 3, 9, 8)).mean((-1, -2))),
    "bilinear": ("way:bilinear", lambda: F.bilinear(leaf(5, 3), leaf(5, 4), leaf(6, 3, 4), leaf(6))),
    "bilinear without a bias": (
        "way:bilinear",
        lambda: F.bilinear(leaf(2, 5, 3), leaf(2, 5, 4), leaf(6, 3, 4)),
    ),
    "mostly zeros": ("way:zeros", lambda: nearly_empty() @ leaf(9, 3)),
    "mostly zeros for a batch": ("way:zeros", lambda: torch.matmul(nearly_empty(), leaf(2, 9, 3))),
    "messages along links": ("way:bag", lambda: messages(leaf(9, 3))),
    "messages with a weight": ("way:bag", lambda: messages(leaf(9, 3), torch.randn(40, 1).double())),
    "rows added for each target": (
        "way:bag",
        lambda: torch.ones(9, 3, dtype=torch.float64).index_add(0, TARGETS, leaf(9, 3)[SOURCES]),
    ),
    "scaled rows": ("way:scaled", lambda: torch.diag(leaf(9)) @ leaf(2, 9, 3)[0]),
    "scaled columns": ("way:scaled", lambda: leaf(3, 9).mm(torch.diag_embed(leaf(9)))),
    "centred": ("way:scaled", lambda: (torch.eye(9) - 1 / 9).double() @ leaf(9, 3)),
    "centred columns": ("way:scaled", lambda: leaf(2, 3, 9) @ (torch.eye(9) - 1 / 9).double()),
    "attention with a bias": (
        "way:attention",
        lambda: attended(lambda q, k: q @ k * 0.3 + torch.eye(6, dtype=q.dtype), 4),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_another_way_gives_the_same_values_and_gradients(case: str) -> None:
    torch.manual_seed(1)
    callee, function = CASES[case]
    instead = found(function, callee)
    leaves = tuple(each.detach().requires_grad_(each.requires_grad) for each in instead.inputs)
    own = timing._Runs(instead.own, leaves)
    assert own.worked
    for k, other in enumerate(instead.others):
        way = timing._Runs(other, leaves)
        assert way.worked, k
        assert timing._agree(instead, own, way), k


NONE: dict[str, Callable[[], Any]] = {
    "the inverse alone": lambda: torch.linalg.inv(square().expand(5, 3, 3)[:, :3, :3] + 0 * leaf(3, 3)),
    "a sum of a sum": lambda: (leaf(3, 4) + leaf(3, 4)).sum(-1),
    "many of a row": lambda: torch.rand(4, 5, dtype=torch.float64) @ leaf(5, 2),
    "a sort read whole": lambda: leaf(9).sort().values[:],
    "a sort read by a mask": lambda: leaf(9).sort().values[torch.ones(9, dtype=torch.bool)],
    "an index of its own for each number": lambda: leaf(4, 3).gather(0, torch.tensor([[0, 1, 2]])),
    "a short kernel": lambda: F.conv1d(leaf(2, 3, 40), leaf(4, 3, 3)),
    "a softmax of no product": lambda: leaf(2, 3, 6, 6).softmax(-1) @ leaf(2, 3, 6, 8),
    "complex numbers": lambda: torch.fft.fft(torch.randn(8, dtype=torch.complex64)),
    "matrices of its own for each": lambda: leaf(5, 1, 6, 4) @ leaf(5, 4, 2).unsqueeze(1),
    "rows by a mask": lambda: leaf(4, 5)[torch.ones(4, dtype=torch.bool), INDEX[:4]],
    "rows counted from the end": lambda: leaf(4, 5)[INDEX, INDEX - 5],
    "rows of some columns": lambda: leaf(4, 5, 3)[INDEX, INDEX, :2],
    "an einsum by batches": lambda: torch.einsum("bij,bjk->bik", leaf(2, 3, 4), leaf(2, 4, 5)),
    "a mask of padding": lambda: masked(torch.tensor([1, 1, 1, 1, 0, 0]).bool().expand(6, 6)),
    "a mask for each sample": lambda: masked(torch.eye(6).bool() | (torch.rand(2, 1, 6, 6) > 0.5)),
    "a kernel of no axes": lambda: F.conv2d(leaf(2, 1, 9, 9), torch.randn(1, 1, 3, 3, dtype=torch.float64)),
    "pairs of two tensors": lambda: (leaf(2, 5)[:, None] - leaf(2, 5)[:, :, None]).abs().sum((1, 2)),
    "a bias": lambda: masked(torch.randn(6, 6, dtype=torch.float64)),
    "another diagonal": lambda: (leaf(4, 6) @ leaf(6, 4)).diagonal(1),
    "the sum of all rows": lambda: F.embedding(INDEX.view(1, 7), leaf(4, 3)).sum(-1),
    "numbers compared one by one": lambda: NUMBERS.gt(NUMBERS.flip(0)).sum(-1),
    "limits of each row": lambda: (NUMBERS[..., None] > NUMBERS[:, None]).sum(-1),
    "logs of sums one by one": lambda: (leaf(5, 4) + leaf(5, 4)).logsumexp(1),
    "windows of which one is read": lambda: leaf(2, 9).unfold(1, 3, 2).mean(0),
    "many numbers": lambda: torch.rand(9, 9, dtype=torch.float64) @ leaf(9, 3),
    "zeros that are learnt": lambda: (nearly_empty() * leaf(9, 9)) @ leaf(9, 3),
    "links with a weight that is learnt": lambda: torch.zeros(9, 3, dtype=torch.float64).index_add(
        0, TARGETS, leaf(9, 3)[SOURCES] * leaf(40, 1)
    ),
    "a state of one number": lambda: torch.full((9, 9), 0.5, dtype=torch.float64) @ leaf(9, 3),
    "a matrix of other numbers": lambda: (torch.eye(9) - torch.arange(9) / 9).double() @ leaf(9, 3),
    "a mask that is learnt": lambda: attended(lambda q, k: q @ k + leaf(6, 6), 4),
}
IN_QUESTION = {
    "way:inverse", "way:sum-of-products", "way:one-hot", "way:sort", "way:whole-rows", "way:convolution",
    "way:attention", "way:mask", "way:real-fft", "way:pairs-apart", "way:frames", "way:diagonal",
    "way:bag", "way:search", "way:sum-of-exps", "way:zeros", "way:scaled",
}  # fmt: skip


@pytest.mark.parametrize("case", NONE)
def test_what_has_no_other_way_is_left_alone(case: str) -> None:
    with Calls() as calls:
        NONE[case]()
    ways = {
        way.callee
        for call in calls.all
        for way in WAYS.get(call.name, ())
        if way.instead(call, calls.made) is not None
    }
    assert not ways & IN_QUESTION


def test_a_way_that_is_wrong_or_fails_is_no_way() -> None:
    x = torch.randn(50, 50)

    def fails(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not here")

    assert timed(Instead((x,), torch.Tensor.exp, (torch.Tensor.expm1,))) is None
    assert timed(Instead((x,), torch.Tensor.exp, (fails,))) is None
    assert timed(Instead((x,), fails, (torch.Tensor.exp,))) is None


def test_a_program_can_go_on_with_a_result_of_the_same_kind_only() -> None:
    x = torch.randn(4, 3)
    instead = Instead((x,), lambda x: x.max(0), (lambda x: tuple(x.max(0)), lambda x: torch.max(x, 0)))
    assert (stands_in(instead, 0), stands_in(instead, 1)) == (False, True)


def test_results_that_differ_by_more_than_rounding_are_not_the_same() -> None:
    x = torch.randn(100)
    assert same(x, x * (1 + 1e-6))
    assert not same(x, x * 1.01)
    assert not same(x, x[:50])
    assert not same(x.long(), x.long() + 1)
    assert same(torch.empty(0), torch.empty(0))


# ---------------------------------------------------------------------------------------------- a step


A, B = (torch.randn(300, 64, requires_grad=True) for _ in range(2))


def step(twice: bool = False) -> torch.Tensor:
    products = A[:, None] * B
    loss = products.sum(-1).square().mean()
    if twice:
        loss = loss + products.mean()
    loss.backward()
    return loss.detach()


def tried(watch: WayWatch, run: Callable[[], Any], *, steps: int = 1) -> tuple[list[Any], Any]:
    """Count a step, and try the next."""
    assert watch.begin()
    run()
    if not watch.end():
        return [], None
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], acc_events=False) as profile:
        assert watch.begin(tries=True)
        for _ in range(steps):
            run()
        watch.end()
    return watch.found(profile), profile


def test_a_step_tells_where_its_calls_are_made_faster_another_way(watch: WayWatch) -> None:
    calls, _ = tried(watch, step)
    assert {(call.operator, call.callee) for call in calls} == {
        ("aten::mul", "way:sum-of-products"),
        ("aten::sum", "way:sum-of-products"),
    }
    for call in calls:
        assert call.left is not None
        assert call.left < 0.5
        assert call.site is not None
        assert (Path(call.site.file).name, call.site.function) == ("test_ways.py", "step")
    # The products are the first of their kind, the operators of what was tried are none of the step's.
    assert {tuple(call.places) for call in calls} == {(0,)}
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], acc_events=False) as alone:
        step()
    assert alone.profiler is not None
    assert alone.profiler.kineto_results is not None
    names = [event.name() for event in alone.profiler.kineto_results.events()]
    assert {call.operator: call.of for call in calls} == {
        name: names.count(name) for name in ("aten::mul", "aten::sum")
    }


@pytest.mark.usefixtures("each_way_takes_half")
def test_what_makes_one_hot_rows_is_not_needed_either(watch: WayWatch) -> None:
    index, table = torch.arange(512) * 7, torch.randn(4000, 64, requires_grad=True)

    def run() -> None:
        (F.one_hot(index, 4000).float() @ table).square().mean().backward()

    calls, _ = tried(watch, run)
    made = {call.operator for call in calls if call.callee == "way:one-hot"}
    assert made == {"aten::one_hot", "aten::to", "aten::matmul"}


@pytest.mark.usefixtures("each_way_takes_half")
def test_a_cast_that_changes_nothing_is_no_maker(watch: WayWatch) -> None:
    index, table = torch.arange(512) * 7, torch.randn(4000, 64, requires_grad=True)

    def run() -> None:
        (F.one_hot(index, 4000).float().to("cpu") @ table).square().mean().backward()

    calls, _ = tried(watch, run)
    assert "aten::matmul" in {call.operator for call in calls}


def test_a_step_that_ends_inside_a_backward_leaves_no_mode_behind(watch: WayWatch) -> None:
    x = torch.randn(300, 300, requires_grad=True)
    engine, turns = torch.autograd._engine_run_backward, iter(range(6))
    stacks, modes = [], torch.overrides._get_current_function_mode_stack

    def cut(*args: Any, **kwargs: Any) -> Any:
        turn = next(turns)
        if turn in (2, 3):
            watch.end()
        if turn in (1, 2):
            watch.begin(tries=turn == 2)
        return engine(*args, **kwargs)

    torch.autograd._engine_run_backward = cut  # type: ignore[attr-defined]
    try:
        for _ in range(6):
            (x @ x).sum().backward()
            stacks.append(len(modes()))
        assert torch.autograd._engine_run_backward is cut
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]
    assert stacks == [0, 1, 1, 0, 0, 0]
    assert "go_back" not in torch.Tensor.backward.__code__.co_name


def test_whoever_watches_backward_passes_sees_none_of_those_that_are_timed() -> None:
    engine, seen = torch.autograd._engine_run_backward, []

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(args)
        return engine(*args, **kwargs)

    torch.autograd._engine_run_backward = watched  # type: ignore[attr-defined]
    try:
        x = torch.randn(50, 50, requires_grad=True)
        timed(Instead((x,), lambda x: (x[:, None] * x).sum(-1), (lambda x: x @ x.T,)))
        assert not seen
        x.sum().backward()
        assert len(seen) == 1
    finally:
        torch.autograd._engine_run_backward = engine  # type: ignore[attr-defined]


def test_what_is_tried_inside_of_a_checkpoint_saves_nothing_in_its_place(
    watch: WayWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = []

    def noted(instead: Instead) -> Any:
        timings.append(timed(instead))
        return timings[-1]

    def run() -> None:
        checkpoint(lambda a: (a[:, None] * B).sum(-1), A, use_reentrant=False).square().mean().backward()

    monkeypatch.setattr(watch_module, "timed", noted)
    monkeypatch.setattr(watch_module, "_WORTH", 0.0)  # however long the rest of the step takes
    tried(watch, run)  # a checkpoint counts what is saved: another number than before is an error
    assert timings


class Spread(torch.autograd.Function):
    """Rows that are looked up; what their gradients are added up by is written by hand."""

    INDEX = torch.randint(0, 50, (8, 4000, 1)).expand(8, 4000, 64)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sum() * torch.ones(8, 4000, 64)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.zeros(8, 50, 64).scatter_add(1, Spread.INDEX, gradients[0])


@pytest.mark.usefixtures("each_way_takes_half")
def test_a_backward_that_is_written_by_hand_is_looked_at_too(watch: WayWatch) -> None:
    x = torch.randn(8, 50, 64, requires_grad=True)

    def run() -> None:
        Spread.apply(x).square().mean().backward()

    engine = torch.autograd._engine_run_backward
    calls, _ = tried(watch, run)
    assert [(call.operator, call.callee) for call in calls] == [("aten::scatter_add", "way:whole-rows")]
    assert calls[0].site is not None
    assert calls[0].site.function == "backward"
    assert torch.autograd._engine_run_backward is engine


def test_what_others_read_too_is_not_written_another_way(watch: WayWatch) -> None:
    calls, _ = tried(watch, lambda: step(twice=True))
    assert "way:sum-of-products" not in {call.callee for call in calls}


def test_a_step_computes_the_same_while_it_is_looked_at(watch: WayWatch) -> None:
    def run() -> tuple[torch.Tensor, torch.Tensor]:
        A.grad = None
        loss = step()
        assert A.grad is not None
        return loss, A.grad + torch.rand(3, 1)[0]

    torch.manual_seed(3)
    alone = [run() for _ in range(2)]
    torch.manual_seed(3)
    looked: list[Any] = []
    tried(watch, lambda: looked.append(run()))
    for (loss, gradient), (other_loss, other_gradient) in zip(alone, looked, strict=True):
        assert torch.equal(loss, other_loss)
        assert torch.equal(gradient, other_gradient)


def test_the_host_and_the_device_are_told_apart_where_they_can_be(
    watch: WayWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device the other way takes a tenth; the host takes as long for either."""
    turns = itertools.cycle([(500, 1000), (500, 100)])
    monkeypatch.setattr(torch_private, "timed_apart", lambda run, *, ahead_ns: (run(), next(turns))[1])
    calls, _ = tried(watch, step)
    assert {(call.left, call.left_on_host) for call in calls} == {(0.1, 1.0)}


def test_the_host_hands_all_rounds_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of sixteen rounds are tried: the device works on four, the host makes the one call for all."""
    clock = [0]

    def spends(ns: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            clock[0] += ns
            return x.exp()

        return run

    monkeypatch.setattr(timing, "perf_counter_ns", lambda: clock[0])
    turns = itertools.cycle([(400, 1000), (100, 800)])
    monkeypatch.setattr(torch_private, "timed_apart", lambda run, *, ahead_ns: (run(), next(turns))[1])
    instead = Instead((torch.randn(50),), spends(4), (spends(1),), calls=4, rounds=16)
    took = timed(instead)
    assert took is not None
    assert (took.own.on_host_ns, took.other.on_host_ns) == (400, 25)
    assert (took.own.on_device_ns, took.other.on_device_ns) == (1000, 800)


@pytest.mark.parametrize(
    ("device_ns", "faster"),
    [((300, 290, 310), True), ((300, 290, 1100), False), ((1100, 1200, 1100), False)],
    ids=["in each turn", "but for one turn", "in none"],
)
def test_what_takes_the_host_longer_may_take_the_device_less(
    monkeypatch: pytest.MonkeyPatch, device_ns: tuple[int, ...], faster: bool
) -> None:
    """Alone the host is what is waited for; in a step that the device fills it is not."""
    clock = [0]

    def spends(ns: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            clock[0] += ns
            return x.exp()

        return run

    monkeypatch.setattr(timing, "perf_counter_ns", lambda: clock[0])
    turns = itertools.chain(*(((200, 1000), (400, ns)) for ns in device_ns))
    monkeypatch.setattr(torch_private, "timed_apart", lambda run, *, ahead_ns: (run(), next(turns))[1])
    took = timed(Instead((torch.randn(50),), spends(2), (spends(4),)))
    assert (took is not None) is faster
    if took is not None:
        assert took.saves_ns == 710


def test_of_what_takes_the_device_no_less_a_single_turn_behind_its_work_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, made = [0], [0]

    def spends(ns: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            clock[0] += ns
            return x.exp()

        return run

    def apart(run: Callable[[], Any], *, ahead_ns: int) -> tuple[int, int]:
        made[0] += 1
        return 100, 1000

    monkeypatch.setattr(timing, "perf_counter_ns", lambda: clock[0])
    monkeypatch.setattr(torch_private, "timed_apart", apart)
    assert timed(Instead((torch.randn(50),), spends(2), (spends(4), spends(5), spends(6)))) is None
    assert made == [4], "its own once, and each other"


def test_of_a_step_what_either_clock_saves_counts() -> None:
    took = timing.Timed(timing.Took(200, 200, 1000), timing.Took(400, 400, 300), 0)
    site = SourceSite(file="train.py", line=1, function="main")
    tried = watch_module._Tried(site, took=[took], shapes={"one"}, calls=2)
    assert tried.saves_ns == 2 * 700


def test_a_call_that_waits_for_the_device_is_timed_as_a_whole(
    watch: WayWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_private, "timed_apart", lambda run, *, ahead_ns: None)
    calls, _ = tried(watch, step)
    assert calls
    assert all(call.left == call.left_on_host for call in calls)


@pytest.mark.usefixtures("each_way_takes_half")
def test_calls_of_several_sizes_at_one_place_are_tried_apart(watch: WayWatch) -> None:
    sizes = iter([40, 300] * 2)

    def run() -> None:
        for _ in range(2):
            n = next(sizes)
            (A[:n, None] * B[:n]).sum(-1).mean().backward()

    calls, _ = tried(watch, run)
    assert {len(call.places) for call in calls if call.callee == "way:sum-of-products"} == {2}


def test_little_calls_are_not_tried(watch: WayWatch) -> None:
    large = torch.randn(700, 700)

    def run() -> None:
        (large @ large).sum()
        (A[:2] * B[:2]).sum(-1)

    calls, _ = tried(watch, run)
    assert "way:sum-of-products" not in {call.callee for call in calls}


def test_nothing_is_tried_where_memory_is_short(watch: WayWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "free_memory", lambda: 8 * 4 * 300 * 300 * 64)
    calls, _ = tried(watch, step)
    assert calls == []


def test_what_is_kept_for_chains_is_bounded(watch: WayWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "free_memory", lambda: 4 * 4 * 100)
    assert watch.begin()
    kept = [torch.ones(10) * k for k in range(50)]
    assert 0 < len(watch._outputs) <= 10
    kept.clear()
    assert not watch._outputs
    watch.end()


def test_trying_shows_no_warning_and_forgets_none_that_was_shown(
    watch: WayWatch, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    warnings.simplefilter("default")

    def warns(*_: Any) -> None:
        warnings.warn("from a way", stacklevel=1)

    def run() -> None:
        warnings.warn("of the script", stacklevel=1)
        step()

    for way in WAYS["sum"]:
        monkeypatch.setattr(way, "instead", warns)
    for _ in range(2):
        run()
    tried(watch, run)
    assert [str(each.message) for each in recwarn] == ["of the script"]


def test_what_a_call_changes_is_changed_once(watch: WayWatch) -> None:
    norms = [torch.nn.BatchNorm1d(64) for _ in range(2)]
    tables = [torch.nn.Embedding(50, 64, max_norm=0.5) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    out = torch.zeros(300, 300)

    def run(norm: torch.nn.Module, table: torch.nn.Module) -> None:
        norm(table(torch.arange(40)).t().contiguous().t())
        torch.mm(A.detach(), B.detach().t(), out=out)

    for _ in range(2):
        run(norms[0], tables[0])
    tried(watch, lambda: run(norms[1], tables[1]))
    assert norms[1].num_batches_tracked == 2
    for plain, looked in zip(norms[0].buffers(), norms[1].buffers(), strict=True):
        assert torch.equal(plain, looked)
    assert torch.equal(tables[0].weight, tables[1].weight)


@pytest.mark.parametrize(
    "error", [RuntimeError, ValueError, AttributeError, ZeroDivisionError, AssertionError]
)
def test_what_cannot_be_looked_at_is_called_all_the_same(
    watch: WayWatch, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    for way in WAYS["sum"]:
        monkeypatch.setattr(way, "instead", fails)
    alone = step()
    looked: list[torch.Tensor] = []
    calls, _ = tried(watch, lambda: looked.append(step()))
    assert calls == []
    assert all(torch.equal(alone, each) for each in looked)


def test_sparse_tensors_and_transforms_are_passed_through(watch: WayWatch) -> None:
    dense = torch.randn(400, 400)
    sparse = dense.to_sparse()

    def run() -> list[torch.Tensor]:
        products = torch.func.vmap(lambda row: (row[:, None] * row).sum(-1))(dense[:, :20])
        return [torch.sparse.mm(sparse, dense), (sparse * 2).sum(), products]

    alone, looked = run(), [run()]
    tried(watch, lambda: looked.append(run()))
    for each in looked:
        assert all(map(torch.equal, alone, each))


def test_the_mode_is_left_where_a_step_fails(watch: WayWatch) -> None:
    assert watch.begin()
    with pytest.raises(RuntimeError):
        torch.ones(2) @ torch.ones(3)
    watch.end()
    assert not any(isinstance(mode, Functions) for mode in torch.overrides._get_current_function_mode_stack())


def test_all_of_our_code_is_skipped_by_dynamo_whatever_it_holds() -> None:
    """A function of autograd and the class of its nodes hold each other."""
    assert torch_private.skip_package("torch_bottleneck.harness.ways") > 0
