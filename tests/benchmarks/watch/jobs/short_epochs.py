"""Fifty epochs of twelve steps, a loader each; nothing else."""

from clock import clock, lap, no_more_laps

with clock("interpreter and imports"):
    import time

    import torch
    import torch._dynamo  # optimizers import it
    from torch.utils.data import DataLoader, Dataset, Sampler


class Slow(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, i):
        return torch.randn(64), torch.tensor(float(i % 2))


class Shuffled(Sampler):
    def __len__(self):
        return 96

    def __iter__(self):
        time.sleep(0.06)  # an index is read
        yield from torch.randperm(96).tolist()


with clock("set-up"):
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Slow(), batch_size=8, sampler=Shuffled())

lap(first=True)
for epoch in range(50):
    with clock("epoch starts"):
        batches = iter(loader)
        x, y = next(batches)
    while True:
        loss = (model(x).squeeze(1) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.01)
        optimizer.step()
        lap()
        batch = next(batches, None)
        if batch is None:
            break
        x, y = batch
no_more_laps()
