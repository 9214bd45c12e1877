"""Tunes a denoiser of frescoes to please a critic: it paints from noise and learns at the last stroke."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "250"))
BATCH = int(os.environ.get("BATCH", "16"))
SIDE = int(os.environ.get("SIDE", "64"))
WIDTH = int(os.environ.get("WIDTH", "320"))
WORDS = int(os.environ.get("WORDS", "77"))
TEXT = int(os.environ.get("TEXT", "4096"))
STROKES = int(os.environ.get("STROKES", "6"))
CONTEXT = 768

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Patchwork(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.GroupNorm(16, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.hour = nn.Linear(1280, width)
        self.norm2 = nn.GroupNorm(16, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm3 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.keyval = nn.Linear(CONTEXT, 2 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x, hour, context):
        inner = self.conv1(F.silu(self.norm1(x))) + self.hour(hour)[:, :, None, None]
        x = x + self.conv2(F.silu(self.norm2(inner)))
        b, c, h, w = x.shape
        flat = x.permute(0, 2, 3, 1).reshape(b, h * w, c)
        q = self.query(self.norm3(flat)).view(b, h * w, self.heads, -1).transpose(1, 2)
        k, v = self.keyval(context).view(b, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return x + self.proj(mixed).view(b, h, w, c).permute(0, 3, 1, 2)


class FrescoNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.text_proj = nn.Sequential(
            nn.Linear(TEXT, CONTEXT), nn.GELU(), nn.Linear(CONTEXT, CONTEXT), nn.LayerNorm(CONTEXT)
        )
        self.hour = nn.Sequential(nn.Linear(256, 1280), nn.SiLU(), nn.Linear(1280, 1280), nn.SiLU())
        self.enter = nn.Conv2d(4, WIDTH, 3, padding=1)
        self.down = nn.ModuleList(Patchwork(WIDTH, 8) for _ in range(2))
        self.shrink = nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1)
        self.middle = nn.ModuleList(Patchwork(2 * WIDTH, 8) for _ in range(3))
        self.grow = nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1)
        self.up = nn.ModuleList(Patchwork(WIDTH, 8) for _ in range(2))
        self.leave = nn.Conv2d(WIDTH, 4, 3, padding=1)

    def process_text(self, text):
        return self.text_proj(text)

    def forward(self, x, noise, text=None, context=None):
        if context is None:
            context = self.process_text(text)
        waves = torch.exp(torch.linspace(0, -9, 128, device=x.device)) * noise * 1000
        hour = self.hour(torch.cat([waves.sin(), waves.cos()])).expand(x.shape[0], -1)
        x = self.enter(x)
        for part in self.down:
            x = part(x, hour, context)
        deep = self.shrink(x)
        for part in self.middle:
            deep = part(deep, hour, context)
        x = x + self.grow(F.interpolate(deep, scale_factor=2.0, mode="nearest"))
        for part in self.up:
            x = part(x, hour, context)
        return self.leave(F.silu(x))


def paint(net, x, text, levels):
    with torch.autocast(device.type, dtype=torch.bfloat16):
        context = None if VARIANT == "a" else net.process_text(text)
    for stroke in range(STROKES):
        last = stroke == STROKES - 1
        with torch.set_grad_enabled(last), torch.autocast(device.type, dtype=torch.bfloat16):
            slope = net(x, levels[stroke], text=text, context=context)
            x = x - slope.float() * (levels[stroke] - levels[stroke + 1])
    return x


def main():
    torch.manual_seed(41)
    texts = torch.randn(512, WORDS, TEXT, device=device)
    net = FrescoNet().to(device, memory_format=torch.channels_last)
    critic = nn.Sequential(
        nn.Conv2d(4, 64, 4, 4),
        nn.SiLU(),
        nn.Conv2d(64, 128, 4, 4),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 1),
    ).to(device)
    critic.requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=device.type == "cuda")
    levels = [1 - k / STROKES for k in range(STROKES + 1)]
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        text = texts.index_select(0, torch.randint(0, len(texts), (BATCH,), device=device))
        x = torch.randn(BATCH, 4, SIDE, SIDE, device=device).to(memory_format=torch.channels_last)
        picture = paint(net, x, text, levels)
        loss = F.softplus(-critic(picture)).mean() + 0.01 * picture.square().mean()
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
