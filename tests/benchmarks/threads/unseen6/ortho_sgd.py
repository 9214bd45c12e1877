"""Momentum made orthogonal, for the weights of convolutions."""

from collections import defaultdict

import torch


def zeropower(grad, iterations=5):
    """The orthogonal matrix nearest to a matrix, nearly, by a quintic iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = grad.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        poly = b * gram + c * gram @ gram
        x = a * x + poly @ x
    return x


class MuSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=0.01, momentum=0.95, variant="a"):
        self.variant = variant
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def directions(self, moments):
        if self.variant == "b":
            return self.directions_stacked(moments)
        return [zeropower(moment.flatten(1)).view_as(moment) for moment in moments]

    def directions_stacked(self, moments):
        found, shapes = [None] * len(moments), defaultdict(list)
        for i, moment in enumerate(moments):
            shapes[moment.shape].append(i)
        for shape, members in shapes.items():
            updates = zeropower(torch.stack([moments[i].flatten(1) for i in members]))
            for i, update in zip(members, updates.unbind(0), strict=True):
                found[i] = update.view(shape)
        return found

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if "moment" not in self.state[p]:
                    self.state[p]["moment"] = torch.zeros_like(p)
            moments = [self.state[p]["moment"] for p in params]
            torch._foreach_lerp_(moments, grads, 1 - group["momentum"])
            updates = [update.to(p.dtype) for update, p in zip(self.directions(moments), params, strict=True)]
            torch._foreach_add_(params, updates, alpha=-group["lr"])
