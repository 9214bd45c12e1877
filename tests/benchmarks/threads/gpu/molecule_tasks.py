"""Energies of molecules and crystals from many sources, one loss per source."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
TASKS = 15
WEIGHTS = [1.0 + 0.1 * t for t in range(TASKS)]


class Energies(nn.Module):
    def __init__(self, width=1024, depth=10):
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
            )
            for _ in range(depth)
        )
        self.leave = nn.Linear(width, 8)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return self.leave(x)


class TaskLoss:
    def __init__(self, device):
        self.weights = torch.tensor(WEIGHTS, device=device)

    def __call__(self, scores, truth, task):
        error = (scores - truth).abs()
        if VARIANT == "b":
            weight = self.weights[task]
            return (weight[:, None] * error).sum() / (weight.sum() * error.shape[1])
        total, weight = 0, 0
        for t in range(TASKS):
            for output in range(error.shape[1]):
                mask = task == t
                count = mask.sum().item()
                if count == 0:
                    continue
                part = error[mask, output].sum()
                if not torch.isfinite(part):
                    raise FloatingPointError(f"task {t} output {output}")
                total = total + WEIGHTS[t] * part
                weight += WEIGHTS[t] * count
        return total / weight


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Energies().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = TaskLoss(device)
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        x = torch.randn(4096, 64, device=device)
        truth = torch.randn(4096, 8, device=device)
        task = torch.randint(0, TASKS, (4096,), device=device)
        loss = loss_of(model(x), truth, task)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
