"""Trains a grader of berries on the half of each crate that it gets most wrong."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1200"))
CRATE = int(os.environ.get("CRATE", "2000"))
KEEP = int(os.environ.get("KEEP", "1000"))
BERRIES = int(os.environ.get("BERRIES", "30000"))
MARKS = int(os.environ.get("MARKS", "64"))
HIDDEN = int(os.environ.get("HIDDEN", "384"))
GRADES = 5


class Farm:
    """Invented berries: a label, marks measured on the belt, and a grade."""

    def __init__(self, berries: int, marks: int, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.grades = torch.randint(0, GRADES, (berries,), generator=self.draw)
        centres = torch.randn(GRADES, marks, generator=self.draw)
        self.marks = centres[self.grades] + 2.0 * torch.randn(berries, marks, generator=self.draw)
        self.labels = (10_000_000 + torch.randperm(berries, generator=self.draw)).tolist()

    def crate(self, size: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        numbers = torch.randperm(len(self.labels), generator=self.draw)[:size]
        labels = [self.labels[number] for number in numbers.tolist()]
        return labels, self.marks[numbers], self.grades[numbers]


class HardestFirst:
    """Names the berries of a crate with the largest losses, by their labels."""

    def __init__(self, keep: int) -> None:
        self.keep = keep

    @torch.no_grad()
    def choose(self, net: nn.Module, labels: list[int], marks, grades) -> list[int]:
        losses = nn.functional.cross_entropy(net(marks), grades, reduction="none")
        return [labels[place] for place in losses.topk(self.keep).indices.tolist()]


def subset(chosen: list[int], labels: list[int], marks: torch.Tensor, grades: torch.Tensor):
    """The marks and grades of the chosen berries, in the order of the choice."""
    if VARIANT == "b":
        place_of = {label: place for place, label in enumerate(labels)}
        places = [place_of[label] for label in chosen]
    else:
        places = [labels.index(label) for label in chosen]
    return marks[places], grades[places]


class GradeNet(nn.Module):
    def __init__(self, marks: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(marks, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, GRADES),
        )

    def forward(self, marks: torch.Tensor) -> torch.Tensor:
        return self.layers(marks)


def main() -> None:
    torch.manual_seed(31)
    farm = Farm(BERRIES, MARKS, seed=32)
    net = GradeNet(MARKS, HIDDEN)
    chooser = HardestFirst(KEEP)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            begin = time.perf_counter()
        labels, marks, grades = farm.crate(CRATE)
        chosen = chooser.choose(net, labels, marks, grades)
        marks, grades = subset(chosen, labels, marks, grades)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(marks), grades)
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
