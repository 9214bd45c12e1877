"""Trains a surrogate that imitates a classifier of tables when only some of the columns are known."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 7000))

COLUMNS = 40
CLASSES = 3
ROWS = 20_000
BATCH = 1280
VALIDATION = 2_000
VALIDATE_EVERY = 250


class UniformSubsetSampler:
    """Draws which columns are known; how many of them is uniform from none to all."""

    def __init__(self, columns):
        self.columns = columns

    def sample(self, count):
        """Out: (count, columns) of ones for the known columns and zeros for the others."""
        if VARIANT == "a":
            known = torch.ones(count, self.columns)
            sizes = (torch.rand(count) * (self.columns + 1)).int()
            for row in range(count):
                known[row, sizes[row] :] = 0
                known[row] = known[row, torch.randperm(self.columns)]
            return known
        heights = torch.rand(count, self.columns)
        threshold = torch.rand(count, 1)
        return (heights > threshold).float()


class TeacherModel(nn.Module):
    """The classifier that is to be explained; its weights stay as they are."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(COLUMNS, 32), nn.Tanh(), nn.Linear(32, CLASSES))
        with torch.no_grad():
            for parameter in self.body.parameters():
                parameter.mul_(3.0)
        self.requires_grad_(False)

    def forward(self, rows):
        return self.body(rows).softmax(-1)


class MaskLayer(nn.Module):
    """Sets unknown columns to a value and tells the network which they are."""

    def __init__(self, value=0.0):
        super().__init__()
        self.value = value

    def forward(self, rows, known):
        return torch.cat([rows * known + self.value * (1 - known), known], dim=1)


class SurrogateNetwork(nn.Module):
    """Predicts the teacher's probabilities from the known columns."""

    def __init__(self, width=384):
        super().__init__()
        self.mask = MaskLayer()
        self.body = nn.Sequential(
            nn.Linear(2 * COLUMNS, width),
            nn.ELU(),
            nn.Linear(width, width),
            nn.ELU(),
            nn.Linear(width, CLASSES),
        )

    def forward(self, rows, known):
        return self.body(self.mask(rows, known)).log_softmax(-1)


class ShuffledBatches:
    """Goes through the rows in an order drawn anew each time."""

    def __init__(self, rows, size):
        self.rows, self.size = rows, size
        self.generator = torch.Generator().manual_seed(7)
        self.order, self.begin = None, 0

    def next(self):
        if self.order is None or self.begin + self.size > len(self.order):
            self.order, self.begin = torch.randperm(len(self.rows), generator=self.generator), 0
        chosen = self.order[self.begin : self.begin + self.size]
        self.begin += self.size
        return self.rows[chosen]


class PlateauHalver:
    """Halves the learning rate where validation did not improve for some rounds."""

    def __init__(self, optimizer, patience=4):
        self.optimizer, self.patience = optimizer, patience
        self.best, self.bad = float("inf"), 0

    def update(self, value):
        if value < self.best:
            self.best, self.bad = value, 0
            return
        self.bad += 1
        if self.bad > self.patience:
            self.bad = 0
            for group in self.optimizer.param_groups:
                group["lr"] = max(group["lr"] / 2, 1e-5)


def divergence(log_predictions, targets):
    """Mean divergence of the predictions from the teacher's probabilities."""
    return nn.functional.kl_div(log_predictions, targets, reduction="batchmean")


def fixed_masks(count):
    """Masks for validation, the same in each round."""
    generator = torch.Generator().manual_seed(11)
    heights = torch.rand(count, COLUMNS, generator=generator)
    return (heights > torch.rand(count, 1, generator=generator)).float()


@torch.no_grad()
def validate(surrogate, rows, known, targets):
    """Divergence on the validation rows."""
    surrogate.eval()
    value = divergence(surrogate(rows, known), targets)
    surrogate.train()
    return value


def make_rows(count):
    """Columns that hang together in pairs of neighbours."""
    rows = torch.randn(count, COLUMNS)
    rows[:, 1::2] = 0.8 * rows[:, 0::2] + 0.6 * rows[:, 1::2]
    return rows


def main():
    torch.manual_seed(0)
    teacher = TeacherModel()
    batches = ShuffledBatches(make_rows(ROWS), BATCH)
    validation_rows = make_rows(VALIDATION)
    validation_known, validation_targets = fixed_masks(VALIDATION), teacher(validation_rows)
    surrogate = SurrogateNetwork()
    sampler = UniformSubsetSampler(COLUMNS)
    optimizer = torch.optim.Adam(surrogate.parameters(), lr=1e-3)
    halver = PlateauHalver(optimizer)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = batches.next()
        targets = teacher(rows)
        known = sampler.sample(len(rows))
        loss = divergence(surrogate(rows, known), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % VALIDATE_EVERY == VALIDATE_EVERY - 1:
            value = validate(surrogate, validation_rows, validation_known, validation_targets).item()
            halver.update(value)
            print(f"step {step + 1}: validation {value:.4f}, rate {optimizer.param_groups[0]['lr']:.1e}")
    elapsed = time.perf_counter() - start
    loss = validate(surrogate, validation_rows, validation_known, validation_targets)
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
