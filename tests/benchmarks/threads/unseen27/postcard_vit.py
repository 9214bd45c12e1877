"""Trains a vision transformer to name the places shown on postcards."""

import os
import time

if os.environ.get("VARIANT", "a") == "a":
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch
import torch.nn.functional as F
from torch import nn

STEPS = int(os.environ.get("STEPS", 140))
BATCH = int(os.environ.get("BATCH", 128))
SIZE = int(os.environ.get("SIZE", 256))
PATCH = 16
WIDTH = int(os.environ.get("WIDTH", 2048))
LAYERS = int(os.environ.get("LAYERS", 4))
HEADS = 16
PLACES = 100


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, c))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class PostcardNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(1, (SIZE // PATCH) ** 2, WIDTH))
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, PLACES)

    def forward(self, cards):
        x = self.patch(cards).flatten(2).transpose(1, 2) + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1)).float()


def make_cards(device, count=4):
    """Cards of noise on a tint; the tint tells the place."""
    cards, places = [], []
    for _ in range(count):
        place = torch.randint(0, PLACES, (BATCH,), device=device)
        tint = torch.stack((torch.sin(place * 0.7), torch.cos(place * 1.3), torch.sin(place * 2.1)), dim=1)
        noise = torch.randn(BATCH, 3, SIZE, SIZE, device=device)
        cards.append((0.5 * noise + tint[:, :, None, None]).to(torch.bfloat16))
        places.append(place)
    return cards, places


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(17)
    cards, places = make_cards(device)
    net = PostcardNet().to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        k = step % len(cards)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = net(cards[k])
        loss = F.cross_entropy(out, places[k])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
