"""What a market stall sells, seen on photographs of visitors."""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 130))
BATCH = int(os.environ.get("BATCH", 32))
WIDTH = int(os.environ.get("WIDTH", 288))
PHOTOS = int(os.environ.get("PHOTOS", 28))
WORKERS = int(os.environ.get("WORKERS", 14))
LARGE, SHORT, CROP, GOODS = (2880, 2160), 256, 224, 20
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def take_photos(folder):
    rng = np.random.default_rng(3)
    for i in range(PHOTOS):
        coarse = Image.fromarray(rng.integers(0, 256, (75, 100, 3), dtype=np.uint8))
        photo = np.asarray(coarse.resize(LARGE, Image.BICUBIC), dtype=np.int16)
        grain = rng.integers(-4, 5, photo.shape, dtype=np.int16)
        Image.fromarray((photo + grain).clip(0, 255).astype(np.uint8)).save(
            folder / f"{i:04}.jpg", quality=85
        )


class Stalls(Dataset):
    def __init__(self, folder, length):
        self.paths, self.length = sorted(folder.glob("*.jpg")), length

    def __len__(self):
        return self.length

    def read(self, path):
        image = Image.open(path)
        if VARIANT == "b":
            image.draft("RGB", (SHORT, SHORT))
        return image.convert("RGB")

    def __getitem__(self, i):
        which = i % len(self.paths)
        image = self.read(self.paths[which])
        scale = SHORT / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
        rng = np.random.default_rng(i)
        left, top = rng.integers(0, image.width - CROP + 1), rng.integers(0, image.height - CROP + 1)
        image = image.crop((left, top, left + CROP, top + CROP))
        if rng.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), which % GOODS


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm2(self.two(F.relu(self.norm1(self.one(x))))))


def stall_net():
    layers, width = [nn.Conv2d(3, WIDTH, 7, 4, 3)], WIDTH
    for stage in range(3):
        layers += [Residual(width), Residual(width)]
        if stage < 2:
            layers.append(nn.Conv2d(width, 2 * width, 3, 2, 1))
            width *= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, GOODS))


def main():
    torch.manual_seed(11)
    with tempfile.TemporaryDirectory() as folder:
        take_photos(Path(folder))
        model = stall_net().to(device, memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
        loader = DataLoader(
            Stalls(Path(folder), STEPS * BATCH), BATCH, num_workers=WORKERS, pin_memory=device.type == "cuda"
        )
        warm = min(20, STEPS // 2)
        for step, (images, goods) in enumerate(loader):
            if step == warm:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
            images = images.to(device, non_blocking=True).to(memory_format=torch.channels_last)
            goods = goods.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                scores = model(images.float() / 127.5 - 1)
                loss = F.cross_entropy(scores, goods)
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
