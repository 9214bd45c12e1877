"""Embeds the stops of a parcel service, from the order in which drivers visit them (skip-gram)."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
STOPS, TOURS, LENGTH, REACH, BATCH, OTHERS = 15_000, 4_000, 40, 3, 1_024, 8


class Tours(Dataset):
    """Pairs of stops that are at most three apart in one tour."""

    def __init__(self):
        rng = np.random.default_rng(11)
        begin = rng.integers(0, STOPS, (TOURS, 1))
        tours = (begin + rng.integers(-30, 31, (TOURS, LENGTH)).cumsum(1)) % STOPS
        known = np.minimum(rng.zipf(1.3, tours.shape), STOPS - 1)
        tours = np.where(rng.random(tours.shape) < 0.1, known, tours)
        pairs = [np.stack([tours[:, :-d].ravel(), tours[:, d:].ravel()], 1) for d in range(1, REACH + 1)]
        self.pairs = torch.from_numpy(np.concatenate(pairs))
        self.visits = np.bincount(tours.ravel(), minlength=STOPS) ** 0.75

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class Draw:
    """Draws stops, those that are visited often more often."""

    def __init__(self, weights):
        self.weights = torch.from_numpy(weights)
        self.rng = np.random.default_rng(12)
        share = weights / weights.sum() * len(weights)
        self.keep, self.instead = share.tolist(), list(range(len(weights)))
        small = [i for i, s in enumerate(share) if s < 1]
        large = [i for i, s in enumerate(share) if s >= 1]
        while small and large:
            less, more = small.pop(), large[-1]
            self.instead[less] = more
            self.keep[more] -= 1 - self.keep[less]
            if self.keep[more] < 1:
                small.append(large.pop())

    def one(self):
        at = int(self.rng.random() * STOPS)
        return at if self.rng.random() < self.keep[at] else self.instead[at]

    def many(self, number):
        if VARIANT == "a":
            return torch.tensor([self.one() for _ in range(number)])
        return torch.multinomial(self.weights, number, replacement=True)


class Stops(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.centre, self.around = nn.Embedding(STOPS, width), nn.Embedding(STOPS, width)
        nn.init.normal_(self.centre.weight, std=0.1)
        nn.init.zeros_(self.around.weight)

    def forward(self, here, there, others):
        x = self.centre(here)
        near = (x * self.around(there)).sum(1)
        far = torch.einsum("nw,now->no", x, self.around(others))
        return -(F.logsigmoid(near).mean() + F.logsigmoid(-far).sum(1).mean())


def main():
    torch.manual_seed(11)
    tours = Tours()
    draw = Draw(tours.visits)

    def collate(samples):
        pairs = torch.stack(samples)
        return pairs[:, 0], pairs[:, 1], draw.many(len(samples) * OTHERS).view(-1, OTHERS)

    loader = DataLoader(tours, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)
    model = Stops()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for here, there, others in loader:
            if step == warm:
                start = time.perf_counter()
            loss = model(here, there, others)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
