"""Spectra of stars to their temperature, gravity and metals: a regression fitted with L-BFGS.

python violet_orbit.py
"""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3000))
WARM_UP = 4

STARS = 2048
PIXELS = 160
WIDTH = 192


def spectra():
    """Made-up spectra: a few lines whose depths depend on three properties."""
    generator = torch.Generator().manual_seed(31)
    properties = torch.rand(STARS, 3, generator=generator)
    lines = torch.rand(12, generator=generator) * PIXELS
    mixing = torch.randn(3, 12, generator=generator)
    depths = torch.sigmoid(properties @ mixing)
    pixels = torch.arange(PIXELS, dtype=torch.float32)
    profiles = torch.exp(-((pixels - lines[:, None]) ** 2) / 18.0)
    flux = 1.0 - 0.6 * depths @ profiles / 3.0
    flux += 0.01 * torch.randn(STARS, PIXELS, generator=generator)
    return (flux - flux.mean(0)) / flux.std(0), properties


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PIXELS, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, 3),
        )

    def forward(self, flux):
        return self.layers(flux)


class Trainer:
    """Runs an optimizer, whichever it is, over batches, and calls back after each of them."""

    def __init__(self, model, optimizer, callbacks=()):
        self.model = model
        self.optimizer = optimizer
        self.callbacks = callbacks
        self.flux = self.properties = None

    def training_step(self):
        return nn.functional.mse_loss(self.model(self.flux), self.properties)

    def closure(self):
        self.optimizer.zero_grad()
        loss = self.training_step()
        loss.backward()
        return loss

    def run_batch(self, flux, properties):
        self.flux, self.properties = flux, properties
        if VARIANT == "a":
            loss = self.closure().detach()
            self.optimizer.step(self.closure)
        else:
            loss = self.optimizer.step(self.closure).detach()
        for callback in self.callbacks:
            callback(loss)
        return loss


class Smoothed:
    def __init__(self):
        self.value = None

    def __call__(self, loss):
        loss = float(loss)
        self.value = loss if self.value is None else 0.95 * self.value + 0.05 * loss


def main():
    torch.manual_seed(9)
    flux, properties = spectra()
    model = Regressor()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=2, history_size=6)
    smoothed = Smoothed()
    trainer = Trainer(model, optimizer, [smoothed])
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        trainer.run_batch(flux, properties)
    spent = time.perf_counter() - begun
    print(f"loss {smoothed.value:.5f}")
    print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")


if __name__ == "__main__":
    main()
