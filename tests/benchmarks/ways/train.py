"""Trains a small model a part of which is written as a fix of `catalog/ways.py` finds it.

    python tests/benchmarks/ways/train.py CASE          trains until it is stopped
    python tests/benchmarks/ways/train.py CASE SECONDS  prints the step in ms, as found and as the fix says

For the second, both are trained in turns of a few steps.
"""

from __future__ import annotations

import math
import string
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
STEPS_APART = 10


def size(cpu: int, gpu: int) -> int:
    return gpu if ON_GPU else cpu


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(draw(*shape) / math.sqrt(shape[-1]))


class Part(nn.Module):
    """A part of a model, as it is found or as the fix says."""

    other = False


class Inverse(Part):
    def __init__(self) -> None:
        super().__init__()
        count, n = size(64, 1024), size(48, 64)
        self.a = nn.Parameter(0.1 * draw(count, n, n) / n + 2 * torch.eye(n, device=DEVICE))
        self.b = draw(count, n, 4)

    def forward(self) -> Tensor:
        if self.other:
            return torch.linalg.solve(self.a, self.b)
        return torch.linalg.inv(self.a) @ self.b


class SumOfProducts(Part):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = weight(size(384, 3072), 128), weight(size(256, 2048), 128)

    def forward(self) -> Tensor:
        if self.other:
            return self.a @ self.b.T
        return (self.a[:, None] * self.b).sum(-1)


class OrderOfProducts(Part):
    def __init__(self) -> None:
        super().__init__()
        n = size(768, 6144)
        self.a, self.b, self.c = weight(n, n), weight(n, n), draw(n, 16)

    def forward(self) -> Tensor:
        if self.other:
            return self.a @ (self.b @ self.c)
        return self.a @ self.b @ self.c


class OneHot(Part):
    def __init__(self) -> None:
        super().__init__()
        self.rows = size(4000, 32000)
        self.table = weight(self.rows, 256)
        self.index = torch.randint(self.rows, (size(512, 16384),), device=DEVICE)

    def forward(self) -> Tensor:
        if self.other:
            return self.table[self.index]
        return F.one_hot(self.index, self.rows).float() @ self.table


class RealTransform(Part):
    def __init__(self) -> None:
        super().__init__()
        self.signal = weight(size(64, 4096), size(4096, 8192))

    def forward(self) -> Tensor:
        if self.other:
            return torch.fft.rfft(self.signal).abs()
        return torch.fft.fft(self.signal)[..., : self.signal.shape[-1] // 2 + 1].abs()


class Layout(Part):
    def __init__(self) -> None:
        super().__init__()
        self.x = weight(size(2048, 32768), size(256, 1024))

    def forward(self) -> Tensor:
        if self.other:
            return self.x.T.contiguous().cumsum(-1).T
        return self.x.cumsum(0)


class Repeated(Part):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.each = draw(size(64, 512), 36, 1, 64), weight(36, 64, 64)

    def forward(self) -> Tensor:
        if self.other:
            return torch.einsum("bgni,gio->bgno", self.x, self.each)
        return self.x @ self.each


class ManyAxes(Part):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.gates = draw(*[2] * size(14, 20)), weight(size(13, 19), 2, 2, 2, 2)

    def forward(self) -> Tensor:
        state = self.state
        letters = string.ascii_letters[: state.dim()]
        for k, gate in enumerate(self.gates):
            if self.other:
                state = torch.tensordot(gate, state, ([2, 3], [k, k + 1])).movedim((0, 1), (k, k + 1))
            else:
                after = letters.replace(letters[k : k + 2], "YZ")
                state = torch.einsum(f"{letters},YZ{letters[k : k + 2]}->{after}", state, gate)
        return state


class Decomposition(Part):
    def __init__(self) -> None:
        super().__init__()
        self.x = weight(size(2048, 16384), 64)

    def forward(self) -> Tensor:
        if self.other:
            return torch.linalg.eigvalsh(self.x.T @ self.x).clamp(min=1e-12).sqrt()
        return torch.linalg.svdvals(self.x)


class Sort(Part):
    def __init__(self) -> None:
        super().__init__()
        self.x = weight(size(256, 8192), 8192)

    def forward(self) -> Tensor:
        if self.other:
            return self.x.topk(8, dim=-1).values
        return self.x.sort(dim=-1, descending=True).values[:, :8]


class OncePerValue(Part):
    def __init__(self) -> None:
        super().__init__()
        self.counts = torch.poisson(torch.full((size(2000, 120_000), 1000), 0.05, device=DEVICE))
        self.scale = weight(1000)

    def forward(self) -> Tensor:
        if self.other:
            values, places = torch.unique(self.counts, return_inverse=True)
            return torch.lgamma(values + 1)[places] * self.scale
        return torch.lgamma(self.counts + 1) * self.scale


class WideConvolution(Part):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.taps = draw(size(2, 16), size(8, 64), 16384), weight(size(8, 64), 1, 2047)

    def forward(self) -> Tensor:
        if self.other:
            product = torch.fft.rfft(self.x) * torch.fft.rfft(self.taps[:, 0], 16384).conj()
            return torch.fft.irfft(product, 16384)[..., : 16384 - 2046]
        return F.conv1d(self.x, self.taps, groups=self.x.shape[1])


class WholeRows(Part):
    def __init__(self) -> None:
        super().__init__()
        self.rows = weight(size(20_000, 1_000_000), 64)
        self.index = torch.randint(1000, (self.rows.shape[0],), device=DEVICE)

    def forward(self) -> Tensor:
        out = torch.zeros(1000, 64, device=DEVICE)
        if self.other:
            return out.index_add(0, self.index, self.rows)
        return out.scatter_add(0, self.index[:, None].expand(-1, 64), self.rows)


class SmallMatrices(Part):
    def __init__(self) -> None:
        super().__init__()
        eye = 4 * torch.eye(3, device=DEVICE)
        self.x = nn.Parameter(draw(size(40_000, 2_000_000), 3, 3) + eye)

    def forward(self) -> Tensor:
        if self.other:
            a, b, c = self.x.unbind(-1)
            return (a * torch.linalg.cross(b, c)).sum(-1)
        return torch.linalg.det(self.x)


class Attention(Part):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = weight(3, size(2, 16), 8, size(512, 2048), 64)

    def forward(self) -> Tensor:
        q, k, v = self.qkv
        if self.other:
            return F.scaled_dot_product_attention(q, k, v)
        return (q @ k.transpose(-2, -1) / 8).softmax(-1) @ v


class Mask(Part):
    def __init__(self) -> None:
        super().__init__()
        self.length = size(768, 4096)
        self.qkv = weight(3, size(2, 8), 8, self.length, 64)
        self.mask = torch.ones(self.length, self.length, dtype=torch.bool, device=DEVICE).tril()

    def forward(self) -> Tensor:
        q, k, v = self.qkv
        if self.other:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


class PairsApart(Part):
    def __init__(self) -> None:
        super().__init__()
        self.x = weight(size(16, 64), size(512, 4096))

    def forward(self) -> Tensor:
        if self.other:
            values, n = self.x.sort(-1).values, self.x.shape[-1]
            return 2 * (values * (2 * torch.arange(n, device=DEVICE) + 1 - n)).sum(-1)
        return (self.x[:, None] - self.x[:, :, None]).abs().sum((1, 2))


class Diagonal(Part):
    def __init__(self) -> None:
        super().__init__()
        n = size(1024, 8192)
        self.a, self.b = weight(n, 512), weight(512, n)

    def forward(self) -> Tensor:
        if self.other:
            return (self.a * self.b.T).sum(-1)
        return (self.a @ self.b).diagonal()


class Bag(Part):
    def __init__(self) -> None:
        super().__init__()
        self.table = weight(50_000, 64)
        self.index = torch.randint(50_000, (size(512, 32768), 50), device=DEVICE)

    def forward(self) -> Tensor:
        if self.other:
            return F.embedding_bag(self.index, self.table, mode="sum")
        return F.embedding(self.index, self.table).sum(1)


class Search(Part):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.limits = draw(size(20_000, 1_000_000)), draw(256).sort().values
        self.table = weight(257, 8)

    def forward(self) -> Tensor:
        if self.other:
            return F.embedding(torch.searchsorted(self.limits, self.x), self.table)
        return F.embedding((self.x[:, None] > self.limits).sum(-1), self.table)


class SumOfExps(Part):
    def __init__(self) -> None:
        super().__init__()
        n = size(192, 1024)
        self.a, self.b = weight(n, n), weight(n, n)

    def forward(self) -> Tensor:
        if self.other:
            top_a, top_b = self.a.amax(-1, keepdim=True), self.b.amax(0, keepdim=True)
            return ((self.a - top_a).exp() @ (self.b - top_b).exp()).log() + top_a + top_b
        return torch.logsumexp(self.a[:, :, None] + self.b[None], dim=1)


class Bilinear(Part):
    def __init__(self) -> None:
        super().__init__()
        self.form = nn.Bilinear(size(64, 256), size(64, 256), size(32, 128)).to(DEVICE)
        self.a, self.b = (draw(size(512, 8192), size(64, 256)) for _ in range(2))

    def forward(self) -> Tensor:
        if not self.other:
            return self.form(self.a, self.b)
        out, one, two = self.form.weight.shape
        whole = (self.a @ self.form.weight.permute(1, 0, 2).reshape(one, out * two)).view(-1, out, two)
        return (whole * self.b[:, None]).sum(-1) + self.form.bias


class Zeros(Part):
    def __init__(self) -> None:
        super().__init__()
        n = size(2048, 16384)
        self.graph = torch.zeros(n, n, device=DEVICE)
        self.graph.view(-1)[torch.randint(n * n, (8 * n,), device=DEVICE)] = 1.0
        self.sparse = self.graph.to_sparse_csr()
        self.x = weight(n, 64)

    def forward(self) -> Tensor:
        return (self.sparse if self.other else self.graph) @ self.x


class Rounds(Part):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(256, 256).to(DEVICE)
        self.words = draw(size(64, 256), size(16, 32), 256)

    def forward(self) -> Tensor:
        if self.other:
            return F.linear(self.words, self.layer.weight, self.layer.bias)
        return torch.stack([F.linear(word, self.layer.weight, self.layer.bias) for word in self.words])


class Sequence(Part):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 128).to(DEVICE)
        self.words = draw(size(48, 128), 16, 128)

    def forward(self) -> Tensor:
        if self.other:
            return self.lstm(self.words)[0]
        out, state = [], None
        for word in self.words:
            said, state = self.lstm(word[None], state)
            out.append(said)
        return torch.cat(out)


CASES: dict[str, tuple[str, Callable[[], Part]]] = {
    "inverse": ("FX350", Inverse),
    "sum-of-products": ("FX351", SumOfProducts),
    "order-of-products": ("FX352", OrderOfProducts),
    "one-hot": ("FX353", OneHot),
    "real-fft": ("FX354", RealTransform),
    "layout": ("FX355", Layout),
    "repeated": ("FX355", Repeated),
    "many-axes": ("FX351", ManyAxes),
    "decomposition": ("FX356", Decomposition),
    "sort": ("FX357", Sort),
    "once-per-value": ("FX358", OncePerValue),
    "convolution": ("FX359", WideConvolution),
    "whole-rows": ("FX360", WholeRows),
    "small-matrices": ("FX362", SmallMatrices),
    "attention": ("FX364", Attention),
    "mask": ("FX365", Mask),
    "pairs-apart": ("FX366", PairsApart),
    "diagonal": ("FX368", Diagonal),
    "bag": ("FX369", Bag),
    "search": ("FX370", Search),
    "sum-of-exps": ("FX371", SumOfExps),
    "bilinear": ("FX372", Bilinear),
    "zeros": ("FX373", Zeros),
    "rounds": ("FX374", Rounds),
    "sequence": ("FX375", Sequence),
}
"""By name of the way: the fix, and what trains."""


def main() -> None:
    torch.manual_seed(0)
    part = CASES[sys.argv[1]][1]().to(DEVICE)
    rest = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))).to(DEVICE)
    images = draw(size(256, 16384), 512)
    optimizer = torch.optim.Adam([*part.parameters(), *rest.parameters()], lr=1e-5, foreach=True)

    def train() -> None:
        loss = rest(images).square().mean() + part().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    if len(sys.argv) > 2:
        print(*(f"{ms:.3f}" for ms in in_turns(part, train, float(sys.argv[2]))))
    else:
        for _ in range(1_000_000):
            train()


def in_turns(part: Part, train: Callable[[], None], seconds: float) -> list[float]:
    """Return what a step takes as found, and as the fix says."""
    took: dict[bool, list[float]] = {False: [], True: []}
    until = math.inf
    while len(took[True]) < 2 or now() < until:
        for other in took:
            part.other = other
            train()
            since = now()
            for _ in range(STEPS_APART):
                train()
            took[other].append((now() - since) / STEPS_APART * 1e3)
        if math.isinf(until):  # the first turn warms up
            took, until = {False: [], True: []}, now() + seconds
    return [median(each) for each in took.values()]


def now() -> float:
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
