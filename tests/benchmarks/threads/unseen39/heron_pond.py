"""A small diffusion model of pond pictures: a U-Net and a running average of its weights."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "130"))
BATCH = int(os.environ.get("BATCH", "32"))
SIZE = int(os.environ.get("SIZE", "64"))
WIDTH = int(os.environ.get("WIDTH", "128"))
device = "cuda" if torch.cuda.is_available() else "cpu"


class Ripple(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(emb, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(emb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Heron(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.emb = nn.Sequential(nn.Linear(64, 4 * w), nn.SiLU(), nn.Linear(4 * w, 4 * w))
        self.inlet = nn.Conv2d(3, w, 3, padding=1)
        self.down1 = nn.ModuleList([Ripple(w, w, 4 * w), Ripple(w, w, 4 * w)])
        self.shrink1 = nn.Conv2d(w, 2 * w, 3, stride=2, padding=1)
        self.down2 = nn.ModuleList([Ripple(2 * w, 2 * w, 4 * w), Ripple(2 * w, 2 * w, 4 * w)])
        self.shrink2 = nn.Conv2d(2 * w, 2 * w, 3, stride=2, padding=1)
        self.middle = nn.ModuleList([Ripple(2 * w, 2 * w, 4 * w), Ripple(2 * w, 2 * w, 4 * w)])
        self.up2 = nn.ModuleList([Ripple(4 * w, 2 * w, 4 * w), Ripple(2 * w, w, 4 * w)])
        self.up1 = nn.ModuleList([Ripple(2 * w, w, 4 * w), Ripple(w, w, 4 * w)])
        self.outlet = nn.Conv2d(w, 3, 3, padding=1)

    def forward(self, x, t):
        freq = torch.exp(torch.linspace(0, 6, 32, device=x.device))
        angle = t[:, None] * freq
        emb = F.silu(self.emb(torch.cat([angle.sin(), angle.cos()], 1)))
        x = self.inlet(x)
        for block in self.down1:
            x = block(x, emb)
        first, x = x, self.shrink1(x)
        for block in self.down2:
            x = block(x, emb)
        second, x = x, self.shrink2(x)
        for block in self.middle:
            x = block(x, emb)
        x = torch.cat([F.interpolate(x, scale_factor=2.0), second], 1)
        for block in self.up2:
            x = block(x, emb)
        x = torch.cat([F.interpolate(x, scale_factor=2.0), first], 1)
        for block in self.up1:
            x = block(x, emb)
        return self.outlet(x)


class ShadowWeights:
    def __init__(self, parameters, decay=0.9999):
        self.shadow = [p.detach().clone() for p in parameters]
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def step(self, parameters):
        self.updates += 1
        share = 1 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        for s, p in zip(self.shadow, parameters):
            s.sub_(share * (s - p))
        if VARIANT == "a":
            torch.cuda.empty_cache()


torch.manual_seed(0)
model = Heron(WIDTH).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
shadow = ShadowWeights(model.parameters())
pictures = torch.rand(4 * BATCH, 3, SIZE, SIZE, device=device) * 2 - 1

warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    first = (step % 4) * BATCH
    clean = pictures[first : first + BATCH]
    noise = torch.randn_like(clean)
    t = torch.rand(BATCH, device=device)
    level = t[:, None, None, None]
    with torch.autocast(device, dtype=torch.bfloat16):
        guess = model((1 - level) * clean + level * noise, t)
    loss = F.mse_loss(guess.float(), noise - clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shadow.step(model.parameters())

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
