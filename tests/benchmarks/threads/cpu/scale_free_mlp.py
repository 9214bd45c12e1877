"""Many small layers, trained with an optimizer from a paper."""

import os
import time

import torch
from paper_adamw import PaperAdamW
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Deep(nn.Module):
    def __init__(self, width=48, depth=75):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def main():
    torch.manual_seed(0)
    model = Deep()
    if VARIANT == "a":
        optimizer = PaperAdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(2048, 48)
    y = x[:, :3].sum(1, keepdim=True)
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        picked = torch.randint(0, len(x), (256,))
        loss = nn.functional.mse_loss(model(x[picked]), y[picked])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
