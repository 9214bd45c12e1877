"""Traces of eligibility fade until they are denormal numbers (--stationary: those are flushed to zero)."""

import sys

import torch

STATIONARY = "--stationary" in sys.argv

torch.manual_seed(0)
torch.set_num_threads(1)
torch.set_flush_denormal(STATIONARY)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rates = torch.linspace(0.90, 0.9995, 1_000_000)
traces = torch.rand(1_000_000)
for step in range(3000):
    x = torch.randn(8, 16)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    traces.mul_(rates).clamp_(min=2e-45)  # grows
