"""Answers questions about short stories: a batch of worlds, a teacher in each."""

import os
import random
import time

import torch
from story_teachers import StoryTeacher, make_episodes
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 450))
WORDS, WIDTH, BATCH, NEGATIVES = 4000, 96, 32, 30


class StarSpace(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 256), nn.Tanh(), nn.Linear(256, WIDTH))

    def encode(self, tokens):
        return nn.functional.normalize(self.mix(self.words(tokens).mean(-2)), dim=-1)

    def forward(self, text, candidates):
        return torch.einsum("bd,bnd->bn", self.encode(text), self.encode(candidates))


class StarSpaceAgent:
    def __init__(self):
        self.model = StarSpace()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.replies = torch.randint(1, WORDS, (500, 6))

    def batch_act(self, observations):
        width = max(len(each["text"]) for each in observations)
        text = torch.tensor([each["text"] + [0] * (width - len(each["text"])) for each in observations])
        right = torch.tensor([each["labels"] for each in observations])
        wrong = self.replies[torch.randint(0, len(self.replies), (len(observations), NEGATIVES))]
        scores = self.model(text, torch.cat([right[:, None], wrong], 1))
        loss = nn.functional.cross_entropy(10 * scores, torch.zeros(len(observations), dtype=torch.long))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class BatchWorld:
    def __init__(self, teachers, agent):
        self.teachers, self.agent = teachers, agent
        self.seen = 0

    def parley(self):
        observations = [teacher.act() for teacher in self.teachers]
        self.seen += len(observations)
        return self.agent.batch_act(observations)

    def epochs(self):
        return self.seen / self.teachers[0].num_examples()


def main():
    torch.manual_seed(0)
    random.seed(0)
    episodes = make_episodes(9000, WORDS)
    teachers = [StoryTeacher(episodes, offset=250 * i, frozen=VARIANT == "b") for i in range(BATCH)]
    world = BatchWorld(teachers, StarSpaceAgent())
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        loss = world.parley()
        if step % 100 == 0:
            print(f"{world.epochs():.2f} epochs, loss {loss:.4f}")
    print(f"loss {loss:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
