"""Lesions segmented by a small U-Net, with Dice and the boundary loss."""

import os
import time

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 16))
SIDE = int(os.environ.get("SIDE", 192))
WIDTH = int(os.environ.get("WIDTH", 64))
WORKERS = int(os.environ.get("WORKERS", 12))
device = torch.device(os.environ.get("DEVICE", "cuda"))


def signed_distance(mask):
    inside = mask.astype(bool)
    if not inside.any():
        return np.zeros(mask.shape, dtype=np.float32)
    away = distance_transform_edt(~inside) * ~inside
    return (away - (distance_transform_edt(inside) - 1) * inside).astype(np.float32)


class Scans(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        g = np.random.default_rng(index)
        y, x = np.mgrid[:SIDE, :SIDE] / SIDE
        mask = np.zeros((SIDE, SIDE), dtype=bool)
        for cy, cx, r in zip(g.random(3), g.random(3), 0.05 + 0.15 * g.random(3)):
            mask |= (y - cy) ** 2 + (x - cx) ** 2 < r * r
        scan = g.normal(size=(1, SIDE, SIDE)).astype(np.float32) + 0.8 * mask
        item = {"scan": scan.astype(np.float32), "mask": mask.astype(np.int64)}
        if VARIANT == "b":
            item["distance"] = signed_distance(mask)
        return {k: torch.from_numpy(v) for k, v in item.items()}


def twice(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        w = [WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH]
        self.down = nn.ModuleList([twice(i, o) for i, o in zip([1, *w], w)])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(o, i, 2, 2) for i, o in zip(w, w[1:])])
        self.up = nn.ModuleList([twice(2 * i, i) for i in w[:-1]])
        self.out = nn.Conv2d(WIDTH, 2, 1)

    def forward(self, x):
        kept = []
        for i, layer in enumerate(self.down):
            x = layer(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i in reversed(range(len(self.up))):
            x = self.up[i](torch.cat([kept[i], self.grow[i](x)], 1))
        return self.out(x)


def dice_loss(probs, masks):
    wanted = F.one_hot(masks, 2).permute(0, 3, 1, 2).float()
    shared = (probs * wanted).sum((0, 2, 3))
    return 1 - (2 * shared / (probs.sum((0, 2, 3)) + wanted.sum((0, 2, 3)))).mean()


def boundary_loss(probs, batch):
    if VARIANT == "a":
        masks = batch["mask"].cpu().numpy()
        distances = np.stack([signed_distance(mask) for mask in masks])
        distances = torch.from_numpy(distances).to(probs.device)
    else:
        distances = batch["distance"]
    return (probs[:, 1] * distances).mean()


def main():
    torch.manual_seed(51)
    model = UNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    loader = DataLoader(Scans(), BATCH, num_workers=WORKERS, pin_memory=device.type == "cuda")
    warm = min(20, STEPS // 2)
    for step, batch in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(batch["scan"])
        probs = logits.float().softmax(1)
        loss = dice_loss(probs, batch["mask"]) + 0.01 * boundary_loss(probs, batch)
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
