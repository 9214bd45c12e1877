"""DistributedDataParallel, started by torchrun or by the script's own variables, gloo."""

import torch
from truth import iteration, loader, network

torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(network())
loss = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = iter(loader(600))
try:
    for _ in range(600):
        iteration()
        x, y = next(batches)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
finally:
    torch.distributed.destroy_process_group()
