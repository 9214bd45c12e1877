"""Fire danger from weather tables: each number becomes a point on a learned curve, then an MLP."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1300"))
COLUMNS = 48
POINTS = 16
DEGREE = 3
DIM = 64
BATCH = 384
HIDDEN = 128
device = torch.device("cpu")


class CurveFunction(torch.autograd.Function):
    """Points on B-spline curves: u (rows, curves), control (curves, points, dim)."""

    @staticmethod
    def basis(u, knots, spans):
        out = torch.zeros(*u.shape, DEGREE + 1, dtype=u.dtype)
        left, right = torch.zeros_like(out), torch.zeros_like(out)
        out[..., 0] = 1.0
        for p in range(1, DEGREE + 1):
            left[..., p] = u - knots[spans + 1 - p]
            right[..., p] = knots[spans + p] - u
            saved = torch.zeros_like(u)
            for r in range(p):
                ratio = out[..., r] / (right[..., r + 1] + left[..., p - r])
                out[..., r] = saved + right[..., r + 1] * ratio
                saved = left[..., p - r] * ratio
            out[..., p] = saved
        return out

    @staticmethod
    def forward(ctx, u, control, knots):
        rows, curves = u.shape
        spans = torch.searchsorted(knots, u.contiguous(), right=True) - 1
        spans = spans.clamp(DEGREE, POINTS - 1)
        weights = CurveFunction.basis(u, knots, spans)
        index = spans.unsqueeze(-1) - DEGREE + torch.arange(DEGREE + 1)
        if VARIANT == "a":
            which = torch.arange(curves).view(1, -1, 1).expand(rows, -1, DEGREE + 1)
            near = control[which, index, :]
            out = (weights.unsqueeze(-1) * near).sum(dim=2)
        else:
            index = (index + torch.arange(curves).view(1, -1, 1) * POINTS).reshape(-1)
            near = control.reshape(-1, DIM).index_select(0, index).view(rows, curves, DEGREE + 1, DIM)
            out = torch.matmul(weights.unsqueeze(2), near).squeeze(2)
        ctx.save_for_backward(index, weights)
        return out

    @staticmethod
    def backward(ctx, grad):
        index, weights = ctx.saved_tensors
        update = grad.unsqueeze(2) * weights.unsqueeze(3)
        if VARIANT == "a":
            d_control = torch.zeros(COLUMNS, POINTS, DIM)
            values = update.permute(1, 0, 2, 3).reshape(COLUMNS, -1, DIM)
            target = index.permute(1, 0, 2).reshape(COLUMNS, -1, 1).expand(-1, -1, DIM)
            d_control.scatter_add_(1, target, values)
        else:
            d_control = torch.zeros(COLUMNS * POINTS, DIM)
            d_control.index_add_(0, index, update.view(-1, DIM))
            d_control = d_control.view(COLUMNS, POINTS, DIM)
        return None, d_control, None


class EmberNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.control = nn.Parameter(0.1 * torch.randn(COLUMNS, POINTS, DIM))
        inner = torch.linspace(-1, 1, POINTS - DEGREE + 1)
        ends = torch.ones(DEGREE)
        self.register_buffer("knots", torch.cat([-ends, inner, ends]))
        self.mlp = nn.Sequential(
            nn.Linear(COLUMNS * DIM, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 1),
        )

    def forward(self, table):
        u = table / (1 + table.pow(2)).sqrt()
        curves = CurveFunction.apply(u, self.control, self.knots)
        return self.mlp(curves.flatten(1)).squeeze(-1)


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(2)
    table = torch.randn(20000, COLUMNS, generator=gen)
    danger = torch.sin(3 * table[:, 0]) * table[:, 1] + table[:, 2:8].abs().sum(1) - 4
    danger = (danger + 0.5 * torch.randn(20000, generator=gen) > 0).float()
    model = EmberNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        pick = torch.randint(0, len(table), (BATCH,), generator=gen)
        score = model(table[pick].to(device))
        loss = F.binary_cross_entropy_with_logits(score, danger[pick].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
