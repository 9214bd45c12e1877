"""A refiner that applies the same block again and again to its estimate of a tide gauge record."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1000"))
ROUNDS = int(os.environ.get("ROUNDS", "24"))
BATCH = int(os.environ.get("BATCH", "512"))
WIDTH = int(os.environ.get("WIDTH", "3072"))
GAUGE = 256

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class RefineBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, h, context):
        return h + 0.1 * self.down(F.gelu(self.up(self.norm(h + context))))


class TideRefiner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(GAUGE, WIDTH)
        self.block = RefineBlock()
        self.readout = nn.Linear(WIDTH, GAUGE)

    def forward(self, record):
        context = self.encode(record)
        h = torch.zeros_like(context)
        estimates = []
        for _ in range(ROUNDS):
            h = self.block(h, context)
            estimates.append(self.readout(h))
        return estimates


class MixedPrecision:
    def __init__(self, cache_enabled):
        self.cache_enabled = cache_enabled

    def forward_context(self):
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=self.cache_enabled)


def training_step(model, precision, record, target):
    with precision.forward_context():
        estimates = model(record)
        losses = [F.smooth_l1_loss(estimate.float(), target) for estimate in estimates]
    weights = [0.9 ** (ROUNDS - 1 - k) for k in range(ROUNDS)]
    return sum(w * loss for w, loss in zip(weights, losses)) / sum(weights)


def main():
    torch.manual_seed(0)
    model = TideRefiner().to(device)
    precision = MixedPrecision(cache_enabled=VARIANT != "a")
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    t = torch.linspace(0, 12.0, GAUGE, device=device)
    phase = 6.28 * torch.rand(32, BATCH, 3, 1, device=device)
    waves = torch.stack([torch.sin(k * t + phase[:, :, k - 1]) / k for k in (1, 2, 3)]).sum(0)
    records = waves + 0.3 * torch.randn_like(waves)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = training_step(model, precision, records[step % 32], waves[step % 32])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
