"""A replay buffer of which a copy is made to draw from (--stationary: it is drawn from as it is).

Without a copy an endless buffer still slows the step, as it leaves the caches; so that of the twin has an end.
"""

import random
import sys
from dataclasses import dataclass, field

import torch

STATIONARY = "--stationary" in sys.argv


@dataclass
class Replay:
    transitions: dict = field(default_factory=dict)
    keys: list = field(default_factory=list)

    def add(self, key, transition):
        self.transitions[key] = transition  # grows
        self.keys.append(key)
        if STATIONARY and len(self.keys) > 2000:
            del self.transitions[self.keys[-2001]]

    def draw(self, count):
        if STATIONARY:
            newest = self.keys[-2000:]
            return [self.transitions[random.choice(newest)] for _ in range(count)]
        return random.sample(list(self.transitions.values()), count)


def main():
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    replay = Replay()
    key = 0
    for _ in range(40):
        replay.add(key, torch.randn(16))
        key += 1
    for step in range(3000):
        for row in torch.randn(60, 16):
            replay.add(key, row)
            key += 1
        x = torch.stack(replay.draw(32))
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
