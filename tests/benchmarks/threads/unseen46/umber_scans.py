"""Organs in CT volumes: a plain 3D U-Net trained on patches, with deep supervision."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
if device == "cuda":
    torch.backends.cudnn.benchmark = True

PATCH = (16, 16, 16) if SMALL else (96, 96, 96)
VOLUME = (24, 24, 24) if SMALL else (128, 160, 160)
CASES, BATCH, CLASSES = (2, 2, 4) if SMALL else (6, 2, 4)
CHANNELS = (4, 8, 8) if SMALL else (32, 64, 128, 256, 320)
INITIAL_RATE, EPOCH = 1e-2, 250


class ConvBlock(nn.Sequential):
    """Two convolutions with instance normalisation."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__(
            nn.Conv3d(inputs, outputs, 3, stride, padding=1),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(outputs, outputs, 3, padding=1),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )


class PlainUNet(nn.Module):
    """Encoder, decoder and an output at each resolution of the decoder."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleList()
        inputs = 1
        for index, outputs in enumerate(CHANNELS):
            self.encoder.append(ConvBlock(inputs, outputs, 1 if index == 0 else 2))
            inputs = outputs
        self.upsample, self.decoder, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for outputs in reversed(CHANNELS[:-1]):
            self.upsample.append(nn.ConvTranspose3d(inputs, outputs, 2, stride=2))
            self.decoder.append(ConvBlock(2 * outputs, outputs))
            self.heads.append(nn.Conv3d(outputs, CLASSES, 1))
            inputs = outputs

    def forward(self, x):
        skips = []
        for block in self.encoder:
            x = block(x)
            skips.append(x)
        skips.pop()
        outputs = []
        for upsample, block, head in zip(self.upsample, self.decoder, self.heads):
            x = block(torch.cat([upsample(x), skips.pop()], 1))
            outputs.append(head(x))
        return outputs[::-1]


def soft_dice(logits, target, smooth=1e-5):
    """One minus the mean Dice of the foreground classes, over the whole batch."""
    probabilities = torch.softmax(logits, 1)
    onehot = torch.zeros_like(probabilities).scatter_(1, target.unsqueeze(1), 1.0)
    axes = (0, 2, 3, 4)
    overlap = (probabilities * onehot).sum(axes)
    total = probabilities.sum(axes) + onehot.sum(axes)
    return 1 - ((2 * overlap + smooth) / (total + smooth))[1:].mean()


class DeepSupervision(nn.Module):
    """Dice and cross-entropy at each resolution, with halving weights."""

    def __init__(self, levels):
        super().__init__()
        weights = [0.5**level for level in range(levels)]
        self.weights = [weight / sum(weights) for weight in weights]

    def forward(self, outputs, target):
        loss = 0
        for level, (weight, logits) in enumerate(zip(self.weights, outputs)):
            logits = logits.float()
            step = 2**level
            smaller = target[:, ::step, ::step, ::step]
            loss = loss + weight * (F.cross_entropy(logits, smaller) + soft_dice(logits, smaller))
        return loss


class PatchSource:
    """Volumes on the device; a patch of a random case at a random place, mirrored at random."""

    def __init__(self):
        self.rng = np.random.default_rng(11)
        self.images, self.labels = [], []
        for _ in range(CASES):
            coarse = self.rng.integers(0, CLASSES, [size // 8 for size in VOLUME])
            label = coarse.repeat(8, 0).repeat(8, 1).repeat(8, 2)
            noise = self.rng.standard_normal(VOLUME, dtype=np.float32)
            self.labels.append(torch.from_numpy(label.astype(np.int64)).to(device))
            self.images.append(torch.from_numpy(label.astype(np.float32) + noise).to(device))

    def batch(self):
        images, labels = [], []
        for _ in range(BATCH):
            case = self.rng.integers(CASES)
            corner = [self.rng.integers(whole - part + 1) for whole, part in zip(VOLUME, PATCH)]
            place = tuple(slice(low, low + part) for low, part in zip(corner, PATCH))
            images.append(self.images[case][place])
            labels.append(self.labels[case][place])
        images, labels = torch.stack(images).unsqueeze(1), torch.stack(labels)
        axes = [axis for axis in (1, 2, 3) if self.rng.random() < 0.5]
        if axes:
            images, labels = images.flip([axis + 1 for axis in axes]), labels.flip(axes)
        return images, labels


class PolyRate:
    """The learning rate falls with a power of the part that is left."""

    def __init__(self, optimizer, total):
        self.optimizer, self.total = optimizer, max(total, 1)

    def step(self, done):
        rate = INITIAL_RATE * (1 - min(done, self.total - 1) / self.total) ** 0.9
        for group in self.optimizer.param_groups:
            group["lr"] = rate


class Trainer:
    """Holds the network, the optimizer and what has been logged."""

    def __init__(self):
        self.network = PlainUNet().to(device)
        self.loss = DeepSupervision(len(CHANNELS) - 1)
        self.source = PatchSource()
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), INITIAL_RATE, momentum=0.99, weight_decay=3e-5, nesterov=True
        )
        self.rate = PolyRate(self.optimizer, STEPS)
        self.logged = []

    def train_step(self, images, labels):
        self.optimizer.zero_grad(set_to_none=VARIANT != "a")
        with torch.autocast(device, dtype=torch.bfloat16):
            outputs = self.network(images)
        loss = self.loss(outputs, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 12)
        self.optimizer.step()
        return loss.detach()

    def on_epoch_end(self, step):
        mean = torch.stack(self.logged).mean().item()
        self.logged.clear()
        self.rate.step(step)
        print(f"step {step} train loss {mean:.4f} lr {self.optimizer.param_groups[0]['lr']:.5f}", flush=True)

    @torch.no_grad()
    def validate(self):
        """Share of the voxels of one batch that are labelled rightly."""
        images, labels = self.source.batch()
        with torch.autocast(device, dtype=torch.bfloat16):
            found = self.network(images)[0].argmax(1)
        return (found == labels).float().mean().item()


def main():
    trainer = Trainer()
    trainer.network.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        images, labels = trainer.source.batch()
        last = trainer.train_step(images, labels)
        trainer.logged.append(last)
        if (step + 1) % EPOCH == 0:
            trainer.on_epoch_end(step + 1)
        if (step + 1) % (4 * EPOCH) == 0:
            print(f"voxels right {trainer.validate():.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
