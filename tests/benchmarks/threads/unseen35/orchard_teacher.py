"""Sort fruit photos (as feature vectors) into varieties; a smoothed copy of the model is kept for testing."""

import copy
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "350"))
WARM = min(10, STEPS // 2)
FEATURES = 768
WIDTH = 1280
DEPTH = 5
VARIETIES = 200
BATCH = 32
DECAY = 0.998


class OrchardBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.outer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


class OrchardNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(FEATURES, WIDTH)
        self.seen = nn.BatchNorm1d(WIDTH)
        self.blocks = nn.Sequential(*[OrchardBlock() for _ in range(DEPTH)])
        self.head = nn.Linear(WIDTH, VARIETIES)

    def forward(self, x):
        return self.head(self.blocks(self.seen(self.stem(x))))


class SmoothedModel(nn.Module):
    def __init__(self, model, decay):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for kept, fresh in zip(self.module.state_dict().values(), model.state_dict().values()):
            kept.copy_(self.decay * kept + (1.0 - self.decay) * fresh)

    @torch.no_grad()
    def update_each(self, model):
        for kept, fresh in zip(self.module.state_dict().values(), model.state_dict().values()):
            if kept.is_floating_point():
                kept.lerp_(fresh, 1.0 - self.decay)
            else:
                kept.copy_(fresh)


def draw_photos(generator, prototypes):
    variety = torch.randint(0, VARIETIES, (BATCH,), generator=generator)
    photo = prototypes[variety] + 0.8 * torch.randn(BATCH, FEATURES, generator=generator)
    return photo, variety


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    prototypes = torch.randn(VARIETIES, FEATURES, generator=generator)
    model = OrchardNet()
    smoothed = SmoothedModel(model, DECAY)
    refresh = smoothed.update if VARIANT == "a" else smoothed.update_each
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, weight_decay=1e-4)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == WARM:
            start = time.perf_counter()
        photo, variety = draw_photos(generator, prototypes)
        loss = F.cross_entropy(model(photo), variety, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        refresh(model)
        if step % 100 == 99:
            with torch.no_grad():
                right = (smoothed.module(photo).argmax(1) == variety).float().mean()
            print(f"step {step + 1}: smoothed model {right.item():.3f} right")
    spent = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{spent / (STEPS - WARM) * 1e3:.2f} ms per step")


if __name__ == "__main__":
    main()
