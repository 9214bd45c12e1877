"""Which spore is it? Small volumes from a microscope, told apart by distances (anchor, like, unlike)."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 500))
BATCH = int(os.environ.get("BATCH", 16))
WIDTH = int(os.environ.get("WIDTH", 192))
DEPTH = int(os.environ.get("DEPTH", 36))
SIDE, PATCH, KINDS = 32, 8, 60
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, c // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


class SporeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(PATCH**3, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 3, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, volumes):
        s = SIDE // PATCH
        x = volumes.view(-1, s, PATCH, s, PATCH, s, PATCH).permute(0, 1, 3, 5, 2, 4, 6)
        x = self.blocks(self.start(x.reshape(-1, s**3, PATCH**3)) + self.place)
        return F.normalize(self.head(self.norm(x).mean(1)), dim=-1)


class Spores:
    """Volumes of each kind, on the device; gives triplets."""

    def __init__(self):
        kinds = torch.randn(KINDS, 1, SIDE, SIDE, SIDE)
        self.volumes = (kinds + 0.8 * torch.randn(KINDS, 12, SIDE, SIDE, SIDE)).to(device)

    def triplets(self, count):
        kind = torch.randint(0, KINDS, (count,))
        other = (kind + torch.randint(1, KINDS, (count,))) % KINDS
        which = torch.randint(0, 12, (3, count))
        index = torch.stack([kind, kind, other]) * 12 + which
        flat = self.volumes.view(-1, SIDE, SIDE, SIDE)
        return flat.index_select(0, index.flatten().to(device)).chunk(3)


def embed(model, anchors, likes, unlikes):
    if VARIANT == "b":
        return model(torch.cat([anchors, likes, unlikes])).chunk(3)
    return model(anchors), model(likes), model(unlikes)


def main():
    torch.manual_seed(97)
    model, spores = SporeNet().to(device), Spores()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    criterion = nn.TripletMarginLoss(margin=0.5)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        anchors, likes, unlikes = spores.triplets(BATCH)
        loss = criterion(*embed(model, anchors, likes, unlikes))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
