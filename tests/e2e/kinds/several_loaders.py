"""Labelled and unlabelled batches from two loaders, a fresh pair each epoch."""

import torch
from truth import iteration, loader, network

model, loss = network(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _epoch in range(6):
    for i in range(15):
        iteration()
        if i == 0:
            labelled, unlabelled = iter(loader(15)), iter(loader(15))
        x, y = next(labelled)
        u, _ = next(unlabelled)
        optimizer.zero_grad()
        (loss(model(x), y) + model(u).square().mean()).backward()
        optimizer.step()
