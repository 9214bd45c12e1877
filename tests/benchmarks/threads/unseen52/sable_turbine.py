"""A deep residual surrogate of a turbine simulation: operating point to blade loads."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

DEPTH, WIDTH, BATCH, RUNS = (6, 32, 64, 2000) if SMALL else (80, 256, 1024, 200_000)
INPUTS, OUTPUTS = 24, 48
MAX_NORM = 1.0


class ResidualBlock(nn.Module):
    """Normalisation, two layers and a gate on the branch."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        self.gate = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        return torch.addcmul(x, self.down(F.gelu(self.up(self.norm(x)))), self.gate)


class Surrogate(nn.Module):
    """Stack of residual blocks between two linear maps."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList([ResidualBlock(WIDTH) for _ in range(DEPTH)])
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, OUTPUTS))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class SimulationRuns:
    """Operating points and loads of earlier runs, kept on the device and drawn by batch."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        points = rng.uniform(-1, 1, (RUNS, INPUTS)).astype(np.float32)
        mix = rng.standard_normal((2, INPUTS, OUTPUTS)).astype(np.float32)
        loads = np.sin(points @ mix[0]) + 0.3 * np.tanh(points @ mix[1])
        self.points = torch.from_numpy(points).to(device)
        self.loads = torch.from_numpy(((loads - loads.mean(0)) / loads.std(0)).astype(np.float32)).to(device)
        self.generator = torch.Generator().manual_seed(seed)
        self.split = int(RUNS * 0.95)

    def batch(self):
        rows = torch.randint(self.split, (BATCH,), generator=self.generator).to(device, non_blocking=True)
        return self.points[rows], self.loads[rows]

    def held_out(self):
        return self.points[self.split :], self.loads[self.split :]


def limit_gradients(parameters, max_norm, norm_type=2.0):
    """Scales the gradients of all parameters so that their joint norm keeps below a bound."""
    parameters = [p for p in parameters if p.grad is not None]
    if VARIANT == "a":
        total_norm = 0.0
        for p in parameters:
            param_norm = p.grad.detach().norm(norm_type)
            total_norm += param_norm.item() ** norm_type
        total_norm = total_norm ** (1.0 / norm_type)
        factor = min(1.0, max_norm / (total_norm + 1e-6))
    else:
        norms = torch.stack([torch.norm(p.grad.detach(), norm_type) for p in parameters])
        total_norm = torch.sum(norms**norm_type) ** (1.0 / norm_type)
        factor = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([p.grad for p in parameters], factor)
    return total_norm


class History:
    """Keeps what the log prints every so often."""

    def __init__(self, every):
        self.every = every
        self.rows = []

    def add(self, step, loss, norm, rate):
        if (step + 1) % self.every == 0:
            self.rows.append((step + 1, float(loss), float(norm), rate))
            print("step {} loss {:.4f} norm {:.3f} rate {:.2e}".format(*self.rows[-1]))


def parameter_groups(model, decay):
    """Weight decay for matrices only."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def explained(model, points, loads):
    """Share of the variance of the held out loads that the surrogate explains."""
    model.eval()
    with torch.no_grad():
        rest = (model(points) - loads).pow(2).mean(0)
    model.train()
    return (1.0 - rest / loads.var(0)).mean().item()


def main():
    torch.manual_seed(0)
    data = SimulationRuns(1)
    model = Surrogate().to(device)
    optimizer = torch.optim.AdamW(parameter_groups(model, 1e-2), lr=3e-4, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=max(STEPS, 10) + 1)
    history = History(200)
    warm = min(10, STEPS // 2)
    start, last = time.perf_counter(), None
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        points, loads = data.batch()
        last = F.smooth_l1_loss(model(points), loads)
        optimizer.zero_grad(set_to_none=True)
        last.backward()
        norm = limit_gradients(model.parameters(), MAX_NORM)
        optimizer.step()
        schedule.step()
        history.add(step, last.detach(), norm, schedule.get_last_lr()[0])
        if step % 1000 == 999:
            print(f"explained {explained(model, *data.held_out()):.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
