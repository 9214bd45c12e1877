"""Merge diffraction spots of a crystal: one amplitude per reflection, one scale per spot."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))
WARM = min(10, STEPS // 2)
REFLECTIONS = 4000
SPOTS = 60000
TEST_FRACTION = 0.5
METADATA = 8
WIDTH = 32
LAYERS = 5
SAMPLES = 1
VALIDATION_FREQUENCY = 1 if VARIANT == "a" else 10


class ScalingModel(nn.Module):
    """Mean and spread of the scale of a spot."""

    def __init__(self):
        super().__init__()
        layers, size = [], METADATA
        for _ in range(LAYERS):
            layers += [nn.Linear(size, WIDTH), nn.LeakyReLU(0.01)]
            size = WIDTH
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTH, 2))

    def forward(self, metadata):
        mean, spread = self.layers(metadata).unbind(1)
        return mean, F.softplus(spread) + 1e-3


class MergingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.ones(REFLECTIONS))
        self.raw_scale = nn.Parameter(torch.full((REFLECTIONS,), -2.0))
        self.scaling = ScalingModel()

    def predict(self, data, generator):
        scale = F.softplus(self.raw_scale) + 1e-4
        amplitude = self.loc + scale * torch.randn(SAMPLES, REFLECTIONS, generator=generator)
        mean, spread = self.scaling(data["metadata"])
        factor = mean + spread * torch.randn(SAMPLES, len(mean), generator=generator)
        return factor * amplitude[:, data["refl_id"]] ** 2, scale

    def forward(self, data, generator):
        predicted, scale = self.predict(data, generator)
        spread = data["sigma"]
        nll = (torch.abs(predicted - data["intensity"]) / spread + torch.log(2 * spread)).mean()
        kl = 0.5 * (scale**2 + self.loc**2 - 1 - 2 * torch.log(scale)).mean()
        return nll, kl


def pearson(x, y):
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / (x.norm() * y.norm() + 1e-9))


def measured_spots():
    generator = torch.Generator().manual_seed(1)
    refl_id = torch.randint(0, REFLECTIONS, (SPOTS,), generator=generator)
    metadata = torch.randn(SPOTS, METADATA, generator=generator)
    truth = torch.rand(REFLECTIONS, generator=generator) + 0.5
    factor = 1 + 0.3 * torch.tanh(metadata[:, 0] + metadata[:, 1])
    intensity = factor * truth[refl_id] ** 2 + 0.1 * torch.randn(SPOTS, generator=generator)
    spots = {
        "refl_id": refl_id,
        "metadata": metadata,
        "intensity": intensity,
        "sigma": torch.full((SPOTS,), 0.1),
    }
    held_out = torch.rand(SPOTS, generator=generator) < TEST_FRACTION
    return {k: v[~held_out] for k, v in spots.items()}, {k: v[held_out] for k, v in spots.items()}


@torch.no_grad()
def test_metrics(model, data, generator):
    model.eval()
    nll, kl = model(data, generator)
    predicted, _ = model.predict(data, generator)
    metrics = {
        "NLL_val": float(nll),
        "KLDiv_val": float(kl),
        "CCpred": pearson(predicted.mean(0), data["intensity"]),
    }
    model.train()
    return metrics


def train_model(model, train, test):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    draws, test_draws = torch.Generator().manual_seed(2), torch.Generator().manual_seed(3)
    history, start = {}, time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        nll, kl = model(train, draws)
        loss = nll + 0.01 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {"NLL": float(nll.detach()), "KLDiv": float(kl.detach())}
        if step % VALIDATION_FREQUENCY == 0:
            metrics.update(test_metrics(model, test, test_draws))
        for name, value in metrics.items():
            history.setdefault(name, []).append(value)
    spent = (time.perf_counter() - start) / (STEPS - WARM)
    print("CCpred", round(history["CCpred"][-1], 4))
    return loss.item(), spent


def main():
    torch.manual_seed(0)
    train, test = measured_spots()
    loss, spent = train_model(MergingModel(), train, test)
    print(f"loss {loss:.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
