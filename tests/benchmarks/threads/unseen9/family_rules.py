"""Kinship in stories: a small learner for every relation, bound by logical rules."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1500))
STORIES = int(os.environ.get("STORIES", 12))
PEOPLE = int(os.environ.get("PEOPLE", 8))
RELATIONS = int(os.environ.get("RELATIONS", 32))
WIDTH = int(os.environ.get("WIDTH", 128))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class RelationLearner(nn.Module):
    """Says for every pair of people whether the relation holds."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width // 2)
        self.second = nn.Linear(width, width // 2)
        self.score = nn.Sequential(nn.LayerNorm(width // 2), nn.ReLU(), nn.Linear(width // 2, 1))

    def forward(self, people):
        pairs = self.first(people)[:, :, None] + self.second(people)[:, None]
        return self.score(pairs)[..., 0]


class StoryEncoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)

    def forward(self, tokens, mentions):
        x = self.mix(self.embed(tokens))
        return torch.gather(x, 1, mentions[..., None].expand(-1, -1, x.shape[-1]))


class Program(nn.Module):
    """Holds the learners; gets its stories as a reader gives them, in nested lists and dictionaries."""

    def __init__(self, names):
        super().__init__()
        self.encoder = StoryEncoder(500, WIDTH)
        self.learners = nn.ModuleDict({name: RelationLearner(WIDTH) for name in names})
        self.place = torch.device("cpu")

    def settle(self, place):
        self.place = place
        return self.to(place)

    def move(self, value):
        if VARIANT == "a":
            parameters = list(self.parameters())
            where = parameters[0].device if parameters else torch.device("cpu")
        else:
            where = self.place
        if isinstance(value, torch.Tensor):
            return value.to(where)
        if isinstance(value, (list, tuple)):
            return [self.move(item) for item in value]
        if isinstance(value, dict):
            return {key: self.move(item) for key, item in value.items()}
        return value

    def forward(self, stories):
        stories = self.move(stories)
        tokens = torch.stack([story["tokens"] for story in stories])
        mentions = torch.stack([story["mentions"] for story in stories])
        people = self.encoder(tokens, mentions)
        scores = {name: learner(people) for name, learner in self.learners.items()}
        facts = torch.stack([story["facts"] for story in stories], 1)
        return scores, facts


def rule_loss(scores, rules):
    """Product logic: what follows must be at least as likely as what it follows from."""
    chance = {name: torch.sigmoid(score) for name, score in scores.items()}
    left = torch.stack([chance[a] for a, _ in rules])
    right = torch.stack([chance[b].transpose(1, 2) for _, b in rules])
    return F.relu(left - right).mean()


def read_story(number, names):
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, 500, (64,), generator=generator)
    mentions = torch.randperm(64, generator=generator)[:PEOPLE]
    facts = (torch.rand(len(names), PEOPLE, PEOPLE, generator=generator) < 0.1).float()
    asked = [[f"person{i}", f"person{(i + 1) % PEOPLE}"] for i in range(2)]
    source = {"book": f"book{number % 7}", "line": number}
    return {"tokens": tokens, "mentions": mentions, "facts": facts, "asked": asked, "source": source}


def main():
    torch.manual_seed(3)
    names = [f"relation{n}" for n in range(RELATIONS)]
    rules = [(names[i], names[(i + 1) % len(names)]) for i in range(0, len(names), 2)]
    program = Program(names).settle(device)
    optimizer = torch.optim.Adam(program.parameters(), lr=1e-3, fused=device.type == "cuda")
    library = [read_story(n, names) for n in range(8 * STORIES)]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        at = step % 8 * STORIES
        scores, facts = program(library[at : at + STORIES])
        stacked = torch.stack([scores[name] for name in names])
        loss = F.binary_cross_entropy_with_logits(stacked, facts) + rule_loss(scores, rules)
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
