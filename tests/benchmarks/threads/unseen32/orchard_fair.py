"""Trains an encoder of orchard surveys whose code should say nothing about the region they come from."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "600"))
BATCH = int(os.environ.get("BATCH", "4096"))
FIELDS = int(os.environ.get("FIELDS", "512"))
HIDDEN = int(os.environ.get("HIDDEN", "4096"))
CODE = int(os.environ.get("CODE", "64"))
SURVEYS = int(os.environ.get("SURVEYS", "65536"))
GRADES = 10
WEIGHT = 0.5

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SurveyCoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FIELDS, HIDDEN),
            nn.LayerNorm(HIDDEN),
            nn.GELU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.LayerNorm(HIDDEN),
            nn.GELU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.LayerNorm(HIDDEN),
            nn.GELU(),
        )
        self.code = nn.Linear(HIDDEN, CODE)
        self.grade = nn.Linear(CODE, GRADES)

    def forward(self, x):
        code = self.code(self.body(x))
        return code, self.grade(code)


def gaussian_kernel(x):
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    sq = (x * x).sum(1)
    dist = (sq[:, None] + sq[None, :] - 2 * (x @ x.T)).clamp_min(0)
    return torch.exp(dist * (-0.5 / x.shape[1]))


def center_kernel(K):
    n = K.shape[0]
    if VARIANT == "a":
        H = torch.eye(n, device=K.device) - 1.0 / n
        return H.mm(K.mm(H))
    mean = K.mean(0, keepdim=True)
    return K - mean - K.mean(1, keepdim=True) + mean.mean()


def kernel_power(K):
    if VARIANT == "a":
        return torch.trace(K.mm(K))
    return (K * K.T).sum()


def region_statistic(code, region):
    n = code.shape[0]
    Kx = center_kernel(gaussian_kernel(code))
    Ky = center_kernel(gaussian_kernel(region))
    stat = (Kx * Ky).sum() / n
    mean = torch.trace(Kx) * torch.trace(Ky) / n / n
    var = 2 * kernel_power(Kx) * kernel_power(Ky) / n / n / n / n
    return (stat - mean) / (n * var).sqrt()


def main():
    torch.manual_seed(5)
    surveys = torch.randn(SURVEYS, FIELDS, device=device)
    regions = surveys[:, :3] * 0.7 + torch.randn(SURVEYS, 3, device=device) * 0.3
    grades = (surveys @ torch.randn(FIELDS, GRADES, device=device)).argmax(1)
    net = SurveyCoder().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        rows = torch.randint(0, SURVEYS, (BATCH,), device=device)
        x = surveys.index_select(0, rows)
        region = regions.index_select(0, rows)
        code, logits = net(x)
        loss = F.cross_entropy(logits, grades.index_select(0, rows))
        loss = loss + WEIGHT * region_statistic(code, region)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - started
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
