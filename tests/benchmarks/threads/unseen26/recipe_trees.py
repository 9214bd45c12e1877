"""Trains a tree network that scores how alike two recipes are from the trees of their steps."""

import os
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("STEPS", "500"))
PAIRS = int(os.environ.get("PAIRS", "2"))
NODES = int(os.environ.get("NODES", "18"))
WORDS = int(os.environ.get("WORDS", "400"))
IN_DIM = int(os.environ.get("IN_DIM", "100"))
MEM_DIM = int(os.environ.get("MEM_DIM", "100"))


class Step:
    """One step of a recipe: a word, and the steps that must come before it."""

    def __init__(self, word: int) -> None:
        self.word = word
        self.before: list["Step"] = []


def draw_recipe(dice: random.Random, nodes: int) -> Step:
    steps = [Step(dice.randrange(WORDS))]
    for _ in range(nodes - 1):
        step = Step(dice.randrange(WORDS))
        dice.choice(steps[-6:]).before.append(step)
        steps.append(step)
    return steps[0]


class StepCell(nn.Module):
    """State of a step from its word and the states of the steps before it."""

    def __init__(self, in_dim: int, mem_dim: int) -> None:
        super().__init__()
        self.ix, self.ih = nn.Linear(in_dim, mem_dim), nn.Linear(mem_dim, mem_dim)
        self.fx, self.fh = nn.Linear(in_dim, mem_dim), nn.Linear(mem_dim, mem_dim)
        self.ox, self.oh = nn.Linear(in_dim, mem_dim), nn.Linear(mem_dim, mem_dim)
        self.ux, self.uh = nn.Linear(in_dim, mem_dim), nn.Linear(mem_dim, mem_dim)

    def forward(self, word, child_c, child_h):
        h_sum = child_h.sum(0, keepdim=True)
        i = torch.sigmoid(self.ix(word) + self.ih(h_sum))
        o = torch.sigmoid(self.ox(word) + self.oh(h_sum))
        u = torch.tanh(self.ux(word) + self.uh(h_sum))
        fx = self.fx(word)
        f = torch.cat([self.fh(h.unsqueeze(0)) + fx for h in child_h], 0)
        fc = torch.sigmoid(f) * child_c
        c = i * u + fc.sum(0, keepdim=True)
        return c, o * torch.tanh(c)


class PackedCell(nn.Module):
    """The same state, with the parameters of a StepCell packed side by side."""

    def __init__(self, cell: StepCell) -> None:
        super().__init__()
        word, before = (cell.ix, cell.ox, cell.ux, cell.fx), (cell.ih, cell.oh, cell.uh)
        self.word_weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in word]))
        self.word_bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in word]))
        self.sum_weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in before]))
        self.sum_bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in before]))
        self.fh = cell.fh
        self.mem_dim = cell.fh.out_features

    def forward(self, word, child_c, child_h):
        three = 3 * self.mem_dim
        from_word = F.linear(word, self.word_weight, self.word_bias)
        gates = from_word[:, :three] + F.linear(child_h.sum(0, keepdim=True), self.sum_weight, self.sum_bias)
        both = torch.sigmoid(gates[:, : 2 * self.mem_dim])
        i, o = both.split(self.mem_dim, 1)
        f = torch.sigmoid(self.fh(child_h) + from_word[:, three:])
        c = i * torch.tanh(gates[:, 2 * self.mem_dim :]) + (f * child_c).sum(0, keepdim=True)
        return c, o * torch.tanh(c)


class RecipeNet(nn.Module):
    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, IN_DIM)
        cell = StepCell(IN_DIM, MEM_DIM)
        self.cell = PackedCell(cell) if packed else cell
        self.score = nn.Sequential(nn.Linear(2 * MEM_DIM, 50), nn.Sigmoid(), nn.Linear(50, 5))

    def state(self, step: Step):
        if step.before:
            states = [self.state(earlier) for earlier in step.before]
            child_c, child_h = (torch.cat(part) for part in zip(*states))
        else:
            child_c = child_h = torch.zeros(1, MEM_DIM)
        return self.cell(self.words(torch.tensor([step.word])), child_c, child_h)

    def forward(self, left: Step, right: Step) -> torch.Tensor:
        one, other = self.state(left)[0], self.state(right)[0]
        return self.score(torch.cat([one * other, (one - other).abs()], 1))


def main() -> None:
    torch.manual_seed(3)
    dice = random.Random(3)
    net = RecipeNet(packed=os.environ.get("VARIANT", "a") == "b")
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.02)
    book = [(draw_recipe(dice, NODES), draw_recipe(dice, NODES), dice.randrange(5)) for _ in range(300)]
    warm = min(10, STEPS // 2)
    begin = time.perf_counter()
    for turn in range(STEPS):
        if turn == warm:
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.zeros(())
        for left, right, grade in dice.sample(book, PAIRS):
            loss = loss + F.cross_entropy(net(left, right), torch.tensor([grade])) / PAIRS
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - begin
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
