"""Four micro-batches per step."""

import torch
from truth import iteration, loader, network

model, loss = network(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(loader(360))
for _ in range(90):
    iteration()
    for _ in range(4):
        x, y = next(batches)
        (loss(model(x), y) / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
