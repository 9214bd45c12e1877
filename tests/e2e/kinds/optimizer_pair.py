"""Two optimizers for two kinds of parameters, stepped one after the other; no loader."""

import torch
from truth import iteration, network

model, loss = network(), torch.nn.CrossEntropyLoss()
first = torch.optim.SGD([p for p in model.parameters() if p.dim() == 2], lr=0.01)
second = torch.optim.AdamW([p for p in model.parameters() if p.dim() < 2])
for _ in range(90):
    iteration()
    loss(model(torch.randn(4, 16)), torch.zeros(4, dtype=torch.long)).backward()
    first.step()
    second.step()
    model.zero_grad()
