"""Trains vectors for the article numbers of a warehouse from what is packed together."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "4000"))
BATCH = int(os.environ.get("BATCH", "512"))
ARTICLES = int(os.environ.get("ARTICLES", "400000"))
WIDTH = int(os.environ.get("WIDTH", "48"))
NOISE = int(os.environ.get("NOISE", "12"))


class ArticleSampler:
    """Draws articles by how often they are packed."""

    def __init__(self, counts):
        self.weights = counts**0.75
        if VARIANT == "b":
            self.keep, self.other = self.make_table(self.weights)

    @staticmethod
    def make_table(weights):
        """Two numbers for each article: the chance to keep it, and which one to take instead."""
        scaled = (weights * (len(weights) / weights.sum())).tolist()
        other = list(range(len(scaled)))
        low = [i for i, value in enumerate(scaled) if value < 1]
        high = [i for i, value in enumerate(scaled) if value >= 1]
        while low and high:
            small, large = low.pop(), high[-1]
            other[small] = large
            scaled[large] -= 1 - scaled[small]
            if scaled[large] < 1:
                low.append(high.pop())
        for i in low + high:
            scaled[i] = 1.0
        return torch.tensor(scaled), torch.tensor(other)

    def draw(self, shape):
        count = shape[0] * shape[1]
        if VARIANT == "a":
            return torch.multinomial(self.weights, count, replacement=True).view(shape)
        first = torch.randint(0, len(self.keep), (count,))
        stay = torch.rand(count) < self.keep[first]
        return torch.where(stay, first, self.other[first]).view(shape)


class ArticleVectors(nn.Module):
    def __init__(self, articles, width):
        super().__init__()
        self.inner = nn.Embedding(articles, width, sparse=True)
        self.outer = nn.Embedding(articles, width, sparse=True)
        nn.init.normal_(self.inner.weight, std=0.1)
        nn.init.normal_(self.outer.weight, std=0.1)

    def forward(self, centre, near, noise):
        centre = self.inner(centre)
        pull = (centre * self.outer(near)).sum(-1)
        push = torch.matmul(self.outer(noise), centre.unsqueeze(-1)).squeeze(-1)
        return -(F.logsigmoid(pull).mean() + F.logsigmoid(-push).sum(1).mean())


def make_parcels(steps, batch, articles):
    centre = (torch.rand(steps, batch) ** 3 * articles).long()
    near = (centre + torch.randint(1, 5, centre.shape)) % articles
    return centre, near


def main():
    torch.manual_seed(13)
    centre, near = make_parcels(STEPS, BATCH, ARTICLES)
    counts = 1e6 / torch.arange(10, ARTICLES + 10)
    sampler = ArticleSampler(counts)
    model = ArticleVectors(ARTICLES, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            started = time.perf_counter()
        noise = sampler.draw((BATCH, NOISE))
        loss = model(centre[step], near[step], noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - started

    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
