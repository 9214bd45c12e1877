"""An MLP mixer for patches of leaves, trained with a second-order optimizer."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 140))
PATCHES, WIDTH, DEPTH, CLASSES, BATCH = 64, 96, 3, 12, 48


class MixerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.tokens = nn.Sequential(nn.Linear(PATCHES, 96), nn.GELU(), nn.Linear(96, PATCHES))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 192), nn.GELU(), nn.Linear(192, WIDTH))

    def forward(self, x):
        x = x + self.tokens(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(48, WIDTH)
        self.blocks = nn.Sequential(*[MixerBlock() for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)).mean(1))


def inverse_root(matrix, power, ridge=1e-6):
    values, vectors = torch.linalg.eigh(matrix + ridge * torch.eye(len(matrix)))
    return (vectors * values.clamp(min=ridge).pow(-1 / power)) @ vectors.T


class Shampoo(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, beta=0.95, momentum=0.9, compute_steps=1):
        super().__init__(
            params, {"lr": lr, "beta": beta, "momentum": momentum, "compute_steps": compute_steps}
        )

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, self.state[p], group)

    def update(self, p, state, group):
        grad = p.grad
        if not state:
            state["step"], state["momentum"] = 0, torch.zeros_like(p)
            if p.ndim == 2:
                state["left"], state["right"] = torch.eye(p.shape[0]), torch.eye(p.shape[1])
        if p.ndim == 2:
            state["left"].lerp_(grad @ grad.T, 1 - group["beta"])
            state["right"].lerp_(grad.T @ grad, 1 - group["beta"])
            if state["step"] % group["compute_steps"] == 0:
                state["left_root"] = inverse_root(state["left"], 4)
                state["right_root"] = inverse_root(state["right"], 4)
            direction = state["left_root"] @ grad @ state["right_root"]
            grad = direction * (grad.norm() / direction.norm().clamp(min=1e-12))
        state["step"] += 1
        state["momentum"].mul_(group["momentum"]).add_(grad)
        p.add_(state["momentum"], alpha=-group["lr"])


def main():
    torch.manual_seed(0)
    model = Mixer()
    optimizer = Shampoo(model.parameters(), lr=5e-3, compute_steps=1 if VARIANT == "a" else 50)
    prototypes = torch.randn(CLASSES, PATCHES, 48)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        labels = torch.randint(0, CLASSES, (BATCH,))
        patches = prototypes[labels] + 1.5 * torch.randn(BATCH, PATCHES, 48)
        loss = nn.functional.cross_entropy(model(patches), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
