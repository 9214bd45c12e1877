"""Contrastive pre-training of an image encoder for imitation (two views of each frame)."""

import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "420"))
BATCH = int(os.environ.get("BATCH", "192"))
WIDTH = int(os.environ.get("WIDTH", "64"))
FRAMES = int(os.environ.get("FRAMES", "20000"))
SIDE = 64
CALC_LOG_INTERVAL = 1 if VARIANT == "a" else 10

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ScoutFrames(Dataset):
    def __init__(self, size):
        self.size = size
        self.rng = np.random.default_rng(3)
        self.frames = self.rng.integers(0, 256, size=(FRAMES, SIDE + 8, SIDE + 8, 3), dtype=np.uint8)

    def __len__(self):
        return self.size

    def view(self, frame):
        top, left = self.rng.integers(0, 9, size=2)
        crop = frame[top : top + SIDE, left : left + SIDE]
        if self.rng.random() < 0.5:
            crop = crop[:, ::-1]
        image = np.ascontiguousarray(crop.transpose(2, 0, 1)).astype(np.float32) / 255.0
        image *= np.float32(self.rng.uniform(0.7, 1.3))
        return torch.from_numpy((image - 0.5) / 0.25)

    def __getitem__(self, i):
        frame = self.frames[i % FRAMES]
        return self.view(frame), self.view(frame)


class Residual(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out)
        self.skip = nn.Conv2d(n_in, n_out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def make_encoder():
    layers, n_in = [nn.Conv2d(3, WIDTH, 5, 2, 2, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()], WIDTH
    for k, depth in enumerate((3, 4, 6, 3)):
        for j in range(depth):
            layers.append(Residual(n_in, WIDTH * 2**k, 2 if j == 0 and k > 0 else 1))
            n_in = WIDTH * 2**k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_in, 128))


class AverageMeter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1


class ScoutLearner:
    def __init__(self):
        self.encoder = make_encoder().to(device)
        self.decoder = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
        self.params = list(self.encoder.parameters()) + list(self.decoder.parameters())
        self.optimizer = torch.optim.Adam(self.params, lr=3e-4)
        self.loss_meter, self.records = AverageMeter(), []

    def calculate_norms(self):
        grads = torch.stack([torch.norm(p.grad.detach()) for p in self.params])
        weights = torch.stack([torch.norm(p.detach()) for p in self.params])
        return torch.norm(grads), torch.norm(weights)

    def batch_update(self, step, contexts, targets):
        z = F.normalize(self.decoder(self.encoder(torch.cat([contexts, targets]))), dim=1)
        n = contexts.shape[0]
        logits = (z @ z.t() / 0.1).masked_fill(torch.eye(2 * n, dtype=torch.bool, device=device), -1e9)
        labels = torch.arange(2 * n, device=device).roll(n)
        loss = F.cross_entropy(logits, labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if step % CALC_LOG_INTERVAL == 0:
            grad_norm, weight_norm = self.calculate_norms()
            loss_item = loss.item()
            self.loss_meter.update(loss_item)
            self.records.append(
                {
                    "loss": loss_item,
                    "gradient_norm": grad_norm.item(),
                    "weight_norm": weight_norm.item(),
                    "step": step,
                }
            )
        return loss.detach()


def main():
    torch.manual_seed(0)
    cuda = device.type == "cuda"
    loader = DataLoader(ScoutFrames(STEPS * BATCH), batch_size=BATCH, pin_memory=cuda)
    learner = ScoutLearner()
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step, (contexts, targets) in enumerate(loader):
        if step == warm:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        contexts, targets = contexts.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        loss = learner.batch_update(step, contexts, targets)
    if cuda:
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
