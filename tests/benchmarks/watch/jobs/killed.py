"""Killed in the middle of an epoch."""

from clock import clock, lap

with clock("interpreter and imports"):
    import os
    import signal
    import time

    import torch
    import torch._dynamo  # optimizers import it
    from torch.utils.data import DataLoader, TensorDataset

with clock("set-up"):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(8 * 150, 64)), batch_size=8)

lap(first=True)
for epoch in range(100):
    for i, (x,) in enumerate(loader):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.014)
        optimizer.step()
        if (epoch, i) == (18, 70):
            os.kill(os.getpid(), signal.SIGKILL)
        lap()
    with clock("checkpoints"):
        torch.save([model.state_dict(), torch.zeros(6_000_000)], "model.pt")
