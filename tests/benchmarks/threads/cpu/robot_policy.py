"""Behaviour cloning: the next sixteen actions from the state."""

import os
import time

import torch
from robot_store import Table, make_rows, to_torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
HORIZON = 2


class Episodes(Dataset):
    def __init__(self, table):
        self.table = table
        self.states = table["observation.state"]
        self.actions = table["action"]

    def __len__(self):
        return len(self.table) - HORIZON

    def __getitem__(self, i):
        state = torch.as_tensor(self.states[i])
        action = torch.stack([torch.as_tensor(self.actions[i + k]) for k in range(HORIZON)])
        return state, action


class Policy(nn.Module):
    def __init__(self, width=384):
        super().__init__()
        self.embed = nn.Linear(7, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(3)
        )
        self.head = nn.Linear(width, 7 * HORIZON)

    def forward(self, state):
        x = self.embed(state)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x).view(-1, HORIZON, 7)


def batches(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    rows = make_rows(2000)
    if VARIANT == "a":
        dataset = Episodes(Table(rows).with_transform(to_torch))
    else:
        dataset = Episodes(Table(rows))
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    policy = Policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    stream = batches(loader)
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        state, action = next(stream)
        loss = nn.functional.l1_loss(policy(state), action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
