"""Digits classifier, after the MNIST example."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
EPOCHS = int(os.environ.get("EPOCHS", 40))


class Digits(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.data = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8, generator=g)
        self.targets = torch.randint(0, 10, (count,), generator=g)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        img = self.data[index].unsqueeze(0).float().div(255)
        img = (img - 0.1307) / 0.3081
        return img, int(self.targets[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1)
        self.conv2 = nn.Conv2d(16, 32, 3, 1)
        self.fc1 = nn.Linear(4608, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = torch.flatten(x, 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(model, loader, optimizer):
    model.train()
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
    return loss.item()


def test(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            correct += (model(data).argmax(1) == target).sum().item()
    return correct / len(loader.dataset)


def main():
    torch.manual_seed(1)
    kwargs = {"num_workers": 1}
    if VARIANT == "b":
        kwargs["persistent_workers"] = True
    train_loader = DataLoader(Digits(20 * 64, 0), batch_size=64, shuffle=True, **kwargs)
    test_loader = DataLoader(Digits(200, 1), batch_size=100, **kwargs)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    train(model, train_loader, optimizer)
    test(model, test_loader)
    start = time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        loss = train(model, train_loader, optimizer)
        accuracy = test(model, test_loader)
    seconds = time.perf_counter() - start
    print(f"loss {loss:.4f} accuracy {accuracy:.3f}")
    print(f"{1000 * seconds / (EPOCHS * len(train_loader)):.2f} ms per step")


if __name__ == "__main__":
    main()
