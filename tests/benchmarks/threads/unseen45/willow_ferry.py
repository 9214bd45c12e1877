"""Stochastic variational inference of a hierarchical regression, a subsample of the plate in each step."""

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 7000))

ROWS = 400_000
FEATURES = 24
GROUPS = 200
SUBSAMPLE = 4_000
REPORT_EVERY = 200


class Survey:
    """Made-up answers: a group's level, weights of the features, and noise."""

    def __init__(self):
        self.inputs = torch.randn(ROWS, FEATURES)
        self.groups = torch.randint(0, GROUPS, (ROWS,))
        levels = 0.7 * torch.randn(GROUPS)
        weights = torch.randn(FEATURES) / math.sqrt(FEATURES)
        self.answers = levels[self.groups] + torch.tanh(self.inputs @ weights) + 0.5 * torch.randn(ROWS)


class SubsampleDistribution:
    """Draws numbers of rows, each at most once."""

    def __init__(self, size, subsample_size):
        self.size = size
        self.subsample_size = subsample_size

    def sample(self):
        """Out: numbers of the rows of one subsample."""
        if self.subsample_size is None or self.subsample_size >= self.size:
            return torch.arange(self.size)
        if VARIANT == "a":
            return torch.multinomial(torch.ones(self.size), self.subsample_size, replacement=False)
        return torch.randperm(self.size)[: self.subsample_size].clone()


class Plate:
    """Context in which the rows are independent; scales the likelihood of a subsample."""

    def __init__(self, name, size, subsample_size=None):
        self.name = name
        self.distribution = SubsampleDistribution(size, subsample_size)
        self.size = size

    def __enter__(self):
        self.indices = self.distribution.sample()
        self.scale = self.size / len(self.indices)
        return self

    def __exit__(self, *_):
        self.indices = None


class NormalGuide(nn.Module):
    """Independent normals over the levels of the groups and the last layer's weights."""

    def __init__(self, width):
        super().__init__()
        self.level_mean = nn.Parameter(torch.zeros(GROUPS))
        self.level_log_scale = nn.Parameter(torch.full((GROUPS,), -2.0))
        self.weight_mean = nn.Parameter(0.1 * torch.randn(width))
        self.weight_log_scale = nn.Parameter(torch.full((width,), -3.0))

    def forward(self, noise):
        """In: standard normal numbers. Out: levels, weights."""
        levels = self.level_mean + self.level_log_scale.exp() * noise[:GROUPS]
        weights = self.weight_mean + self.weight_log_scale.exp() * noise[GROUPS:]
        return levels, weights

    def divergence(self):
        """Divergence from standard normals."""
        total = 0.0
        for mean, log_scale in (
            (self.level_mean, self.level_log_scale),
            (self.weight_mean, self.weight_log_scale),
        ):
            total = total + (0.5 * (mean.square() + (2 * log_scale).exp()) - log_scale - 0.5).sum()
        return total


class HierarchicalModel(nn.Module):
    """Features through a network, weights and levels from the guide, normal noise."""

    def __init__(self, width=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.log_noise = nn.Parameter(torch.zeros(()))
        self.guide = NormalGuide(width)

    def log_likelihood(self, inputs, groups, answers, noise):
        """Sum over the rows."""
        levels, weights = self.guide(noise)
        means = levels[groups] + self.body(inputs) @ weights
        scaled = (answers - means) / self.log_noise.exp()
        return (-0.5 * scaled.square() - self.log_noise - 0.5 * math.log(2 * math.pi)).sum()


class TraceBound:
    """Evidence lower bound of a plate, negated, per row of the data."""

    def __init__(self, model, survey, plate):
        self.model, self.survey, self.plate = model, survey, plate
        self.noise_size = GROUPS + model.guide.weight_mean.numel()
        self.generator = torch.Generator().manual_seed(9)

    def loss(self):
        with self.plate as plate:
            rows = plate.indices
            likelihood = self.model.log_likelihood(
                self.survey.inputs[rows],
                self.survey.groups[rows],
                self.survey.answers[rows],
                torch.randn(self.noise_size, generator=self.generator),
            )
            return (self.model.guide.divergence() - plate.scale * likelihood) / plate.size

    @torch.no_grad()
    def full_loss(self, rows=40_000):
        """The same at the guide's means, over the first rows."""
        survey = self.survey
        likelihood = self.model.log_likelihood(
            survey.inputs[:rows], survey.groups[:rows], survey.answers[:rows], torch.zeros(self.noise_size)
        )
        return (self.model.guide.divergence() * rows / ROWS - likelihood) / rows


class ClippedAdam(torch.optim.Adam):
    """Adam that clips each gradient and lowers the rate a little each time."""

    def __init__(self, parameters, lr, clip=10.0, decay=0.9998):
        super().__init__(parameters, lr=lr)
        self.clip, self.decay = clip, decay

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= self.decay
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.clamp_(-self.clip, self.clip)
        return super().step(closure)


def main():
    torch.manual_seed(0)
    survey = Survey()
    model = HierarchicalModel()
    bound = TraceBound(model, survey, Plate("rows", ROWS, SUBSAMPLE))
    optimizer = ClippedAdam(model.parameters(), lr=3e-3)
    history = []
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        loss = bound.loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if step % REPORT_EVERY == REPORT_EVERY - 1:
            recent = sum(history[-REPORT_EVERY:]) / REPORT_EVERY
            print(f"step {step + 1}: bound {recent:.4f}, noise {model.log_noise.exp().item():.3f}")
    elapsed = time.perf_counter() - start
    loss = bound.full_loss()
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
