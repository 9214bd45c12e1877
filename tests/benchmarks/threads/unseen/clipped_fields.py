"""A deep network of many small layers, its gradients clipped by their norm."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
WIDTH, DEPTH, BATCH = 256, 60, 512


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def clip_gradients(parameters, max_norm, norm_type=2.0):
    parameters = [p for p in parameters if p.grad is not None]
    device = parameters[0].device
    if VARIANT == "b":
        out = torch.empty(len(parameters), device=device)
        for i, p in enumerate(parameters):
            torch.norm(p.grad.data, norm_type, out=out[i])
        coefficient = (max_norm / (torch.norm(out, norm_type) + 1e-6)).clamp(max=1.0)
        for p in parameters:
            p.grad.data.mul_(coefficient)
        return
    total = torch.zeros([], device=device)
    for p in parameters:
        total.add_(p.grad.data.pow(norm_type).sum())
    total = total ** (1.0 / norm_type)
    coefficient = torch.tensor(max_norm, device=device) / (total + 1e-6)
    for p in parameters:
        one = torch.tensor(1.0, device=device)
        p.grad.data.mul_(torch.where(coefficient < 1, coefficient, one))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = nn.Sequential(*(Layer() for _ in range(DEPTH)), nn.Linear(WIDTH, 8)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    fields = torch.randn(64, BATCH, WIDTH, device=device)
    truth = torch.randn(64, BATCH, 8, device=device)
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = nn.functional.mse_loss(model(fields[step % 64]), truth[step % 64])
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
