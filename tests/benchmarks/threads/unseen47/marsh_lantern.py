"""Trains a network as the reduced model of a heat equation: parameters in, coefficients out.

The coefficients are those of the solution in a reduced basis. Training goes in epochs with a phase
of training and a phase of validation, with early stopping by the losses of both.
"""

import copy
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 7000))
SNAPSHOTS = 2048
PARAMETERS = 6
CELLS = 400
BASIS = 40
BATCH = 320


class Snapshots(Dataset):
    """Pairs of parameters and coefficients."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class FullyConnected(nn.Module):
    """Linear layers with the same activation between them."""

    def __init__(self, sizes, activation=torch.tanh):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.activation = activation

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class EarlyStopping:
    """Keeps the best network and says when there has been no better one for long."""

    def __init__(self, patience, delta=0.0):
        self.patience = patience
        self.delta = delta
        self.best = None
        self.losses = None
        self.counter = 0

    def __call__(self, losses, network):
        if self.losses is None or losses["val"] < self.losses["val"] - self.delta:
            self.losses = losses
            self.best = copy.deepcopy(network)
            self.counter = 0
        else:
            self.counter += 1
        return self.counter >= self.patience


class Scaling:
    """Brings numbers into the unit interval, column by column."""

    def __init__(self, rows):
        self.low = rows.min(0).values
        width = rows.max(0).values - self.low
        self.width = torch.where(width == 0, torch.ones_like(width), width)

    def __call__(self, rows):
        return (rows - self.low) / self.width


def solve_all(rng):
    """Solutions of the stationary heat equation for random conductivities and sources, reduced."""
    parameters = rng.uniform(0.2, 2.0, (SNAPSHOTS, PARAMETERS))
    places = np.linspace(0, 1, CELLS)
    blocks = np.minimum((places * (PARAMETERS - 1)).astype(int), PARAMETERS - 2)
    resistance = 1 / parameters[:, blocks]
    flux = np.cos(np.pi * places * parameters[:, -1:]) + 0.3 * np.sin(7 * places)
    solutions = np.cumsum(resistance * flux, axis=1) / CELLS
    solutions -= solutions[:, -1:] * places
    _, _, modes = np.linalg.svd(solutions[:512] - solutions[:512].mean(0), full_matrices=False)
    return parameters.astype(np.float32), (solutions @ modes[:BASIS].T).astype(np.float32)


class Trainer:
    """Trains a network with an optimizer that may ask for the loss again."""

    def __init__(self, network, training, validation):
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr=5e-4)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 50, 0.8)
        self.stopping = EarlyStopping(patience=10**6)
        self.criterion = nn.MSELoss()
        shuffled = torch.Generator().manual_seed(1)
        self.loaders = {
            "train": DataLoader(Snapshots(training), BATCH, shuffle=True, generator=shuffled),
            "val": DataLoader(Snapshots(validation), BATCH),
        }
        self.inputs = Scaling(torch.stack([torch.from_numpy(pair[0]) for pair in training]))
        self.targets = Scaling(torch.stack([torch.from_numpy(pair[1]) for pair in training]))
        self.step = 0
        self.warm = min(10, STEPS // 2)
        self.start = None

    def batch_loss(self, inputs, targets, phase):
        """Updates the network if it is trained, and gives the loss of the batch."""

        def closure():
            if torch.is_grad_enabled():
                self.optimizer.zero_grad()
            loss = self.criterion(self.network(inputs), targets)
            if loss.requires_grad:
                loss.backward()
            return loss

        if VARIANT == "a":
            if phase == "train":
                self.optimizer.step(closure)
            loss = closure()
            return loss
        return self.optimizer.step(closure) if phase == "train" else closure()

    def run_phase(self, phase):
        self.network.train(phase == "train")
        total = 0.0
        seen = 0
        for inputs, targets in self.loaders[phase]:
            if phase == "train":
                if self.step == STEPS:
                    break
                if self.step == self.warm:
                    self.start = time.perf_counter()
                self.step += 1
            inputs, targets = self.inputs(inputs), self.targets(targets)
            with torch.set_grad_enabled(phase == "train"):
                loss = self.batch_loss(inputs, targets, phase)
            total += loss.item() * len(inputs)
            seen += len(inputs)
        return total / max(seen, 1)

    def run(self):
        epoch = 0
        while self.step < STEPS:
            losses = {phase: self.run_phase(phase) for phase in ("train", "val")}
            losses["full"] = losses["train"] + losses["val"]
            self.schedule.step()
            epoch += 1
            if epoch % 40 == 0:
                print(f"epoch {epoch} train {losses['train']:.3e} val {losses['val']:.3e}")
            if self.stopping(losses, self.network):
                break
        return time.perf_counter() - self.start


def main():
    torch.manual_seed(0)
    parameters, coefficients = solve_all(np.random.default_rng(0))
    pairs = list(zip(parameters, coefficients))
    network = FullyConnected([PARAMETERS, 576, 576, 512, BASIS])
    trainer = Trainer(network, pairs[256:], pairs[:256])
    elapsed = trainer.run()
    network.eval()
    with torch.no_grad():
        inputs = trainer.inputs(torch.from_numpy(parameters[:256]))
        targets = trainer.targets(torch.from_numpy(coefficients[:256]))
        loss = trainer.criterion(network(inputs), targets)
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - trainer.warm):.2f} ms per step")


if __name__ == "__main__":
    main()
