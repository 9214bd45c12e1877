"""A GradScaler that finds infinities in every third step and then skips the optimizer."""

import torch
from truth import iteration, loader, network

model, loss = network(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
batches = iter(loader())
for i in range(90):
    iteration()
    x, y = next(batches)
    optimizer.zero_grad()
    value = loss(model(x), y)
    if i % 3 == 0:
        value = value * float("inf")
    scaler.scale(value).backward()
    scaler.step(optimizer)
    scaler.update()
