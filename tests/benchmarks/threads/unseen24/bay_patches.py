"""Pictures of bays from orbit: a transformer learns to tell the hidden patches of a picture apart."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 280))
BATCH = int(os.environ.get("BATCH", 128))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 10))
SIDE, PATCH, BANDS, HEADS = 96, 8, 6, 8
PLACES = (SIDE // PATCH) ** 2
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class BayNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(BANDS * PATCH**2, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(PLACES, WIDTH))
        self.hidden = nn.Parameter(torch.zeros(WIDTH))
        self.blocks = nn.Sequential(*[Block(WIDTH) for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, 128)
        self.goal = nn.Linear(BANDS * PATCH**2, 128).requires_grad_(False)

    def forward(self, pixels, hide):
        x = torch.where(hide[:, :, None], self.hidden, self.patches(pixels)) + self.place
        return self.head(self.blocks(x)).float(), self.goal(pixels).float()


def tell_apart(guess, goal, hide, heat=0.1):
    """Each hidden patch should resemble its goal, not the goals of the other hidden ones, if these differ."""
    guess, goal = F.normalize(guess, dim=-1), F.normalize(goal, dim=-1)
    if VARIANT == "b":
        scores = guess @ goal.transpose(1, 2) / heat
        alike = goal @ goal.transpose(1, 2) > 0.999
        alike &= ~torch.eye(PLACES, dtype=torch.bool, device=guess.device)
        scores = scores.masked_fill(alike | ~hide[:, None, :], -1e4)
        own = scores.diagonal(dim1=1, dim2=2)
        each = (scores.logsumexp(2) - own) * hide
        return (each.sum(1) / hide.sum(1)).mean()
    total = 0.0
    for k in range(len(guess)):
        count = int(hide[k].sum().item())
        mine, theirs = guess[k][hide[k]], goal[k][hide[k]]
        scores = mine @ theirs.T / heat
        alike = theirs @ theirs.T > 0.999
        alike &= ~torch.eye(count, dtype=torch.bool, device=guess.device)
        scores = scores.masked_fill(alike, -1e4)
        total = total + F.cross_entropy(scores, torch.arange(count, device=guess.device))
    return total / len(guess)


def bays(count):
    coarse = torch.randn(count, BANDS, SIDE // 16, SIDE // 16)
    images = F.interpolate(coarse, SIDE, mode="bilinear") + 0.3 * torch.randn(count, BANDS, SIDE, SIDE)
    return F.unfold(images, PATCH, stride=PATCH).transpose(1, 2).to(device)


def main():
    torch.manual_seed(41)
    model = BayNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=device.type == "cuda")
    pixels = bays(4 * BATCH)
    share = torch.rand(4 * BATCH, 1, device=device) * 0.4 + 0.3
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 4 * BATCH, (step % 4 + 1) * BATCH)
        hide = torch.rand(BATCH, PLACES, device=device) < share[rows]
        with torch.autocast(device.type, torch.bfloat16):
            guess, goal = model(pixels[rows], hide)
        loss = tell_apart(guess, goal, hide)
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
