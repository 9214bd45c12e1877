"""Loans that will not be paid back: a network that picks features of a table in steps."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2500))
BATCH = int(os.environ.get("BATCH", 4096))
VIRTUAL = int(os.environ.get("VIRTUAL", 128))
ROWS = int(os.environ.get("ROWS", 400_000))
NUMBERS = int(os.environ.get("NUMBERS", 24))
KINDS = int(os.environ.get("KINDS", 8))
ROUNDS = int(os.environ.get("ROUNDS", 3))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class GhostNorm(nn.Module):
    """Batch norm over parts of VIRTUAL rows."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width, momentum=0.02)

    def forward(self, x):
        if VARIANT == "a" or not self.training:
            parts = x.chunk(max(1, len(x) // VIRTUAL), 0)
            return torch.cat([self.norm(part) for part in parts])
        parts = x.unflatten(0, (-1, VIRTUAL))
        var, mean = torch.var_mean(parts, 1, correction=0, keepdim=True)
        with torch.no_grad():
            self.norm.running_mean.lerp_(mean.mean((0, 1)), self.norm.momentum)
            self.norm.running_var.lerp_(var.mean((0, 1)), self.norm.momentum)
        y = (parts - mean) * torch.rsqrt(var + self.norm.eps)
        return (y * self.norm.weight + self.norm.bias).flatten(0, 1)


class Gated(nn.Module):
    def __init__(self, inputs, outputs, shared=None):
        super().__init__()
        self.linear = shared if shared is not None else nn.Linear(inputs, 2 * outputs, bias=False)
        self.norm = GhostNorm(2 * outputs)

    def forward(self, x):
        return F.glu(self.norm(self.linear(x)), -1)


class FeatureTransformer(nn.Module):
    def __init__(self, width, shared):
        super().__init__()
        layers = [Gated(None, width, linear) for linear in shared]
        layers += [Gated(width, width) for _ in range(2)]
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = (x + layer(x)) * 0.5**0.5
        return x


def sparse_weights(scores):
    """Sparsemax: the nearest point of the simplex."""
    ordered = scores.sort(-1, descending=True).values
    total = ordered.cumsum(-1) - 1
    count = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
    inside = (ordered * count > total).sum(-1, keepdim=True)
    return F.relu(scores - total.gather(-1, inside - 1) / inside)


class TableNet(nn.Module):
    def __init__(self, width=32, relax=1.3):
        super().__init__()
        self.relax, self.width = relax, width
        self.kinds = nn.Embedding(64 * KINDS, 2)
        inputs = NUMBERS + 2 * KINDS
        self.norm = nn.BatchNorm1d(inputs, momentum=0.01)
        shared = [nn.Linear(n, 4 * width, bias=False) for n in (inputs, 2 * width)]
        self.first = FeatureTransformer(2 * width, shared)
        self.steps = nn.ModuleList([FeatureTransformer(2 * width, shared) for _ in range(ROUNDS)])
        self.masks = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, inputs, bias=False), GhostNorm(inputs)) for _ in range(ROUNDS)]
        )
        self.head = nn.Linear(width, 1)

    def forward(self, numbers, kinds):
        offset = 64 * torch.arange(KINDS, device=kinds.device)
        x = self.norm(torch.cat([numbers, self.kinds(kinds + offset).flatten(1)], 1))
        prior, total, spread = torch.ones_like(x), 0.0, 0.0
        chosen = self.first(x)[:, self.width :]
        for step, mask in zip(self.steps, self.masks, strict=True):
            weights = sparse_weights(mask(chosen) * prior)
            spread = spread - (weights * (weights + 1e-15).log()).sum(1).mean()
            prior = prior * (self.relax - weights)
            decided, chosen = step(weights * x).split(self.width, 1)
            total = total + F.relu(decided)
        return self.head(total)[:, 0], spread / ROUNDS


def make_table():
    numbers = torch.randn(ROWS, NUMBERS)
    kinds = torch.randint(0, 64, (ROWS, KINDS))
    risk = numbers[:, 0] * numbers[:, 1] + numbers[:, 2].abs() + 0.1 * (kinds[:, 0] % 5) - 1.5
    return numbers, kinds, (torch.rand(ROWS) < torch.sigmoid(2 * risk)).float()


def main():
    torch.manual_seed(83)
    numbers, kinds, unpaid = (x.to(device) for x in make_table())
    model = TableNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    order = torch.randperm(ROWS, device=device)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        at = step % (ROWS // BATCH) * BATCH
        rows = order[at : at + BATCH]
        score, spread = model(numbers[rows], kinds[rows])
        loss = F.binary_cross_entropy_with_logits(score, unpaid[rows]) + 1e-3 * spread
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
