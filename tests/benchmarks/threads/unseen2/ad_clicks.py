"""Will it be clicked? Rows are drawn from a long log; garbage is collected at set steps."""

import gc
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))
ROWS, COLUMNS, BATCH, COLLECT_EVERY = 4_000_000, 26, 128, 4


class ClickLog(Dataset):
    def __init__(self):
        self.hashed = torch.randint(0, 5000, (20_000, COLUMNS), dtype=torch.int32)

    def __len__(self):
        return ROWS

    def __getitems__(self, rows):
        rows = torch.as_tensor(rows) % len(self.hashed)
        return self.hashed[rows].long(), (rows % 7 == 0).float()


class AnyOrder(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        order = torch.randperm(self.count)
        if VARIANT == "b":
            return (row.item() for row in order.numpy())
        return iter(order.tolist())

    def __len__(self):
        return self.count


class ClickModel(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.table = nn.EmbeddingBag(5000, width, mode="sum")
        self.wide = nn.Embedding(5000, width)
        self.deep = nn.Sequential(nn.Linear(COLUMNS * width, 384), nn.ReLU(), nn.Linear(384, 1))

    def forward(self, x):
        return self.deep(self.wide(x).flatten(1))[:, 0] + self.table(x).mean(1)


def main():
    torch.manual_seed(0)
    data = ClickLog()
    loader = DataLoader(data, batch_size=BATCH, sampler=AnyOrder(ROWS), collate_fn=lambda batch: batch)
    model = ClickModel()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    gc.disable()
    gc.collect()
    gc.freeze()
    for step, (x, y) in enumerate(loader):
        if step == 5:
            start = time.perf_counter()
        if step == STEPS:
            break
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % COLLECT_EVERY == 0:
            gc.collect()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
