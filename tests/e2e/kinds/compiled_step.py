"""The whole step, optimizer included, in one compiled function."""

import torch
from truth import iteration, loader, network

model, loss = network(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


@torch.compile(backend="aot_eager")
def step(x, y):
    value = loss(model(x), y)
    value.backward()
    optimizer.step()
    optimizer.zero_grad()
    return value


batches = iter(loader())
for _ in range(90):
    iteration()
    step(*next(batches))
