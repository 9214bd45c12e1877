"""Pressure and velocity around airfoils, by a transformer over slices of the mesh."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 250))
BATCH = int(os.environ.get("BATCH", 4))
NODES = int(os.environ.get("NODES", 60000))
WIDTH = int(os.environ.get("WIDTH", 192))
DEPTH = int(os.environ.get("DEPTH", 5))
HEADS, SLICES, INPUTS, FIELDS = 6, 48, 24, 3
device = torch.device(os.environ.get("DEVICE", "cuda"))


class SliceAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.routes = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.slices = nn.Linear(WIDTH // HEADS, SLICES)
        self.qkv = nn.Linear(WIDTH // HEADS, 3 * WIDTH // HEADS, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        features = self.features(x).view(b, n, HEADS, -1).transpose(1, 2)
        routes = self.routes(x).view(b, n, HEADS, -1).transpose(1, 2)
        share = (self.slices(routes) / 0.5).softmax(-1)
        tokens = share.transpose(2, 3) @ features / (share.sum(2)[..., None] + 1e-5)
        q, k, v = self.qkv(tokens).chunk(3, -1)
        tokens = F.scaled_dot_product_attention(q, k, v)
        return self.out((share @ tokens).transpose(1, 2).reshape(b, n, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = SliceAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class FieldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Sequential(nn.Linear(INPUTS, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.outward = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, FIELDS))

    def forward(self, x):
        return self.outward(self.blocks(self.inward(x)))


def field_spread(y, mask, is_tandem, channel_clamps, tandem_clamps):
    if VARIANT == "a":
        stds = torch.ones(len(y), 1, FIELDS, device=y.device)
        for b in range(len(y)):
            valid = mask[b]
            if is_tandem[b]:
                stds[b, 0] = y[b, valid].std(dim=0).clamp(min=tandem_clamps)
            else:
                stds[b, 0] = y[b, valid].std(dim=0).clamp(min=channel_clamps)
        return stds
    weight = mask.float().unsqueeze(-1)
    count = weight.sum(1, keepdim=True).clamp(min=2)
    mean = (y * weight).sum(1, keepdim=True) / count
    stds = (((y - mean).square() * weight).sum(1, keepdim=True) / (count - 1)).sqrt()
    return torch.maximum(stds, torch.where(is_tandem[:, None, None], tandem_clamps, channel_clamps))


def make_meshes(count):
    places = torch.randn(count, NODES, 2)
    angle = 0.2 * torch.randn(count, 1)
    rest = torch.randn(count, 1, INPUTS - 2).expand(-1, NODES, -1)
    x = torch.cat([places, rest], -1)
    flow = torch.sin(3 * places[..., 0] + angle), torch.cos(2 * places[..., 1] - angle)
    pressure = -(flow[0] * flow[1]) * (1 + angle)
    y = torch.stack([*flow, pressure], -1) * (0.5 + torch.rand(count, 1, 1))
    lengths = torch.randint(NODES * 3 // 4, NODES, (count, 1))
    return x, y, torch.arange(NODES) < lengths, torch.rand(count) > 0.6


def main():
    torch.manual_seed(71)
    model = FieldModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=device.type == "cuda")
    meshes = [v.to(device) for v in make_meshes(4 * BATCH)]
    channel_clamps = torch.tensor([0.1, 0.1, 0.5], device=device)
    tandem_clamps = torch.tensor([0.3, 0.3, 1.0], device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        x, y, mask, is_tandem = (v[rows] for v in meshes)
        y = y / field_spread(y, mask, is_tandem, channel_clamps, tandem_clamps)
        with torch.autocast(device.type, torch.bfloat16):
            predicted = model(x)
        gap = (predicted.float() - y).abs() * mask[..., None]
        loss = gap.sum() / mask.sum() / FIELDS
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
