"""Fits a model of hidden states to the daily log of tagged birds, with a network for what is seen."""

import os
import time

import torch
import torch.nn as nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "650"))
BATCH = int(os.environ.get("BATCH", "8"))
DAYS = int(os.environ.get("DAYS", "256"))
STATES = int(os.environ.get("STATES", "6"))
HIDDEN = int(os.environ.get("HIDDEN", "64"))
SIGNALS = 4


def log_product(left, right):
    """The product of two matrices that are given by the logarithms of their entries."""
    left_top = left.amax(dim=-1, keepdim=True)
    right_top = right.amax(dim=-2, keepdim=True)
    product = torch.matmul((left - left_top).exp(), (right - right_top).exp())
    return product.log() + left_top + right_top


class HiddenStates(nn.Module):
    """Likelihood of a log under a chain of hidden states."""

    def __init__(self, states):
        super().__init__()
        self.start = nn.Parameter(torch.zeros(states))
        self.change = nn.Parameter(2 * torch.eye(states))

    def step_by_step(self, start, change, seen):
        alpha = start + seen[:, 0]
        for day in range(1, seen.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(-1) + change, dim=-2) + seen[:, day]
        return torch.logsumexp(alpha, dim=-1)

    def pair_by_pair(self, start, change, seen):
        links = change + seen[:, 1:].unsqueeze(-2)
        while links.shape[1] > 1:
            odd = links[:, -1:] if links.shape[1] % 2 else None
            even = links.shape[1] // 2 * 2
            links = log_product(links[:, 0:even:2], links[:, 1:even:2])
            if odd is not None:
                links = torch.cat([links, odd], dim=1)
        alpha = (start + seen[:, 0]).unsqueeze(-1) + links[:, 0]
        return torch.logsumexp(alpha, dim=(-1, -2))

    def forward(self, seen):
        start = torch.log_softmax(self.start, dim=-1)
        change = torch.log_softmax(self.change, dim=-1)
        if VARIANT == "a":
            return self.step_by_step(start, change, seen)
        return self.pair_by_pair(start, change, seen)


class SignalNet(nn.Module):
    """Scores of what is seen on a day, for each state."""

    def __init__(self, states, hidden):
        super().__init__()
        self.means = nn.Parameter(torch.randn(states, SIGNALS))
        self.body = nn.Sequential(
            nn.Conv1d(SIGNALS, hidden, 9, padding=4),
            nn.Tanh(),
            nn.Conv1d(hidden, hidden, 9, padding=4),
            nn.Tanh(),
            nn.Conv1d(hidden, states, 1),
        )

    def forward(self, log):
        near = -(log.unsqueeze(2) - self.means).square().sum(-1) / 2
        bias = self.body(log.transpose(1, 2)).transpose(1, 2)
        return near + torch.log_softmax(bias, dim=-1)


def make_logs(count):
    places = 2 * torch.randn(STATES, SIGNALS)
    stays = torch.randint(0, STATES, (count, DAYS // 8 + 1)).repeat_interleave(8, dim=1)[:, :DAYS]
    return places[stays] + torch.randn(count, DAYS, SIGNALS)


def main():
    torch.manual_seed(29)
    logs = make_logs(256)
    signals = SignalNet(STATES, HIDDEN)
    chain = HiddenStates(STATES)
    optimizer = torch.optim.Adam([*signals.parameters(), *chain.parameters()], lr=5e-3)
    picks = torch.randint(0, len(logs), (STEPS, BATCH))

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        loss = -chain(signals(logs[picks[step]])).mean() / DAYS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
