"""One optimizer per parameter, stepped by a hook as soon as its gradient is there."""

import torch
from truth import iteration, loader, network

model, loss = network(), torch.nn.CrossEntropyLoss()
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
batches = iter(loader())
for _ in range(90):
    iteration()
    x, y = next(batches)
    loss(model(x), y).backward()
