"""Recognises diseases of tomato leaves in photos taken with telephones."""

import os
import random
import time

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 230))
PHOTOS, WIDTH, HEIGHT, SIDE, BATCH = 48, 320, 240, 96, 8
DISEASES = ["healthy", "rust", "blight", "mould"]


def make_photo(rng, disease):
    """A green leaf with spots of a number and colour that tell the disease."""
    y, x = np.mgrid[-1 : 1 : HEIGHT * 1j, -1 : 1 : WIDTH * 1j]
    leaf = x**2 / 0.8 + y**2 / 0.6 < 1
    image = np.where(leaf[..., None], [60, 140, 50], [150, 140, 120]).astype(np.float64)
    for _ in range(disease * 12):
        a, b = rng.uniform(-0.7, 0.7, 2)
        spot = (x - a) ** 2 + (y - b) ** 2 < rng.uniform(0.002, 0.01)
        image[spot & leaf] = [[0, 0, 0], [170, 80, 20], [70, 50, 30], [190, 190, 180]][disease]
    image += rng.normal(0, 12, image.shape)
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


class ColorJitter:
    """Light, contrast, colour and sharpness of another day and another telephone."""

    def __call__(self, image):
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = change(image).enhance(random.uniform(0.6, 1.4))
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0, 1.5)))


class RandomCrop:
    """A part of the photo, in the size of the model's input."""

    def __call__(self, image):
        side = int(min(image.size) * random.uniform(0.5, 0.9))
        left = random.randint(0, image.width - side)
        top = random.randint(0, image.height - side)
        return image.resize((SIDE, SIDE), Image.BILINEAR, (left, top, left + side, top + side))


class Photos(Dataset):
    def __init__(self):
        rng = np.random.default_rng(37)
        self.diseases = rng.integers(0, len(DISEASES), PHOTOS)
        self.photos = [make_photo(rng, disease) for disease in self.diseases]
        steps = [ColorJitter(), RandomCrop()]
        self.steps = steps if VARIANT == "a" else steps[::-1]

    def __len__(self):
        return PHOTOS * 40

    def __getitem__(self, index):
        image = self.photos[index % PHOTOS]
        for step in self.steps:
            image = step(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return pixels, int(self.diseases[index % PHOTOS])


class LeafNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        layers, inputs = [], 3
        for outputs in (width, 2 * width, 4 * width, 4 * width):
            layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, len(DISEASES))

    def forward(self, pixels):
        return self.head(self.body(pixels).mean((2, 3)))


def main():
    torch.manual_seed(37)
    random.seed(37)
    loader = DataLoader(Photos(), batch_size=BATCH, shuffle=True)
    model = LeafNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for pixels, diseases in loader:
            if step == warm:
                start = time.perf_counter()
            loss = F.cross_entropy(model(pixels), diseases)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
