"""torch.compile around the model, with a backend that needs no C++ compiler."""

import torch
from truth import iteration, loader, network

model, loss = torch.compile(network(), backend="aot_eager"), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters())
batches = iter(loader())
for _ in range(90):
    iteration()
    x, y = next(batches)
    optimizer.zero_grad()
    loss(model(x), y).backward()
    optimizer.step()
