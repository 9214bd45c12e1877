"""AdamW that trains at an average of its iterates."""

import math

import torch


class AveragedAdamW(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "k": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            k = group["k"]
            correction = math.sqrt(1 - beta2 ** (k + 1))
            share = 1 / (k + 1)
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["z"] = p.detach().clone()
                    state["square"] = torch.zeros_like(p)
                state["square"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                change = p.grad / (state["square"].sqrt() / correction + group["eps"])
                change.add_(p, alpha=group["weight_decay"])
                p.lerp_(state["z"], share)
                p.add_(change, alpha=group["lr"] * (beta1 * (1 - share) - 1))
                state["z"].sub_(change, alpha=group["lr"])
            group["k"] = k + 1


class GroupedAdamW(AveragedAdamW):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            k = group["k"]
            correction = math.sqrt(1 - beta2 ** (k + 1))
            share = 1 / (k + 1)
            ps = [p for p in group["params"] if p.grad is not None]
            for p in ps:
                if not self.state[p]:
                    self.state[p] = {"z": p.detach().clone(), "square": torch.zeros_like(p)}
            gs, zs = [p.grad for p in ps], [self.state[p]["z"] for p in ps]
            squares = [self.state[p]["square"] for p in ps]
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, gs, gs, value=1 - beta2)
            down = torch._foreach_sqrt(squares)
            torch._foreach_div_(down, correction)
            torch._foreach_add_(down, group["eps"])
            change = torch._foreach_div(gs, down)
            torch._foreach_add_(change, ps, alpha=group["weight_decay"])
            torch._foreach_lerp_(ps, zs, share)
            torch._foreach_add_(ps, change, alpha=group["lr"] * (beta1 * (1 - share) - 1))
            torch._foreach_sub_(zs, change, alpha=group["lr"])
            group["k"] = k + 1
