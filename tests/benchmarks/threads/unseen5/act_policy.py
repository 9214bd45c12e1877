"""Imitation learning: two cameras and a joint state in, a chunk of actions out."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from torchvision.transforms import v2

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
BATCH = int(os.environ.get("BATCH", 64))
WORKERS = int(os.environ.get("WORKERS", 14))
SIDE, STATE, CHUNK, WIDTH = 256, 8, 50, 512
device = torch.device(os.environ.get("DEVICE", "cuda"))


class RandomSubset:
    """Applies some of the transforms, in random order."""

    def __init__(self, count=4):
        self.count = count
        self.transforms = [
            v2.ColorJitter(brightness=(0.8, 1.2)),
            v2.ColorJitter(contrast=(0.8, 1.2)),
            v2.ColorJitter(saturation=(0.5, 1.5)),
            v2.ColorJitter(hue=(-0.05, 0.05)),
            v2.RandomAdjustSharpness(1.5, p=1.0),
            v2.RandomAffine(degrees=(-5, 5), translate=(0.05, 0.05)),
            v2.GaussianBlur(5),
        ]

    def __call__(self, frames):
        for i in torch.randperm(len(self.transforms))[: self.count].tolist():
            frames = self.transforms[i](frames)
        return frames


class Episodes(Dataset):
    def __init__(self, transform=None, length=200_000, stored=256):
        generator = torch.Generator().manual_seed(3)
        self.length, self.transform = length, transform
        self.frames = torch.randint(
            0, 256, (stored, 2, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator
        )
        self.states = torch.randn(stored, STATE, generator=generator)
        self.actions = torch.randn(stored, CHUNK, STATE, generator=generator)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        i %= len(self.frames)
        cameras = self.frames[i]
        if self.transform is not None:
            cameras = torch.stack([self.transform(frame.float() / 255) for frame in cameras])
        return cameras, self.states[i], self.actions[i]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(*list(resnet18().children())[:-2])
        self.state = nn.Linear(STATE, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(1 + 2 * (SIDE // 32) ** 2, WIDTH))
        self.queries = nn.Parameter(0.02 * torch.randn(CHUNK, WIDTH))
        options = dict(d_model=WIDTH, nhead=8, dim_feedforward=2048, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 4)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 1)
        self.head = nn.Linear(WIDTH, STATE)

    def forward(self, cameras, state):
        maps = self.backbone(cameras.flatten(0, 1)).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.state(state)[:, None], maps.reshape(len(state), -1, WIDTH)], 1)
        memory = self.encoder(tokens + self.places)
        return self.head(self.decoder(self.queries.expand(len(state), -1, -1), memory))


def main():
    torch.manual_seed(0)
    augment = RandomSubset()
    dataset = Episodes(transform=augment if VARIANT == "a" else None)
    options = dict(num_workers=WORKERS, pin_memory=device.type == "cuda", persistent_workers=WORKERS > 0)
    loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True, **options)
    model = Policy().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step, batch in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        if step == STEPS:
            break
        cameras, state, action = (part.to(device, non_blocking=True) for part in batch)
        if VARIANT == "b":
            cameras = augment((cameras.float() / 255).flatten(0, 1)).unflatten(0, (-1, 2))
        with torch.autocast(device.type, torch.bfloat16):
            predicted = model(cameras, state)
        loss = F.l1_loss(predicted.float(), action)
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
