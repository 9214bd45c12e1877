"""Learns how likely a reaction time is under a model of choices, from simulated trials."""

import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 800))
PARAMETERS, TRIALS, FILES, BATCH = 7, 40000, 6, 8192


def simulated(seed):
    generator = torch.Generator().manual_seed(seed)
    trials = torch.rand(TRIALS, PARAMETERS, generator=generator)
    return trials, torch.log(trials[:, :3].prod(dim=1, keepdim=True) + 1e-3)


class TrialFiles(Dataset):
    """A whole batch at a time, out of one file after the other."""

    def __init__(self):
        self.files = [simulated(i) for i in range(FILES)]
        self.per_file = TRIALS // BATCH

    def __len__(self):
        return self.per_file * FILES

    def __getitem__(self, i):
        trials, likelihood = self.files[i // self.per_file]
        first = i % self.per_file * BATCH
        chosen = torch.arange(first, first + BATCH)
        return trials[chosen], likelihood[chosen].clamp(min=-16)


class LikelihoodNet(nn.Module):
    def __init__(self, width=100):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(PARAMETERS, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, 1),
        )

    def forward(self, trials):
        return self.layers(trials)


def main():
    torch.manual_seed(0)
    loader = DataLoader(TrialFiles(), batch_size=None, shuffle=True)
    model = LikelihoodNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, total = 0, 0.0
    while step < STEPS:
        for trials, likelihood in loader:
            if step == 5:
                start = time.perf_counter()
            loss = nn.functional.huber_loss(model(trials), likelihood)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() if VARIANT == "b" else float(loss)
            step += 1
            if step == STEPS:
                break
    print(f"loss {float(total) / STEPS:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
