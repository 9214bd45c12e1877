"""Gradients are clipped by hooks that each step adds once more (--stationary: added once)."""

import sys

import torch

STATIONARY = "--stationary" in sys.argv


def clip_gradients(model, limit):
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad.clamp(-limit, limit))  # grows


torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(2500):
    if step % 10 == 0 and not (STATIONARY and step):
        clip_gradients(net, 1.0)
    x = torch.randn(16, 32)
    loss = (net(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
