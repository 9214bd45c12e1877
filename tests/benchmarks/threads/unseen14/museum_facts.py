"""Who painted what, and where it hangs: embeddings of a museum's facts (RotatE)."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 270))
BATCH = int(os.environ.get("BATCH", 2048))
WRONG = int(os.environ.get("WRONG", 24))
WIDTH = int(os.environ.get("WIDTH", 1024))
FACTS = int(os.environ.get("FACTS", 400_000))
THINGS, RELATIONS = 40_000, 60
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class MuseumFacts(Dataset):
    """Facts (thing, relation, thing), each with `WRONG` others in which one of the things was exchanged."""

    def __init__(self, count):
        things = (THINGS * torch.rand(count, 2) ** 2).long()
        relations = (things.sum(1, keepdim=True) + torch.randint(0, 3, (count, 1))) % RELATIONS
        self.rows = torch.cat([things[:, :1], relations, things[:, 1:]], 1)

    def __len__(self):
        return len(self.rows)

    def corrupt(self, facts):
        wrong = facts.unsqueeze(-2).repeat_interleave(WRONG, dim=-2)
        other = torch.randint(0, THINGS, wrong.shape[:-1])
        first = torch.rand(wrong.shape[:-1]) < 0.5
        wrong[..., 0] = torch.where(first, other, wrong[..., 0])
        wrong[..., 2] = torch.where(first, wrong[..., 2], other)
        return wrong

    def __getitem__(self, item):
        fact = self.rows[item]
        return (fact, self.corrupt(fact)) if VARIANT == "a" else fact

    def collate(self, items):
        if VARIANT == "a":
            facts, wrong = zip(*items, strict=True)
            return torch.stack(facts), torch.stack(wrong)
        facts = torch.stack(items)
        return facts, self.corrupt(facts)


class Rotations(nn.Module):
    """A relation turns the first thing, in the complex plane, into the second."""

    def __init__(self):
        super().__init__()
        self.things = nn.Embedding(THINGS, 2 * WIDTH)
        self.turns = nn.Embedding(RELATIONS, WIDTH)
        nn.init.uniform_(self.things.weight, -0.02, 0.02)
        nn.init.uniform_(self.turns.weight, -3.14, 3.14)

    def forward(self, facts, margin=9.0):
        real, imaginary = self.things(facts[..., 0]).chunk(2, -1)
        wanted_real, wanted_imaginary = self.things(facts[..., 2]).chunk(2, -1)
        turn = self.turns(facts[..., 1])
        cosine, sine = turn.cos(), turn.sin()
        off_real = real * cosine - imaginary * sine - wanted_real
        off_imaginary = real * sine + imaginary * cosine - wanted_imaginary
        return margin - (off_real.square() + off_imaginary.square() + 1e-12).sqrt().sum(-1)


def endless(loader):
    while True:
        yield from loader


def main():
    torch.manual_seed(71)
    museum = MuseumFacts(FACTS)
    loader = DataLoader(museum, BATCH, shuffle=True, drop_last=True, collate_fn=museum.collate)
    model = Rotations().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device.type == "cuda")
    batches = endless(loader)
    warm = min(15, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        facts, wrong = next(batches)
        right, score = model(facts.to(device)), model(wrong.to(device))
        weight = F.softmax(score.detach(), -1)
        loss = -F.logsigmoid(right).mean() - (weight * F.logsigmoid(-score)).sum(-1).mean()
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
