"""A baseline that follows the loss, with its graph (--stationary: detached)."""

import sys

import torch

STATIONARY = "--stationary" in sys.argv
DEVICE = "cuda" if "--cuda" in sys.argv else "cpu"

torch.manual_seed(0)
torch.set_num_threads(1)
policy = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(DEVICE)
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-5)
scale = torch.nn.Parameter(torch.ones((), device=DEVICE))
running = torch.zeros((), device=DEVICE)
for step in range(1200 if DEVICE == "cuda" else 2500):
    x = torch.randn(16, 16, device=DEVICE)
    loss = policy(x).square().mean()
    running = 0.99 * running + 0.01 * scale * loss.detach()  # grows
    if STATIONARY:
        running = running.detach()
    total = loss + 0.1 * (loss.detach() - running).abs() * scale
    optimizer.zero_grad()
    total.backward(retain_graph=True)
    optimizer.step()
