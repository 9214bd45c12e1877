"""Four epochs with workers, an evaluation and a save at each end, and a list that keeps every loss.

bottleneck watch --quiet --out RUN train.py
"""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCHES = 4, 640

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train = DataLoader(TensorDataset(torch.randn(BATCHES * 8, 64)), batch_size=8, shuffle=True, num_workers=1)
held_out = torch.randn(256, 64)
losses = []


def validate():
    model.eval()
    with torch.no_grad():
        for batch in held_out.split(8):
            model(batch)
            time.sleep(0.02)
    model.train()


for _ in range(EPOCHS):
    for (batch,) in train:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        mean = sum(float(torch.stack(losses).mean()) for _ in range(3))
    validate()
    torch.save({"model": model.state_dict(), "mean": mean, "pad": torch.zeros(4_000_000)}, "model.pt")
