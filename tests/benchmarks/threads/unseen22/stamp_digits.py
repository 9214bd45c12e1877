"""Postmarks on old letters: which town stamped them, read from small grey pictures."""

import os
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 280))
BATCH = int(os.environ.get("BATCH", 2048))
WIDTH = int(os.environ.get("WIDTH", 96))
WORKERS = int(os.environ.get("WORKERS", 3))
COUNT = int(os.environ.get("COUNT", 40000))
TOWNS = 40
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ToTensor:
    def __call__(self, picture):
        array = np.array(picture, np.uint8, copy=True)
        if array.ndim == 2:
            array = array[:, :, None]
        return torch.from_numpy(array.transpose(2, 0, 1)).contiguous().float().div(255)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, tensor):
        mean = torch.as_tensor(self.mean, dtype=tensor.dtype).view(-1, 1, 1)
        std = torch.as_tensor(self.std, dtype=tensor.dtype).view(-1, 1, 1)
        return tensor.clone().sub_(mean).div_(std)


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, x):
        for step in self.steps:
            x = step(x)
        return x


class Postmarks(Dataset):
    """Pictures of 28 x 28 pixels, kept as bytes, as in the archive's file."""

    def __init__(self, transform):
        self.towns = torch.randint(0, TOWNS, (COUNT,))
        marks = torch.randint(0, 200, (TOWNS, 28, 28))
        self.pictures = (marks[self.towns] + torch.randint(0, 56, (COUNT, 28, 28))).byte()
        self.transform = transform
        self.ready = [self.prepare(k) for k in range(COUNT)] if VARIANT == "b" else None

    def prepare(self, k):
        return self.transform(Image.fromarray(self.pictures[k].numpy()))

    def __len__(self):
        return COUNT

    def __getitem__(self, k):
        picture = self.prepare(k) if self.ready is None else self.ready[k]
        return picture, int(self.towns[k])


class MarkNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(WIDTH, 2 * WIDTH, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(2 * WIDTH * 49, 256), nn.ReLU(), nn.Linear(256, TOWNS))

    def forward(self, x):
        return self.head(self.body(x))


def main():
    torch.manual_seed(31)
    transform = Compose([ToTensor(), Normalize((0.5,), (0.29,))])
    marks = Postmarks(transform)
    sampler = RandomSampler(marks, replacement=True, num_samples=STEPS * BATCH)
    loader = DataLoader(marks, BATCH, sampler=sampler, num_workers=WORKERS, pin_memory=device.type == "cuda")
    model = MarkNet().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step, (pictures, towns) in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        pictures, towns = pictures.to(device, non_blocking=True), towns.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(pictures.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(scores.float(), towns)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
