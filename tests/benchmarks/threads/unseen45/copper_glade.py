"""Estimates likelihood ratios of a particle process: a network of parameters and observables."""

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))

PARAMETERS = 3
OBSERVABLES = 24
EVENTS = 100_000
BATCH = 4096
VALIDATE_EVERY = 200


class EventSample:
    """Events at parameters drawn by chance (y = 1) and at the reference point (y = 0)."""

    def __init__(self, count):
        self.theta = torch.rand(count, PARAMETERS) * 2 - 1
        self.y = (torch.rand(count, 1) < 0.5).float()
        mixing = torch.randn(PARAMETERS, OBSERVABLES, generator=torch.Generator().manual_seed(3))
        shift = 0.5 * torch.tanh(self.theta @ mixing)
        self.x = torch.randn(count, OBSERVABLES) + shift * self.y
        self.r_xz = self.ratio(shift)
        self.t_xz = self.score(shift, mixing)

    def ratio(self, shift):
        """Joint ratio of each event, from the normal densities."""
        return ((shift * self.x).sum(1, keepdim=True) - 0.5 * shift.square().sum(1, keepdim=True)).exp()

    def score(self, shift, mixing):
        """Joint score of each event with respect to its parameters."""
        slope = 0.5 * (1 - (2 * shift).square())
        return ((self.x - shift) * slope) @ mixing.T

    def rows(self, chosen):
        return {name: getattr(self, name)[chosen] for name in ("theta", "x", "y", "r_xz", "t_xz")}


class ParameterizedRatioEstimator(nn.Module):
    """Fully connected network whose output is the logarithm of the ratio."""

    def __init__(self, hidden=(192, 192, 192)):
        super().__init__()
        sizes = (PARAMETERS + OBSERVABLES,) + tuple(hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.output = nn.Linear(sizes[-1], 1)

    def forward(self, theta, x, track_score=True):
        """Out: probability of the reference, log ratio, and the score or None."""
        if track_score and not theta.requires_grad:
            theta = theta.detach().requires_grad_(True)
        inside = torch.cat([theta, x], dim=1)
        for layer in self.layers:
            inside = torch.tanh(layer(inside))
        log_r = self.output(inside)
        s_hat = torch.sigmoid(-log_r)
        if track_score:
            t_hat = torch.autograd.grad(log_r, theta, grad_outputs=torch.ones_like(log_r), create_graph=True)[
                0
            ]
        else:
            t_hat = None
        return s_hat, log_r, t_hat


def cross_entropy_loss(s_hat, log_r, t_hat, batch):
    """Classification of events: reference or not."""
    return nn.functional.binary_cross_entropy(s_hat, 1 - batch["y"])


def ratio_mse_loss(s_hat, log_r, t_hat, batch):
    """Squared errors of the ratio and of its inverse, each where it is bounded."""
    true_log = batch["r_xz"].log().clamp(-4, 4)
    clipped = log_r.clamp(-4, 4)
    there = (1 - batch["y"]) * (clipped.exp() - true_log.exp()).square()
    back = batch["y"] * ((-clipped).exp() - (-true_log).exp()).square()
    return (there + back).mean()


def score_mse_loss(s_hat, log_r, t_hat, batch):
    """Squared error of the score, for events at the drawn parameters."""
    return (batch["y"] * (t_hat - batch["t_xz"]).square()).mean()


METHODS = {
    "carl": {"losses": (cross_entropy_loss,), "weights": (1.0,), "score": False},
    "rolr": {"losses": (cross_entropy_loss, ratio_mse_loss), "weights": (1.0, 0.02), "score": False},
    "rascal": {"losses": (cross_entropy_loss, score_mse_loss), "weights": (1.0, 0.1), "score": True},
}


class RatioTrainer:
    """Trains an estimator by one of the methods."""

    def __init__(self, method, model, data, validation):
        self.method = METHODS[method]
        self.model, self.data, self.validation = model, data, validation
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.rates = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, math.exp(math.log(0.1) / 4000))
        self.generator = torch.Generator().manual_seed(5)
        self.track_score = True if VARIANT == "a" else self.method["score"]

    def total_loss(self, batch):
        """Weighted sum of the method's losses."""
        outputs = self.model(batch["theta"], batch["x"], track_score=self.track_score)
        pairs = zip(self.method["weights"], self.method["losses"])
        return sum(weight * function(*outputs, batch) for weight, function in pairs)

    def step(self):
        """One batch and one update. Out: the loss."""
        chosen = torch.randint(0, len(self.data.y), (BATCH,), generator=self.generator)
        loss = self.total_loss(self.data.rows(chosen))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.rates.step()
        return loss

    @torch.no_grad()
    def validate(self):
        """Cross entropy and mean error of the log ratio on the validation events."""
        batch = self.validation.rows(slice(0, 4000))
        s_hat, log_r, _ = self.model(batch["theta"], batch["x"], track_score=False)
        error = (log_r - batch["r_xz"].log()).abs().mean().item()
        return cross_entropy_loss(s_hat, log_r, None, batch).item(), error


class EarlyStopper:
    """Says how many rounds ago validation was best."""

    def __init__(self):
        self.best, self.rounds = float("inf"), 0

    def update(self, value):
        self.rounds = 0 if value < self.best else self.rounds + 1
        self.best = min(self.best, value)
        return self.rounds


def main():
    torch.manual_seed(0)
    trainer = RatioTrainer("rolr", ParameterizedRatioEstimator(), EventSample(EVENTS), EventSample(5_000))
    stopper = EarlyStopper()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        loss = trainer.step()
        if step % VALIDATE_EVERY == VALIDATE_EVERY - 1:
            value, error = trainer.validate()
            print(
                f"step {step + 1}: {value:.4f}, log ratio off by {error:.3f}, best {stopper.update(value)} ago"
            )
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
