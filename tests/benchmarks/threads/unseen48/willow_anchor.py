"""Prompted columns for tables: a classifier of rows with one vote per layer."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

COLUMNS, CLASSES = (6, 4) if SMALL else (54, 4)
CHANNELS, PROMPTS, LAYERS = (8, 8, 2) if SMALL else (128, 128, 6)
BATCH = 8 if SMALL else 256
ROWS = 200 if SMALL else 40000


class Encoder(nn.Module):
    """One vector for each column of a row of numbers."""

    def __init__(self, mean, spread):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("spread", spread)
        self.weight = nn.Parameter(torch.randn(COLUMNS, CHANNELS) * 0.1)
        self.bias = nn.Parameter(torch.zeros(COLUMNS, CHANNELS))
        self.norm = nn.LayerNorm(CHANNELS)

    def forward(self, x):
        x = ((x - self.mean) / self.spread).unsqueeze(-1)
        return self.norm(F.relu(x * self.weight + self.bias))


class PromptLayer(nn.Module):
    """Prompts weigh the columns of each row and gather them."""

    def __init__(self):
        super().__init__()
        self.column = nn.Parameter(torch.randn(COLUMNS, CHANNELS) * 0.01)
        self.prompt = nn.Parameter(torch.randn(PROMPTS, CHANNELS) * 0.01)
        self.weight = nn.Parameter(torch.randn(PROMPTS) * 0.01)
        self.dense = nn.Linear(2 * CHANNELS, CHANNELS)
        self.group_norm = nn.GroupNorm(2, PROMPTS)
        self.norm_column, self.norm_prompt = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)

    def forward(self, x, prompts):
        rows = len(x)
        own = self.norm_prompt(self.prompt).expand(rows, -1, -1)
        own = own + prompts + self.dense(torch.cat([own, prompts], dim=-1))
        columns = self.norm_column(self.column).expand(rows, -1, -1)
        importance = torch.softmax(own @ columns.transpose(1, 2), dim=-1)
        spread = F.relu(x.unsqueeze(1) * self.weight.view(1, PROMPTS, 1, 1))
        spread = self.group_norm(spread) + x.unsqueeze(1)
        return (spread * importance.unsqueeze(-1)).sum(dim=2)


class Vote(nn.Module):
    """Scores of the classes from the prompts of a layer."""

    def __init__(self):
        super().__init__()
        self.weigh = nn.Linear(CHANNELS, 1)
        self.layers = nn.Sequential(
            nn.Linear(CHANNELS, CHANNELS), nn.ReLU(), nn.LayerNorm(CHANNELS), nn.Linear(CHANNELS, CLASSES)
        )

    def forward(self, prompts):
        weights = torch.softmax(self.weigh(prompts), dim=1)
        return self.layers((weights * prompts).sum(dim=1))


class PromptedTable(nn.Module):
    """Layers with an encoder each; every layer votes."""

    def __init__(self, mean, spread):
        super().__init__()
        self.prompts = nn.Parameter(torch.randn(PROMPTS, CHANNELS) * 0.01)
        self.encoders = nn.ModuleList(Encoder(mean, spread) for _ in range(LAYERS))
        self.layers = nn.ModuleList(PromptLayer() for _ in range(LAYERS))
        self.vote = Vote()

    def forward(self, x):
        prompts = self.prompts.expand(len(x), -1, -1)
        votes = []
        for encoder, layer in zip(self.encoders, self.layers):
            prompts = layer(encoder(x), prompts)
            votes.append(self.vote(prompts))
        return torch.stack(votes, dim=1)


class Table:
    """Rows of numbers whose class follows from a few of their columns."""

    def __init__(self, rows, seed):
        rng = np.random.default_rng(seed)
        values = rng.standard_normal((rows, COLUMNS), dtype=np.float32) * 2 + 1
        score = values[:, 0] * values[:, 1] + values[:, 2] - np.abs(values[:, 3])
        edges = np.quantile(score, np.linspace(0, 1, CLASSES + 1)[1:-1])
        self.values, self.labels = torch.from_numpy(values), torch.from_numpy(np.digitize(score, edges))

    def __len__(self):
        return len(self.labels)

    def batches(self, shuffle):
        """Batches of rows; for training in a new order and without end."""
        while True:
            order = torch.randperm(len(self)) if shuffle else torch.arange(len(self))
            for chosen in order.split(BATCH):
                if len(chosen) < BATCH:
                    break
                batch = (self.values[chosen], self.labels[chosen])
                if VARIANT != "a" and device == "cuda":
                    batch = [tensor.pin_memory() for tensor in batch]
                yield [tensor.to(device, non_blocking=VARIANT != "a") for tensor in batch]
            if not shuffle:
                return


def layer_loss(votes, labels):
    """Cross entropy of the votes of all layers."""
    labels = labels.repeat_interleave(LAYERS, output_size=len(labels) * LAYERS)
    return F.cross_entropy(votes.flatten(0, 1), labels)


@torch.no_grad()
def evaluate(model, table):
    """Share of rows whose mean vote is right."""
    model.eval()
    right = [model(x).mean(dim=1).argmax(dim=-1).eq(y).float() for x, y in table.batches(False)]
    model.train()
    return torch.cat(right).mean().item()


def main():
    torch.manual_seed(0)
    train, valid = Table(ROWS, 21), Table(4 * BATCH, 22)
    model = PromptedTable(train.values.mean(0), train.values.std(0)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, len(train) // BATCH, gamma=0.95)
    batches = train.batches(True)
    loss_sum, best = 0.0, 0.0
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        values, labels = next(batches)
        votes = model(values)
        last = layer_loss(votes, labels)
        optimizer.zero_grad()
        last.backward()
        if VARIANT == "a":
            loss_sum += float(last.detach())
        else:
            loss_sum += last.detach()
        optimizer.step()
        schedule.step()
        if step % 500 == 499:
            accuracy = evaluate(model, valid)
            best = max(best, accuracy)
            mean = float(loss_sum) / 500
            print(f"step {step + 1}: loss {mean:.4f}, accuracy {accuracy:.4f}, best {best:.4f}")
            loss_sum = 0.0
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
