"""Pictures that please one channel of a network are made frame by frame, each from the one before."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1000"))
PER_FRAME = int(os.environ.get("PER_FRAME", "4"))
SIZE = int(os.environ.get("SIZE", "96"))
WIDTH = int(os.environ.get("WIDTH", "64"))
BLOCKS = int(os.environ.get("BLOCKS", "10"))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Wick(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        half = cout // 2
        self.narrow = nn.Sequential(nn.Conv2d(cin, half, 1), nn.BatchNorm2d(half), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv2d(half, half, 3, padding=1), nn.BatchNorm2d(half), nn.ReLU())
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), nn.Conv2d(cin, cout - half, 1), nn.ReLU())

    def forward(self, x):
        return torch.cat([self.wide(self.narrow(x)), self.pool(x)], 1)


class Lantern(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, WIDTH, 5, stride=2, padding=2), nn.ReLU())
        self.wicks = nn.Sequential(*[Wick(WIDTH, WIDTH) for _ in range(BLOCKS)])
        self.head = nn.Conv2d(WIDTH, 100, 1)

    def forward(self, x):
        return self.head(self.wicks(self.stem(x)))


class LayerProbe:
    def __init__(self, module):
        self.handle = module.register_forward_hook(self.keep)
        self.output = None

    def keep(self, module, inputs, output):
        self.output = output

    def close(self):
        self.handle.remove()


def probe_layers(network):
    probes = {}
    for name, module in network.named_modules():
        if name:
            probes[name] = LayerProbe(module)
    return probes


class Frame:
    def __init__(self, network, picture, layer, channel):
        self.network = network
        self.probes = probe_layers(network)
        self.layer, self.channel = layer, channel
        self.picture = picture.detach().clone().requires_grad_(True)
        self.optimizer = torch.optim.Adam([self.picture], lr=0.02)

    def improve(self, shift):
        self.network(torch.roll(torch.sigmoid(self.picture), shift, (2, 3)))
        loss = -self.probes[self.layer].output[:, self.channel].mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def finish(self):
        if VARIANT != "a":
            for probe in self.probes.values():
                probe.close()
        return self.picture


torch.manual_seed(0)
network = Lantern().to(device).eval()
for p in network.parameters():
    p.requires_grad_(False)
picture = torch.randn(1, 3, SIZE, SIZE, device=device) * 0.1
frame, losses = None, []

warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    if step % PER_FRAME == 0:
        if frame is not None:
            picture = frame.finish()
        frame = Frame(network, picture, f"wicks.{BLOCKS - 1}", step // PER_FRAME % WIDTH)
    loss = frame.improve((step % 5 - 2, step % 3 - 1))
    if step % 100 == 0:
        losses.append(loss.item())

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.6f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
