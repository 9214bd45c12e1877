"""Vision, epoch loops with validation; augmentation pixel row by pixel row in __getitem__, no workers.

Planted: input-bound. --fixed: the same augmentation on the whole batch at once.
"""

import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TRUTH = "input-bound"
FIXED = "--fixed" in sys.argv


class Digits(Dataset):
    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.images = rng.random((n, 1, 28, 28), dtype=np.float32)
        self.labels = rng.integers(0, 10, n)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = self.images[i].copy()
        if not FIXED:
            for row in range(28):  # elastic-like jitter, a row at a time
                img[0, row] = np.roll(img[0, row], np.random.randint(-2, 3))
                img[0, row] += np.random.normal(0, 0.02, 28)
        return torch.from_numpy(img), int(self.labels[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.fc1 = nn.Linear(2304, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(model, device, loader, optimizer):
    model.train()
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        if FIXED:
            data = torch.roll(data, int(torch.randint(-2, 3, (1,))), 3) + 0.02 * torch.randn_like(data)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    return loss


def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data.to(device)).argmax(1) == target.to(device)).sum().item()
    return correct


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(1)
train_loader = DataLoader(Digits(64 * 40), batch_size=64, shuffle=True)
test_loader = DataLoader(Digits(256), batch_size=256)
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
times = []
for epoch in range(3):
    t0 = time.perf_counter()
    loss = train(model, device, train_loader, optimizer)
    loss.item()
    times.append(time.perf_counter() - t0)
    print("epoch", epoch, "correct", test(model, device, test_loader))
print(f"step_ms={min(times) * 1000 / len(train_loader):.3f}")
