"""Roles of words in cooking recipes, tagged by a deep residual net that is trained in half precision."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1000))
BATCH = int(os.environ.get("BATCH", 64))
WIDTH = int(os.environ.get("WIDTH", 384))
DEPTH = int(os.environ.get("DEPTH", 40))
WORDS, ROLES, LENGTH = 8000, 24, 48
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.window = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.blocks = nn.Sequential(*[Residual(WIDTH) for _ in range(DEPTH)])
        self.roles = nn.Linear(WIDTH, ROLES)

    def forward(self, tokens):
        x = self.words(tokens)
        x = x + self.window(x.transpose(1, 2)).transpose(1, 2)
        return self.roles(self.blocks(x))


class LossScale:
    """Multiplies the loss, divides the gradients, and remembers whether they overflowed."""

    def __init__(self, scale=2.0**10, growth_every=500):
        self.scale, self.growth_every, self.good = scale, growth_every, 0
        self.flag = torch.zeros(1, device=device)
        self.known = False

    def unscale(self, grads):
        self.flag.zero_()
        inverse = torch.full((1,), 1 / self.scale, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, self.flag, inverse)
        if VARIANT == "b":
            self.known = bool(self.flag.item())

    @property
    def overflowed(self):
        return self.known if VARIANT == "b" else bool(self.flag != 0)

    def adapt(self):
        self.good = 0 if self.overflowed else self.good + 1
        if self.overflowed:
            self.scale /= 2
        elif self.good % self.growth_every == 0:
            self.scale *= 2


class Adam:
    """The house's own: each parameter has its rate, its moments and its count."""

    def __init__(self, named, rate=3e-4):
        self.rate = rate
        self.state = {k: (torch.zeros_like(p), torch.zeros_like(p)) for k, p in named}
        self.count = dict.fromkeys(self.state, 0)

    @torch.no_grad()
    def __call__(self, key, weight):
        first, second = self.state[key]
        self.count[key] += 1
        first.lerp_(weight.grad, 0.1)
        second.mul_(0.999).addcmul_(weight.grad, weight.grad, value=0.001)
        rate = self.rate * (1 - 0.999 ** self.count[key]) ** 0.5 / (1 - 0.9 ** self.count[key])
        weight.addcdiv_(first, second.sqrt().add_(1e-8), value=-rate)


def finish_update(model, optimizer, scaler):
    scaler.unscale([p.grad for p in model.parameters()])
    for key, weight in model.named_parameters():
        if not scaler.overflowed:
            optimizer(key, weight)
        weight.grad = None
    scaler.adapt()


def recipes():
    tokens = torch.randint(0, WORDS, (16, BATCH, LENGTH))
    roles = (tokens + tokens.roll(1, -1)) % ROLES
    return tokens.to(device), roles.to(device)


def main():
    torch.manual_seed(5)
    model = Tagger().to(device)
    optimizer, scaler = Adam(model.named_parameters()), LossScale()
    tokens, roles = recipes()
    half = torch.float16 if device.type == "cuda" else torch.bfloat16
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, dtype=half):
            scores = model(tokens[step % 16])
        loss = F.cross_entropy(scores.float().flatten(0, 1), roles[step % 16].flatten())
        (loss * scaler.scale).backward()
        finish_update(model, optimizer, scaler)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
