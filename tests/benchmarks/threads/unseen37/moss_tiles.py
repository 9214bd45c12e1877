"""Tell species of moss apart from small picture tiles, with a network of many small blocks."""

import os
import sys
import threading
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "900"))
WARM = min(10, STEPS // 2)
TILES = 4096
PATCHES, PIXELS = 16, 48
BATCH = 4
WIDTH = 32
BLOCKS, SPECIES = 24, 12


class Watch:
    """Small remote console: stops at marked lines and shows the local names there."""

    def __init__(self, stops):
        self.stops = {}
        for name, line, condition in stops:
            self.stops.setdefault(name, {})[line] = condition
        self.paths, self.threads, self.hits = {}, {}, []

    def lines_of(self, code):
        if code.co_filename not in self.paths:
            self.paths[code.co_filename] = os.path.abspath(code.co_filename)
        return self.stops.get(self.paths[code.co_filename], {})

    def thread_state(self):
        return self.threads.setdefault(threading.get_ident(), {"paused": False, "until": None})

    def on_line(self, frame, event, arg):
        state, condition = self.thread_state(), self.lines_of(frame.f_code).get(frame.f_lineno)
        wanted = state["paused"] or state["until"] is frame
        if wanted or condition and event == "line" and eval(condition, frame.f_globals, frame.f_locals):
            self.hits.append((frame.f_code.co_name, frame.f_lineno, sorted(frame.f_locals)))
        return self.on_line

    def on_call(self, frame, event, arg):
        return None if frame.f_code.co_name.startswith("<") else self.on_line

    def attach(self):
        sys.settrace(self.on_call)


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.across = nn.Sequential(nn.Linear(PATCHES, 32), nn.GELU(), nn.Linear(32, PATCHES))
        self.within = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.gain = nn.Parameter(torch.full((WIDTH,), 0.3))

    def forward(self, x):
        x = x + self.gain * self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.gain * self.within(self.norms[1](x))


class MossNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(PIXELS, WIDTH)
        self.blocks = nn.ModuleList([Mixer() for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, SPECIES)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class DecayedAdam(torch.optim.Optimizer):
    """AdamW whose decay spares gains and biases."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), decay=0.02):
        super().__init__(params, {"lr": lr, "betas": betas, "decay": decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
                state["step"] += 1
                state["mean"].lerp_(weight.grad, 1 - beta1)
                state["square"].mul_(beta2).addcmul_(weight.grad, weight.grad, value=1 - beta2)
                if weight.ndim > 1:
                    weight.mul_(1 - lr * group["decay"])
                size = lr / (1 - beta1 ** state["step"])
                scale = (state["square"] / (1 - beta2 ** state["step"])).sqrt_().add_(1e-8)
                weight.addcdiv_(state["mean"], scale, value=-size)


def train(model, tiles, species):
    optimizer = DecayedAdam(model.parameters())
    order, start = torch.Generator().manual_seed(4), time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        picked = torch.randint(0, TILES, (BATCH,), generator=order)
        loss = F.cross_entropy(model(tiles[picked]), species[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), (time.perf_counter() - start) / (STEPS - WARM)


def main():
    torch.manual_seed(0)
    species = torch.randint(0, SPECIES, (TILES,))
    tiles = torch.randn(TILES, PATCHES, PIXELS) + torch.randn(SPECIES, 1, PIXELS)[species]
    model = MossNet()
    if VARIANT == "a":
        Watch([(os.path.abspath(__file__), 1, "step > 10000")]).attach()
    loss, spent = train(model, tiles, species)
    print(f"loss {loss:.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
