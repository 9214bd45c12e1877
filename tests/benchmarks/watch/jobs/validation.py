"""Validation on held-out batches after each epoch, with a checkpoint where it is the best."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it
    from torch.utils.data import DataLoader, TensorDataset


def validate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in held_out:
            total += float((model(x) - y).square().mean())
            time.sleep(0.006)
    model.train()
    return total


with clock("set-up"):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training = DataLoader(TensorDataset(torch.randn(800, 64), torch.randn(800, 64)), batch_size=8)
    held_out = DataLoader(TensorDataset(torch.randn(480, 64), torch.randn(480, 64)), batch_size=8)

lap(first=True)
for epoch in range(5):
    for x, y in training:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.01)
        optimizer.step()
        lap()
    with clock("validation"):
        validate()
    with clock("checkpoints"):
        torch.save({"model": model.state_dict(), "history": torch.zeros(6_000_000)}, "best.pt")
no_more_laps()
