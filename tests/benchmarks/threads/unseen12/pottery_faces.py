"""New patterns for glazed pots: a generator and a judge of 64 x 64 pictures."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 600))
BATCH = int(os.environ.get("BATCH", 64))
WIDTH = int(os.environ.get("WIDTH", 96))
EVERY = 8 if VARIANT == "b" else 1
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow = nn.Conv2d(width, width, 1)
        self.mix = nn.Conv2d(width, width, 3, padding=1)
        self.wide = nn.Conv2d(width, width, 1)

    def forward(self, x):
        y = F.leaky_relu(self.narrow(x), 0.2)
        return x + self.wide(F.leaky_relu(self.mix(y), 0.2))


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Linear(64, 4 * WIDTH * 16)
        stages = []
        for before, after in ((4, 4), (4, 2), (2, 1), (1, 1)):
            stages += [
                Residual(before * WIDTH),
                nn.Upsample(scale_factor=2),
                nn.Conv2d(before * WIDTH, after * WIDTH, 3, padding=1),
            ]
        self.stages = nn.Sequential(*stages, Residual(WIDTH), nn.Conv2d(WIDTH, 3, 1))

    def forward(self, z):
        return torch.tanh(self.stages(self.start(z).view(-1, 4 * WIDTH, 4, 4)))


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        stages = [nn.Conv2d(3, WIDTH, 1)]
        for before, after in ((1, 1), (1, 2), (2, 4), (4, 4)):
            stages += [Residual(before * WIDTH), nn.Conv2d(before * WIDTH, after * WIDTH, 4, 2, 1)]
        self.stages = nn.Sequential(*stages, Residual(4 * WIDTH), nn.Flatten())
        self.score = nn.Linear(4 * WIDTH * 16, 1)

    def forward(self, x):
        return self.score(self.stages(x))[:, 0]


def steepness(scores, pictures):
    """Square of the gradient of the scores with respect to the pictures."""
    (slope,) = torch.autograd.grad(scores.sum(), pictures, create_graph=True)
    return slope.square().sum((1, 2, 3)).mean()


class Game:
    def __init__(self, gamma=0.2):
        self.generator, self.judge = Generator().to(device), Judge().to(device)
        options = {"lr": 1e-4, "betas": (0.0, 0.99), "fused": device.type == "cuda"}
        self.for_generator = torch.optim.Adam(self.generator.parameters(), **options)
        self.for_judge = torch.optim.Adam(self.judge.parameters(), **options)
        self.gamma, self.turn = gamma, 0

    def judge_step(self, real):
        smooth = self.turn % EVERY == 0
        with torch.no_grad():
            fake = self.generator(torch.randn(len(real), 64, device=device))
        real, fake = real.detach().requires_grad_(smooth), fake.requires_grad_(smooth)
        of_real, of_fake = self.judge(real), self.judge(fake)
        loss = F.softplus(of_fake - of_real).mean()
        total = loss
        if smooth:
            penalty = steepness(of_real, real) + steepness(of_fake, fake)
            total = loss + EVERY * self.gamma / 2 * penalty
        self.for_judge.zero_grad(set_to_none=True)
        total.backward()
        self.for_judge.step()
        return loss

    def generator_step(self, real):
        self.judge.requires_grad_(False)
        fake = self.generator(torch.randn(len(real), 64, device=device))
        with torch.no_grad():
            of_real = self.judge(real)
        loss = F.softplus(of_real - self.judge(fake)).mean()
        self.for_generator.zero_grad(set_to_none=True)
        loss.backward()
        self.for_generator.step()
        self.judge.requires_grad_(True)
        self.turn += 1


def pots(count):
    rows = torch.linspace(0, 1, 64).view(1, 1, 64, 1)
    columns = torch.rand(count, 3, 1, 64).cumsum(-1) / 64
    return torch.sin(20 * torch.rand(count, 3, 1, 1) * rows + 6 * columns)


def main():
    torch.manual_seed(23)
    game, pictures = Game(), pots(16 * BATCH).to(device)
    warm = min(16, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        real = pictures[step % 16 * BATCH : (step % 16 + 1) * BATCH]
        loss = game.judge_step(real)
        game.generator_step(real)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
