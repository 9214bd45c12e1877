"""Recognises the calls of marsh birds from spectra, with a small stack of residual blocks."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1400"))
BINS, FRAMES, WIDTH, BLOCKS, CALLS = 40, 12, 24, 32, 12
BATCH = 4


class MarshBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_in = nn.LayerNorm(width)
        self.pointwise = nn.Linear(width, width)
        self.norm_out = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale_mix = nn.Parameter(torch.full((width,), 0.5))
        self.scale_feed = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        x = x + self.scale_mix * self.pointwise(self.norm_in(x))
        return x + self.scale_feed * self.down(F.silu(self.up(self.norm_out(x))))


class HeronNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry = nn.Linear(BINS, WIDTH)
        self.blocks = nn.ModuleList(MarshBlock(WIDTH) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, CALLS)

    def forward(self, spectra):
        x = self.entry(spectra)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class MarshAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay and averaged weights."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.98), eps=1e-8, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def multiply_grads(self, c):
        for p in (p for group in self.param_groups for p in group["params"]):
            p.grad.mul_(c)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                grad, state = p.grad, self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                    state["mean"] = p.clone()
                state["step"] += 1
                exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
                exp_avg.mul_(beta1).add_(grad, alpha=1 - beta1)
                exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                denom = exp_avg_sq.sqrt().add_(group["eps"])
                unbias1, unbias2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
                size = group["lr"] * unbias2**0.5 / unbias1
                p.add_(p, alpha=-group["weight_decay"] * group["lr"])
                p.addcdiv_(exp_avg, denom, value=-size)
                state["mean"].mul_(0.999).add_(p, alpha=0.001)


class MarshAdamLists(MarshAdam):
    """The same update, on lists of tensors."""

    def multiply_grads(self, c):
        torch._foreach_mul_([p.grad for group in self.param_groups for p in group["params"]], c)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            params, grads = group["params"], [p.grad for p in group["params"]]
            if "avgs" not in group:
                group["step"] = 0
                group["avgs"] = [torch.zeros_like(p) for p in params]
                group["squares"] = [torch.zeros_like(p) for p in params]
                group["means"] = [p.clone() for p in params]
            group["step"] += 1
            torch._foreach_lerp_(group["avgs"], grads, 1 - beta1)
            torch._foreach_mul_(group["squares"], beta2)
            torch._foreach_addcmul_(group["squares"], grads, grads, value=1 - beta2)
            denom = torch._foreach_sqrt(group["squares"])
            torch._foreach_add_(denom, group["eps"])
            unbias1, unbias2 = 1 - beta1 ** group["step"], 1 - beta2 ** group["step"]
            size = group["lr"] * unbias2**0.5 / unbias1
            torch._foreach_mul_(params, 1 - group["weight_decay"] * group["lr"])
            torch._foreach_addcdiv_(params, group["avgs"], denom, value=-size)
            torch._foreach_lerp_(group["means"], params, 0.001)


def main():
    torch.manual_seed(5)
    patterns = torch.randn(CALLS, FRAMES, BINS)
    model = HeronNet()
    optimizer = (MarshAdam if VARIANT == "a" else MarshAdamLists)(model.parameters())
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        calls = torch.randint(CALLS, (BATCH,))
        spectra = patterns[calls] + torch.randn(BATCH, FRAMES, BINS)
        loss = F.cross_entropy(model(spectra), calls, reduction="sum")
        model.zero_grad()
        loss.backward()
        optimizer.multiply_grads(1.0 / BATCH)
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item() / BATCH:.5f}")
    print(f"{1000 * took / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
