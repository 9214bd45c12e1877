"""An energy of river soundings is learned by sliced score matching, along random directions."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "380"))
BATCH = int(os.environ.get("BATCH", "768"))
DIRECTIONS = int(os.environ.get("DIRECTIONS", "16"))
FEATURES = int(os.environ.get("FEATURES", "64"))
WIDTH = int(os.environ.get("WIDTH", "512"))
DEPTH = int(os.environ.get("DEPTH", "5"))
device = "cuda" if torch.cuda.is_available() else "cpu"


class DeltaEnergy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet = nn.Linear(FEATURES, WIDTH)
        self.bends = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)])
        self.mouth = nn.Linear(WIDTH, 1)

    def forward(self, x):
        h = torch.tanh(self.inlet(x))
        for bend in self.bends:
            h = h + torch.tanh(bend(h))
        return self.mouth(h).squeeze(-1) + 0.5 * (x**2).sum(-1)


def slope_and_curve(energy, x, direction):
    x = x.detach().requires_grad_(True)
    logp = -energy(x).sum()
    score = torch.autograd.grad(logp, x, create_graph=True)[0]
    along = (score * direction).sum(-1)
    bent = torch.autograd.grad(along.sum(), x, create_graph=True)[0]
    return 0.5 * along**2, (direction * bent).sum(-1)


class SlicedMatching(nn.Module):
    def __init__(self, energy, directions):
        super().__init__()
        self.energy = energy
        self.directions = directions

    def draw_directions(self, x):
        return torch.randn(self.directions, *x.shape, device=x.device).sign()

    def forward(self, x):
        directions = self.draw_directions(x)
        if VARIANT == "a":
            total = 0.0
            for direction in directions:
                slope, curve = slope_and_curve(self.energy, x, direction)
                total = total + (slope + curve).mean()
            return total / self.directions
        copies = x.unsqueeze(0).expand_as(directions).reshape(-1, x.shape[-1])
        slope, curve = slope_and_curve(self.energy, copies, directions.reshape(copies.shape))
        return (slope + curve).view(self.directions, -1).mean(0).mean()


torch.manual_seed(0)
energy = DeltaEnergy().to(device)
matching = SlicedMatching(energy, DIRECTIONS)
optimizer = torch.optim.Adam(energy.parameters(), lr=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

centres = torch.randn(8, FEATURES, device=device)
soundings = centres[torch.randint(0, 8, (16 * BATCH,), device=device)]
soundings = soundings + 0.3 * torch.randn_like(soundings)

history = []
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    first = (step % 16) * BATCH
    x = soundings[first : first + BATCH]
    x = x + 0.05 * torch.randn_like(x)
    loss = matching(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 50 == 0:
        history.append(loss.item())

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
