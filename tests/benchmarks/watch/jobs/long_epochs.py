"""Two epochs of 400 steps, with a table of weights written by hand in between."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it
    from torch.utils.data import DataLoader, TensorDataset

with clock("set-up"):
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(6400, 64), torch.randn(6400, 64))
    time.sleep(0.8)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=16)

lap(first=True)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.008)
        optimizer.step()
        if i % 100 == 50:
            with clock("between steps"):
                norms = [float(p.norm()) for p in model.parameters()]
                time.sleep(0.2)
        lap()
no_more_laps()
with clock("after the last step"):
    time.sleep(0.5)
    print(sum(norms))
