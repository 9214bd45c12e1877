"""Outputs are kept until the memory that the process may have is used up."""

from clock import clock, lap

with clock("interpreter and imports"):
    import resource
    import time

    import torch
    import torch._dynamo  # optimizers import it

with clock("set-up"):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 1_000_000_000,) * 2)
    kept = []

lap(first=True)
for step in range(100_000):
    x = torch.randn(8, 64)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    time.sleep(0.012)
    optimizer.step()
    kept.append(torch.ones(500_000))
    lap()
