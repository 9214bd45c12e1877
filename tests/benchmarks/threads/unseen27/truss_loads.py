"""Trains a message-passing network that gives the loads in trusses from the places of their joints."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1000))
JOINTS = int(os.environ.get("JOINTS", 6000))
NEIGHBOURS = int(os.environ.get("NEIGHBOURS", 12))
WIDTH = int(os.environ.get("WIDTH", 256))
BLOCKS = int(os.environ.get("BLOCKS", 6))
RADIAL, ANGULAR = 16, 7


def make_truss(device):
    """Joints in a box; a bar to each of some near joints, and for each bar its neighbours at the joint."""
    place = torch.rand(JOINTS, 3, device=device)
    tail = torch.arange(JOINTS, device=device).repeat_interleave(NEIGHBOURS)
    hop = torch.randint(1, 200, (JOINTS * NEIGHBOURS,), device=device)
    head = (tail + hop) % JOINTS
    bars = tail.shape[0]
    first = torch.arange(bars, device=device).repeat_interleave(4)
    other = torch.randint(0, NEIGHBOURS, (bars * 4,), device=device)
    second = tail.index_select(0, first) * NEIGHBOURS + other
    load = torch.sin(6 * place).sum(1)
    return {"place": place, "tail": tail, "head": head, "first": first, "second": second, "load": load}


def bases(truss):
    """Bessel functions of the lengths of bars, and Legendre-like ones of the angles between them."""
    place = truss["place"]
    span = place.index_select(0, truss["head"]) - place.index_select(0, truss["tail"])
    length = span.norm(dim=1).clamp(min=1e-3)
    order = torch.arange(1, RADIAL + 1, device=place.device) * math.pi / 2.0
    radial = torch.sin(length[:, None] * order) / length[:, None]
    a = span.index_select(0, truss["first"])
    b = span.index_select(0, truss["second"])
    angle = torch.atan2(torch.linalg.cross(a, b).norm(dim=1), (a * b).sum(1))
    angular = torch.cos(angle[:, None] * torch.arange(ANGULAR, device=place.device))
    return radial, angular


class Interaction(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.near = nn.Linear(width, 64)
        self.gate_r = nn.Linear(RADIAL, width)
        self.gate_a = nn.Linear(ANGULAR, 64)
        self.far = nn.Linear(64, width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, message, radial, angular, truss):
        m = self.norm(message)
        side = self.near(m * self.gate_r(radial))
        side = side.float().index_select(0, truss["second"]) * self.gate_a(angular)
        side = side.view(message.shape[0], -1, side.shape[1]).sum(1)
        m = m + self.far(side)
        return message + self.fc2(F.silu(self.fc1(m)))


class TrussNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(RADIAL, WIDTH)
        self.blocks = nn.ModuleList(Interaction(WIDTH) for _ in range(BLOCKS))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, truss):
        radial, angular = bases(truss) if VARIANT == "a" else truss["bases"]
        message = self.start(radial)
        for block in self.blocks:
            message = block(message, radial, angular, truss)
        bar = self.out(message).float().squeeze(1)
        return bar.view(JOINTS, NEIGHBOURS).mean(1)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(4)
    trusses = [make_truss(device) for _ in range(6)]
    for truss in trusses:
        truss["bases"] = bases(truss)
    net = TrussNet().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        truss = trusses[step % len(trusses)]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            load = net(truss)
        loss = F.mse_loss(load, truss["load"])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
