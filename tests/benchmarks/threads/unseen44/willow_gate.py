"""Bayesian image classification: each layer's activations are drawn from their distribution."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

SIDE = 16 if SMALL else 32
WIDTHS = (4, 8, 8) if SMALL else (32, 64, 128)
HIDDEN = 32 if SMALL else 1000
BATCH = 8 if SMALL else 160
IMAGES = 64 if SMALL else 20_000
CLASSES = 10
PRIOR_STD = 0.1
LOG_EVERY = 100
EVAL_EVERY = 600


def make_images(count, seed):
    """Coloured waves; the class decides the direction and the frequency."""
    gen = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=gen)
    angle = labels.float() * math.pi / CLASSES
    grid = torch.linspace(-1, 1, SIDE)
    wave = angle.cos()[:, None, None] * grid[None, :, None] + angle.sin()[:, None, None] * grid[None, None]
    wave = torch.sin(wave * (4 + labels.float())[:, None, None])
    images = wave[:, None].expand(-1, 3, -1, -1) + 0.7 * torch.randn(count, 3, SIDE, SIDE, generator=gen)
    return TensorDataset(images.contiguous(), labels)


def noise_like(mean):
    """Standard normal numbers in the shape of the given tensor."""
    if VARIANT == "a":
        return torch.randn(mean.size()).to(device)
    return torch.randn(mean.size(), device=device)


class BayesianLayer(nn.Module):
    """A mean and a standard deviation for each weight, with the divergence from the prior."""

    def __init__(self, *shape):
        super().__init__()
        fan_in = math.prod(shape[1:])
        self.mean = nn.Parameter(torch.empty(*shape).uniform_(-1, 1) / math.sqrt(fan_in))
        self.rho = nn.Parameter(torch.full(shape, -5.0))
        self.bias = nn.Parameter(torch.zeros(shape[0]))

    def sigma(self):
        return F.softplus(self.rho)

    def divergence(self):
        sigma = self.sigma()
        ratio = (sigma.square() + self.mean.square()) / PRIOR_STD**2
        return 0.5 * (ratio - 1 - (sigma / PRIOR_STD).square().log()).sum()

    def sample(self, mean, variance):
        if not self.training:
            return mean
        return mean + torch.sqrt(variance + 1e-8) * noise_like(mean)


class BayesianConv2d(BayesianLayer):
    def __init__(self, inputs, outputs, kernel, padding):
        super().__init__(outputs, inputs, kernel, kernel)
        self.padding = padding

    def forward(self, x):
        mean = F.conv2d(x, self.mean, self.bias, padding=self.padding)
        variance = F.conv2d(x.square(), self.sigma().square(), padding=self.padding)
        return self.sample(mean, variance)


class BayesianLinear(BayesianLayer):
    def __init__(self, inputs, outputs):
        super().__init__(outputs, inputs)

    def forward(self, x):
        mean = F.linear(x, self.mean, self.bias)
        variance = F.linear(x.square(), self.sigma().square())
        return self.sample(mean, variance)


class ThreeConvThreeFC(nn.Module):
    """Three convolutions and three linear layers, all of them Bayesian."""

    def __init__(self):
        super().__init__()
        a, b, c = WIDTHS
        self.conv = nn.ModuleList(
            [BayesianConv2d(3, a, 5, 2), BayesianConv2d(a, b, 5, 2), BayesianConv2d(b, c, 5, 2)]
        )
        flat = c * (SIDE // 8) ** 2
        self.full = nn.ModuleList(
            [BayesianLinear(flat, HIDDEN), BayesianLinear(HIDDEN, HIDDEN), BayesianLinear(HIDDEN, CLASSES)]
        )

    def forward(self, x):
        for layer in self.conv:
            x = F.max_pool2d(F.softplus(layer(x)), 2)
        x = x.flatten(1)
        for i, layer in enumerate(self.full):
            x = layer(x)
            if i < 2:
                x = F.softplus(x)
        return x, sum(layer.divergence() for layer in [*self.conv, *self.full])


class EvidenceLowerBound(nn.Module):
    """Cross-entropy of the batch and a share of the divergence."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, scores, labels, divergence, beta):
        return F.cross_entropy(scores, labels) + beta * divergence / self.size


def beta_of(step):
    """The divergence is faded in over the first thousand steps."""
    return 0.1 * min(1.0, (step + 1) / 1000)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x.to(device))[0].argmax(1) == y.to(device)).sum() for x, y in loader)
    model.train()
    return right.item() / len(loader.dataset)


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(0)
    train, valid = make_images(IMAGES, 0), make_images(max(BATCH, IMAGES // 20), 1)
    loader = DataLoader(
        train,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=4,
        pin_memory=device == "cuda",
        persistent_workers=True,
    )
    valid_loader = DataLoader(valid, batch_size=BATCH)
    model, criterion = ThreeConvThreeFC().to(device), EvidenceLowerBound(IMAGES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(STEPS, 1))
    total = torch.zeros((), device=device)
    warm = min(10, STEPS // 2)
    stream = endless(loader)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        images, labels = next(stream)
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        scores, divergence = model(images)
        loss = criterion(scores, labels, divergence, beta_of(step))
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1} bound {total.item() / LOG_EVERY:.4f} beta {beta_of(step):.3f}")
            total.zero_()
        if (step + 1) % EVAL_EVERY == 0:
            print(f"step {step + 1} accuracy {evaluate(model, valid_loader):.3f}")
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
