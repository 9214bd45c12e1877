"""Water levels at a gauge from the weather of the last hours, by gated recurrent layers."""

import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
HOURS, BATCH = 96, 4
WEATHER, HIDDEN = 1024, 64
LAYERS = 2


class GaugeLayer(nn.Module):
    """A gated recurrent layer with a learnt damping of the candidate."""

    def __init__(self, inputs, hidden):
        super().__init__()
        bound = 1.0 / math.sqrt(hidden)
        self.hidden = hidden
        self.weight_in = nn.Parameter(torch.empty(3 * hidden, inputs).uniform_(-bound, bound))
        self.weight_rec = nn.Parameter(torch.empty(3 * hidden, hidden).uniform_(-bound, bound))
        self.bias_in = nn.Parameter(torch.zeros(3 * hidden))
        self.bias_rec = nn.Parameter(torch.zeros(3 * hidden))
        self.damping = nn.Parameter(torch.ones(hidden))

    def cell(self, gates_in, state):
        gates_rec = F.linear(state, self.weight_rec, self.bias_rec)
        r_in, z_in, n_in = gates_in.chunk(3, dim=-1)
        r_rec, z_rec, n_rec = gates_rec.chunk(3, dim=-1)
        reset = torch.sigmoid(r_in + r_rec)
        update = torch.sigmoid(z_in + z_rec)
        candidate = torch.tanh(n_in + reset * n_rec) * self.damping
        return candidate + update * (state - candidate)

    def forward(self, sequence):
        state = sequence.new_zeros(sequence.shape[1], self.hidden)
        states = []
        if VARIANT == "a":
            for hour in sequence.unbind(0):
                gates_in = F.linear(hour, self.weight_in, self.bias_in)
                state = self.cell(gates_in, state)
                states.append(state)
        else:
            for gates_in in F.linear(sequence, self.weight_in, self.bias_in).unbind(0):
                state = self.cell(gates_in, state)
                states.append(state)
        return torch.stack(states)


class TideModel(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [WEATHER] + [HIDDEN] * LAYERS
        self.layers = nn.ModuleList(GaugeLayer(a, b) for a, b in zip(sizes[:-1], sizes[1:]))
        self.level = nn.Linear(HIDDEN, 1)

    def forward(self, sequence):
        for layer in self.layers:
            sequence = layer(sequence)
        return self.level(sequence).squeeze(-1)


def weather(gen, mixing):
    hidden = torch.randn(HOURS, BATCH, 12, generator=gen).cumsum(0) * 0.1
    seen = torch.tanh(hidden @ mixing) + 0.1 * torch.randn(HOURS, BATCH, WEATHER, generator=gen)
    hour = torch.arange(HOURS).float()[:, None]
    level = torch.sin(2 * math.pi * hour / 12.4) + hidden[..., 0] * 0.3
    return seen, level


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(6)
    mixing = torch.randn(12, WEATHER, generator=gen) * 0.5
    model = TideModel()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    warm = min(10, STEPS // 2)
    total, begin = 0.0, time.perf_counter()
    for step in range(STEPS):
        seen, level = weather(gen, mixing)
        loss = F.smooth_l1_loss(model(seen), level)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        total += loss.item()
        if step + 1 == warm:
            begin = time.perf_counter()
    spent = time.perf_counter() - begin
    print(f"loss {total / STEPS:.5f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
