"""Only the optimizer's step is compiled, so its hooks never fire."""

import torch
from truth import iteration, loader, network

model, loss = network(), torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
update = torch.compile(lambda: optimizer.step(), backend="aot_eager")
batches = iter(loader())
for _ in range(90):
    iteration()
    x, y = next(batches)
    optimizer.zero_grad()
    loss(model(x), y).backward()
    update()
