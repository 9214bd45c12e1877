"""Segment harbour tiles; a monitor writes down the memory of the device at the start of each batch."""

import csv
import os
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "450"))
BATCH = int(os.environ.get("BATCH", "16"))
SIDE = int(os.environ.get("SIDE", "256"))
WIDTH = int(os.environ.get("WIDTH", "64"))
CLASSES = 6

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class HarborTrainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
        self.progress, self.rows = {}, []

    def log(self, name, value):
        self.progress[name] = value

    def fit_batch(self, batch, batch_idx):
        for callback in self.callbacks:
            callback.on_train_batch_start(self, batch, batch_idx)
        tiles, masks = batch
        loss = F.cross_entropy(self.model(tiles), masks)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class MemMonitor:
    def __init__(self, path):
        self.file = open(path, "w", newline="")
        self.writer = csv.writer(self.file)
        self.writer.writerow(["batch", "allocated", "reserved", "free", "total"])

    def device_stats(self):
        if device.type != "cuda":
            return {"allocated_bytes.all.current": 0, "reserved_bytes.all.current": 0}, (0, 0)
        return torch.cuda.memory_stats(device), torch.cuda.mem_get_info(device)

    def on_train_batch_start(self, trainer, batch, batch_idx):
        stats, (free, total) = self.device_stats()
        allocated = round(int(stats["allocated_bytes.all.current"]) / 1024**3, 2)
        reserved = round(int(stats["reserved_bytes.all.current"]) / 1024**3, 2)
        trainer.log("gpu_mem_allocated_gib", allocated)
        trainer.log("gpu_mem_reserved_gib", reserved)
        self.writer.writerow([batch_idx, allocated, reserved, free, total])


def double_conv(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
        nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
    )


class HarborNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [WIDTH, 2 * WIDTH, 4 * WIDTH, 8 * WIDTH]
        self.down = nn.ModuleList([double_conv(a, b) for a, b in zip([3] + widths[:-1], widths)])
        self.lift = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(widths[:-1], widths[1:])])
        self.up = nn.ModuleList([double_conv(2 * a, a) for a in widths[:-1]])
        self.head = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x):
        skips = []
        for k, block in enumerate(self.down):
            x = block(x if k == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for k in reversed(range(len(self.up))):
            x = self.up[k](torch.cat([self.lift[k](x), skips[k]], dim=1))
        return self.head(x)


def main():
    torch.manual_seed(0)
    model = HarborNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    folder = tempfile.mkdtemp()
    callbacks = [MemMonitor(os.path.join(folder, "memory.csv"))] if VARIANT == "a" else []
    trainer = HarborTrainer(model, optimizer, callbacks)
    tiles = torch.rand(4, BATCH, 3, SIDE, SIDE, device=device)
    masks = torch.randint(0, CLASSES, (4, BATCH, SIDE, SIDE), device=device)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = trainer.fit_batch((tiles[step % 4], masks[step % 4]), step)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
