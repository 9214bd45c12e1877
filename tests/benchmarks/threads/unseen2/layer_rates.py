"""Fine-tunes a deep, narrow encoder; the learning rate decays from layer to layer."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
WIDTH, DEPTH, BATCH, LENGTH, CLASSES, RATE, DECAY = 192, 28, 16, 64, 30, 1e-4, 0.9


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Linear(48, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 6, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(DEPTH)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.front(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def rate_of(name):
    depth = int(name.split(".")[1]) if name.startswith("layers.") else DEPTH
    return RATE * DECAY ** (DEPTH - depth)


def get_param_dict(model):
    groups = []
    for name, parameter in model.named_parameters():
        decay = 0.0 if parameter.ndim == 1 else 1e-4
        groups.append({"params": [parameter], "lr": rate_of(name), "weight_decay": decay})
    if VARIANT == "b":
        merged = {}
        for group in groups:
            same = merged.setdefault((group["lr"], group["weight_decay"]), {**group, "params": []})
            same["params"] += group["params"]
        return list(merged.values())
    return groups


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Encoder().to(device)
    optimizer = torch.optim.AdamW(get_param_dict(model), lr=RATE, fused=True)
    x = torch.randn(64, BATCH, LENGTH, 48, device=device)
    y = torch.randint(0, CLASSES, (64, BATCH), device=device)
    for step in range(STEPS):
        if step == 20:
            torch.cuda.synchronize()
            start = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x[step % 64]), y[step % 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 20):.2f} ms per step")


if __name__ == "__main__":
    main()
