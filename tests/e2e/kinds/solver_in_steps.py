"""LBFGS with more evaluations in its first step than a step has by default, and fewer in the others."""

import torch
from truth import iteration, network

model, loss = network(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=40, tolerance_grad=0, tolerance_change=0)
x, y = torch.randn(64, 16), torch.randint(0, 4, (64,))


def closure():
    iteration()
    optimizer.zero_grad()
    value = loss(model(x), y)
    value.backward()
    return value


for _ in range(8):
    optimizer.step(closure)
    optimizer.param_groups[0]["max_iter"] = 12
