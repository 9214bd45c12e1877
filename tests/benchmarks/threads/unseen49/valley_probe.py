"""Search the lowest point of a function with a Gaussian process, fitted again after each new trial."""

from __future__ import annotations

import math
import os
import time

import numpy as np
import torch

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
FIT_STEPS = 50
MINIMUM_NOISE = 1e-6


class Matern52(torch.autograd.Function):
    """Matern kernel with nu = 5/2 of a squared distance, with its slope by formula."""

    @staticmethod
    def forward(ctx, squared_distance: torch.Tensor) -> torch.Tensor:
        sqrt5d = torch.sqrt(5 * squared_distance)
        exp_part = torch.exp(-sqrt5d)
        ctx.save_for_backward(-(5 / 6) * (sqrt5d + 1) * exp_part)
        return exp_part * ((5 / 3) * squared_distance + sqrt5d + 1)

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        (slope,) = ctx.saved_tensors
        return slope * grad


class Space:
    """A box of numbers between zero and one, some of which are choices."""

    def __init__(self, n_numbers: int, n_choices: int, levels: int = 3):
        self.is_categorical = torch.tensor([False] * n_numbers + [True] * n_choices)
        self.levels = levels

    def sample(self, count: int, rng: np.random.Generator) -> torch.Tensor:
        points = torch.from_numpy(rng.random((count, len(self.is_categorical))))
        choices = torch.floor(points * self.levels)
        return torch.where(self.is_categorical, choices, points)


class Objective:
    """A bowl with ripples whose floor depends on the choices; a little noise is in it."""

    def __init__(self, space: Space, rng: np.random.Generator):
        self.rng, self.space = rng, space
        self.centre = torch.from_numpy(rng.uniform(0.2, 0.8, size=len(space.is_categorical)))

    def __call__(self, x: torch.Tensor) -> float:
        numbers = ~self.space.is_categorical
        gap = (x - self.centre)[numbers]
        ripple = 0.1 * torch.sin(12 * gap).sum()
        floor = 0.2 * x[self.space.is_categorical].sum()
        return float(3 * gap.square().sum() + ripple + floor + 0.01 * self.rng.standard_normal())


class GPRegressor:
    """The process, its settings, and the trials that it has seen."""

    def __init__(self, space: Space, x: torch.Tensor, y: torch.Tensor, raw_params: torch.Tensor):
        self.is_categorical = space.is_categorical
        self.raw_params = raw_params
        self.x_train = x
        self.y_train = (y - y.mean()) / y.std().clamp(min=1e-8)
        self.squared_x_diff = self.squared_diff(x, x)

    def squared_diff(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        diff = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).square()
        diff[..., self.is_categorical] = (diff[..., self.is_categorical] > 0.0).to(diff.dtype)
        return diff

    def params(self):
        """Inverse squared length scales, kernel scale and noise."""
        values = self.raw_params.exp()
        return values[:-2], values[-2], values[-1] + MINIMUM_NOISE

    def kernel(self, x1: torch.Tensor | None = None, x2: torch.Tensor | None = None) -> torch.Tensor:
        if x1 is None:
            sqd = self.squared_x_diff
        else:
            sqd = self.squared_diff(x1, self.x_train if x2 is None else x2)
        inverse_squared_lengthscales, kernel_scale, _ = self.params()
        if VARIANT == "a":
            sqdist = (sqd * inverse_squared_lengthscales).sum(dim=-1)
        else:
            sqdist = sqd.matmul(inverse_squared_lengthscales)
        return Matern52.apply(sqdist) * kernel_scale

    def marginal_log_likelihood(self) -> torch.Tensor:
        n = len(self.x_train)
        cov = self.kernel()
        cov = cov + self.params()[2] * torch.eye(n, dtype=cov.dtype)
        chol = torch.linalg.cholesky(cov)
        white = torch.linalg.solve_triangular(chol, self.y_train[:, None], upper=False)[:, 0]
        return -0.5 * (n * math.log(2 * math.pi) + white @ white) - chol.diagonal().log().sum()

    def log_prior(self) -> torch.Tensor:
        """Keeps length scales, scale and noise in a sensible range."""
        inverse, scale, noise = self.params()
        lengths = -(0.1 / inverse + 0.1 * inverse).sum()
        return lengths + scale.log() - scale + 0.1 * noise.log() - 30 * noise

    @torch.no_grad()
    def posterior(self, x: torch.Tensor):
        """Mean and variance at new points."""
        n = len(self.x_train)
        _, scale, noise = self.params()
        chol = torch.linalg.cholesky(self.kernel() + noise * torch.eye(n, dtype=torch.float64))
        cross = self.kernel(x)
        mean = cross @ torch.cholesky_solve(self.y_train[:, None], chol)[:, 0]
        white = torch.linalg.solve_triangular(chol, cross.T, upper=False)
        return mean, (scale - white.square().sum(0)).clamp(min=1e-12)


def log_expected_improvement(mean: torch.Tensor, var: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    sigma = var.sqrt()
    z = (best - mean) / sigma
    normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)
    ei = z * normal.cdf(z) + normal.log_prob(z).exp()
    return sigma.log() + ei.clamp(min=1e-30).log()


class Study:
    """Keeps the trials; proposes where to look next."""

    def __init__(self, n_startup: int, seed: int = 3):
        self.rng = np.random.default_rng(seed)
        self.space = Space(n_numbers=7, n_choices=3)
        self.objective = Objective(self.space, self.rng)
        self.x = self.space.sample(n_startup, self.rng)
        self.y = torch.tensor([self.objective(x) for x in self.x], dtype=torch.float64)
        self.raw_params = torch.zeros(len(self.space.is_categorical) + 2, dtype=torch.float64)
        self.raw_params[-1] = math.log(1e-2)
        self.raw_params.requires_grad_(True)

    def regressor(self) -> GPRegressor:
        return GPRegressor(self.space, self.x, self.y, self.raw_params)

    def suggest_and_tell(self, gpr: GPRegressor, candidates: int = 250) -> None:
        """Evaluates the most promising of some random points and of neighbours of the best."""
        points = self.space.sample(candidates, self.rng)
        near = self.x[self.y.argmin()] + 0.05 * torch.from_numpy(self.rng.standard_normal(points.shape))
        near = torch.where(self.space.is_categorical, points, near.clamp(0, 1))
        points = torch.cat([points, near])
        mean, var = gpr.posterior(points)
        chosen = points[log_expected_improvement(mean, var, gpr.y_train.min()).argmax()]
        self.x = torch.cat([self.x, chosen[None]])
        self.y = torch.cat([self.y, torch.tensor([self.objective(chosen)], dtype=torch.float64)])


def main() -> None:
    torch.manual_seed(0)
    study = Study(n_startup=600)
    optimizer = torch.optim.Adam([study.raw_params], lr=0.02)
    gpr = study.regressor()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        loss = -gpr.marginal_log_likelihood() - gpr.log_prior()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % FIT_STEPS == 0:
            study.suggest_and_tell(gpr)
            gpr = study.regressor()
            trial = len(study.y)
            if trial % 10 == 0:
                print(f"trial {trial} best {study.y.min().item():.4f} loss {loss.item():.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
