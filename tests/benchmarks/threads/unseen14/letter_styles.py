"""Handwritten letters, read by a net that eight schools train in turn, each with weights of its own."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 480))
WIDTH = int(os.environ.get("WIDTH", 64))
DEPTH = int(os.environ.get("DEPTH", 60))
SCHOOLS, LETTERS, SHOTS, SIDE = 8, 26, 5, 28
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow = nn.Sequential(nn.Conv2d(width, width // 2, 1), nn.GroupNorm(4, width // 2), nn.ReLU())
        self.mix = nn.Sequential(
            nn.Conv2d(width // 2, width // 2, 3, padding=1), nn.GroupNorm(4, width // 2), nn.ReLU()
        )
        self.widen = nn.Sequential(nn.Conv2d(width // 2, width, 1), nn.GroupNorm(4, width))

    def forward(self, x):
        return F.relu(x + self.widen(self.mix(self.narrow(x))))


class LetterNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, WIDTH, 3, 2, 1), nn.GroupNorm(4, WIDTH), nn.ReLU())
        half = [Block(WIDTH) for _ in range(DEPTH // 2)]
        rest = [Block(WIDTH) for _ in range(DEPTH - DEPTH // 2)]
        self.body = nn.Sequential(nn.Sequential(*half), nn.MaxPool2d(2), nn.Sequential(*rest))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class School:
    """A school's own weights; pictures of its pupils' letters never leave it."""

    def __init__(self, learner):
        self.state = {k: v.detach().clone() for k, v in learner.state_dict().items()}
        self.weights, self.there = list(self.state.values()), list(learner.state_dict().values())

    @torch.no_grad()
    def enter(self, learner):
        if VARIANT == "b":
            torch._foreach_copy_(self.there, self.weights)
        else:
            learner.load_state_dict(self.state)

    @torch.no_grad()
    def leave(self):
        torch._foreach_copy_(self.weights, self.there)


@torch.no_grad()
def meet(schools, stride=0.5):
    """All schools move towards their mean."""
    mean = [torch.zeros_like(w) for w in schools[0].weights]
    for school in schools:
        torch._foreach_add_(mean, school.weights, alpha=1 / len(schools))
    for school in schools:
        torch._foreach_lerp_(school.weights, mean, stride)


def pages(count):
    """Pictures of each letter, as some pupil writes it, and which letter it is."""
    strokes = F.interpolate(torch.randn(LETTERS, 1, 7, 7), SIDE, mode="bilinear")
    labels = torch.arange(LETTERS).repeat_interleave(SHOTS)
    return (strokes[labels] + 0.5 * torch.randn(count, len(labels), 1, SIDE, SIDE)).to(device), labels.to(
        device
    )


def main():
    torch.manual_seed(19)
    learner = LetterNet().to(device)
    schools = [School(learner) for _ in range(SCHOOLS)]
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.02, foreach=True)
    pictures, labels = pages(10 * SCHOOLS)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        school = schools[step % SCHOOLS]
        school.enter(learner)
        loss = F.cross_entropy(learner(pictures[step % len(pictures)]), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        school.leave()
        if (step + 1) % (10 * SCHOOLS) == 0:
            meet(schools)
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
