"""GraphSAGE over a shop's graph of products, trained by batches of seeds with a sampler."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 5 if SMALL else 4500))
WARMUP = 2 if SMALL else 10

device = "cuda" if torch.cuda.is_available() else "cpu"
NODES = 3000 if SMALL else 600_000
FEATURES = 16 if SMALL else 100
CLASSES = 47
DEGREE = 8 if SMALL else 30
SEEDS = 16 if SMALL else 1000
FANOUTS = (3, 3) if SMALL else (15, 10)
WIDTH = 32 if SMALL else 512


class Shop:
    """Products with features, what is bought with them, and their category."""

    def __init__(self):
        g = torch.Generator().manual_seed(21)
        self.feat = torch.randn(NODES, FEATURES, generator=g)
        self.label = torch.randint(CLASSES, (NODES,), generator=g)
        self.bought = torch.randint(NODES, (NODES, DEGREE), generator=g)
        self.place = torch.empty(NODES, dtype=torch.long)
        self.g = torch.Generator().manual_seed(22)

    def block(self, target, fanout):
        """The sources of one hop, and where in them each target and its neighbours stand."""
        pick = torch.randint(DEGREE, (len(target), fanout), generator=self.g)
        near = self.bought[target.unsqueeze(1), pick]
        mark = torch.zeros(NODES, dtype=torch.bool)
        mark[near.flatten()] = True
        mark[target] = False
        source = torch.cat([target, mark.nonzero().squeeze(1)])
        self.place[source] = torch.arange(len(source))
        return source, self.place[near]

    def sample(self):
        seeds = torch.randint(NODES, (SEEDS,), generator=self.g).unique()
        nodes, blocks = seeds, []
        for fanout in reversed(FANOUTS):
            nodes, near = self.block(nodes, fanout)
            blocks.insert(0, near)
        return nodes, seeds, blocks


class Layer(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.own = nn.Linear(inp, out)
        self.near = nn.Linear(inp, out)

    def forward(self, x, near):
        mean = F.embedding_bag(near, x, mode="mean")
        return self.own(x[: len(near)]) + self.near(mean)


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Layer(FEATURES, WIDTH)
        self.second = Layer(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))

    def forward(self, x, blocks):
        x = F.relu(self.norm(self.first(x, blocks[0])))
        x = F.relu(self.second(x, blocks[1]))
        return self.out(x)


def clock():
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    shop = Shop()
    feat, label = shop.feat, shop.label
    if VARIANT != "a":
        feat, label = feat.to(device), label.to(device)
    model = Sage().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=device == "cuda")

    for step in range(STEPS):
        if step == WARMUP:
            begin = clock()
        nodes, seeds, blocks = shop.sample()
        nodes, seeds = nodes.to(feat.device), seeds.to(feat.device)
        x = feat[nodes].to(device)
        y = label[seeds].to(device)
        blocks = [near.to(device) for near in blocks]
        loss = F.cross_entropy(model(x, blocks), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 500 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}")
    took = clock() - begin

    print(f"loss {loss.item():.4f}")
    print(f"{took * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
