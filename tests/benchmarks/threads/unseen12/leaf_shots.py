"""Species of leaves from five pictures each: a small net that learns to adapt in a few steps (MAML)."""

import copy
import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
TASKS = int(os.environ.get("TASKS", 4))
WIDTH = int(os.environ.get("WIDTH", 32))
WAYS, SHOTS, ADAPT, SIDE = 5, 5, 1, 48
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Stage(nn.Module):
    def __init__(self, before, after, pool):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(after, track_running_stats=False)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.act = nn.ReLU()
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()

    def forward(self, x):
        return self.pool(self.act(self.norm(self.conv(x)) + self.skip(x)))


class LeafNet(nn.Module):
    def __init__(self):
        super().__init__()
        stages = [Stage(3, WIDTH, True)]
        for k in range(11):
            stages.append(Stage(WIDTH, WIDTH, k in (3, 7)))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(WIDTH * (SIDE // 8) ** 2, WAYS)

    def forward(self, x):
        return self.head(self.stages(x).flatten(1))


def duplicate(module):
    """A module like it whose weights are functions of the weights of the original."""
    if VARIANT == "a":
        twin = copy.deepcopy(module)
        for mine, yours in zip(twin.modules(), module.modules(), strict=True):
            mine._parameters = {k: None if p is None else p.clone() for k, p in yours._parameters.items()}
        return twin
    twin = module.__new__(type(module))
    twin.__dict__ = module.__dict__.copy()
    twin._parameters = {k: None if p is None else p.clone() for k, p in module._parameters.items()}
    twin._buffers = {k: None if p is None else p.clone() for k, p in module._buffers.items()}
    twin._modules = {k: None if m is None else duplicate(m) for k, m in module._modules.items()}
    return twin


def adapt(module, loss, rate=0.05):
    """One step down, by weights that remain functions of the old ones."""
    weights = list(module.parameters())
    grads = iter(torch.autograd.grad(loss, weights))
    for m in module.modules():
        for key, p in m._parameters.items():
            if p is not None:
                m._parameters[key] = p - rate * next(grads)
    return module


def draw_tasks(count):
    prototypes = torch.randn(count, WAYS, 1, 3, SIDE, SIDE)
    shots = prototypes + 1.5 * torch.randn(count, WAYS, 2 * SHOTS, 3, SIDE, SIDE)
    return shots.to(device)


def main():
    torch.manual_seed(29)
    model = LeafNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    tasks = draw_tasks(8 * TASKS)
    labels = torch.arange(WAYS, device=device).repeat_interleave(SHOTS)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for k in range(TASKS):
            shots = tasks[(step * TASKS + k) % len(tasks)]
            support, query = shots[:, :SHOTS].flatten(0, 1), shots[:, SHOTS:].flatten(0, 1)
            learner = duplicate(model)
            for _ in range(ADAPT):
                learner = adapt(learner, F.cross_entropy(learner(support), labels))
            loss = F.cross_entropy(learner(query), labels) / TASKS
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {total.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
