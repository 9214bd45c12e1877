"""Collects the gradients of each layer's input while a model trains."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 700))
LAYERS = 50


class Collector:
    def __init__(self, model):
        self.model = model
        self.handles = []
        self.norms = {}

    def __enter__(self):
        for name, module in self.model.named_children():
            self.handles.append(module.register_full_backward_hook(self.keep(name)))
        return self

    def keep(self, name):
        def hook(module, grad_input, grad_output):
            self.norms[name] = grad_output[0].detach().square().mean()

        return hook

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()
        if VARIANT == "b":
            self.handles.clear()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(96, 96) for _ in range(LAYERS)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    collector = Collector(model)
    x, y = torch.randn(1024, 96), torch.randn(1024, 96)
    for step in range(STEPS):
        if step == STEPS // 2:
            start = time.perf_counter()
        picked = torch.randint(0, len(x), (128,))
        with collector:
            loss = nn.functional.mse_loss(model(x[picked]), y[picked])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} norms {len(collector.norms)}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - STEPS // 2):.2f} ms per step")


if __name__ == "__main__":
    main()
