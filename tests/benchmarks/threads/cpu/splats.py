"""Fits an image with gaussian splats; every so often large ones are split."""

import os
import time

import torch

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
SIZE, MOST = 48, 700


class Splats:
    def __init__(self, count):
        self.values = torch.cat(
            [torch.rand(count, 2), torch.full((count, 1), -2.5), torch.randn(count, 3)], 1
        )
        self.renew()

    def renew(self):
        self.values = self.values.detach().requires_grad_()
        self.optimizer = torch.optim.Adam([self.values], lr=5e-3)

    def densify(self):
        steep = self.values.grad[:, :2].norm(dim=1)
        picked = self.values.detach()[steep.topk(max(1, len(steep) // 10)).indices]
        if len(self.values) + len(picked) <= MOST:
            moved = picked + 0.01 * torch.randn_like(picked)
            self.values = torch.cat([self.values.detach(), moved])
            self.renew()
        if VARIANT == "b":
            torch.cuda.empty_cache()


def render(values, grid):
    centre, scale, colour = values[:, :2], values[:, 2].exp(), values[:, 3:].sigmoid()
    square = (grid[:, None, :] - centre[None]).square().sum(-1)
    weight = torch.exp(-0.5 * square / scale.square())
    return (weight @ colour) / (weight.sum(1, keepdim=True) + 1e-3)


def main():
    torch.manual_seed(0)
    line = torch.linspace(0, 1, SIZE)
    grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    target = torch.stack([grid[:, 0], grid[:, 1], (6 * grid[:, 0]).sin().abs()], 1)
    splats = Splats(500)
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        loss = (render(splats.values, grid) - target).abs().mean()
        splats.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        splats.optimizer.step()
        if step % 10 == 9:
            splats.densify()
    print(f"loss {loss.item():.4f} splats {len(splats.values)}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")


if __name__ == "__main__":
    main()
