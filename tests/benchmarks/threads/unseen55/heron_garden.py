"""Learning to learn species one after another: an encoder for which a head adapts quickly.

python heron_garden.py
"""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 850))
WARM_UP = 5

SIDE = 20
WIDTH = 24
HIDDEN = 64
SPECIES = 40
CHOSEN = 6
SHOTS = 4
RATE = 0.05


class Learner(nn.Module):
    """An encoder (`encode.*`) that stays as it is within an episode, and a head (`head.*`)."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(WIDTH * (SIDE // 4) ** 2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, SPECIES)
        )

    def forward(self, pictures):
        return self.head(self.encode(pictures))


def adapting(weights):
    """The weights that an episode changes."""
    return [name for name in weights if name.startswith("head.")]


def adapt(learner, weights, pictures, labels):
    """One step of the episode: the weights after it, with the graph that led to them."""
    scores = torch.func.functional_call(learner, weights, (pictures,))
    loss = F.cross_entropy(scores, labels)
    chosen = adapting(weights)
    names = list(weights) if VARIANT == "a" else chosen
    grads = torch.autograd.grad(loss, [weights[name] for name in names], create_graph=True)
    grads = dict(zip(names, grads))
    return {
        name: weight - RATE * grads[name] if name in chosen else weight for name, weight in weights.items()
    }


class Garden:
    """Pictures of species: a pattern of each, with noise."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(12)
        self.patterns = torch.randn(SPECIES, 3, SIDE, SIDE, generator=self.generator)

    def pictures(self, labels):
        noise = torch.randn(len(labels), 3, SIDE, SIDE, generator=self.generator)
        return self.patterns[labels] + 0.7 * noise

    def episode(self):
        """A trajectory, species by species, and a batch of all of them to judge the result by."""
        chosen = torch.randperm(SPECIES, generator=self.generator)[:CHOSEN]
        path = []
        for label in chosen:
            labels = label.repeat(SHOTS)
            path.append((self.pictures(labels), labels))
        others = torch.randint(0, SPECIES, (6 * CHOSEN,), generator=self.generator)
        labels = torch.cat([chosen, others])
        return path, self.pictures(labels), labels


def main():
    torch.manual_seed(8)
    learner = Learner()
    garden = Garden()
    optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
    smooth = None
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        path, pictures, labels = garden.episode()
        weights = dict(learner.named_parameters())
        for shown, names in path:
            weights = adapt(learner, weights, shown, names)
        scores = torch.func.functional_call(learner, weights, (pictures,))
        loss = F.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
    spent = time.perf_counter() - begun
    print(f"loss {smooth:.5f}")
    print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")


if __name__ == "__main__":
    main()
