"""Who will leave? A table of customers, scored twice an epoch."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 240))
ROWS, HELD_OUT, COLUMNS, BATCH, CHECKPOINTS = 6144, 512, 96, 256, 2


class Combiner(nn.Module):
    def __init__(self, width=768):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(COLUMNS, width), nn.LayerNorm(width), nn.ReLU())
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(self.encode(x)))[:, 0]


def metrics(logits, y):
    right = ((logits > 0) == (y > 0.5)).float().mean()
    return {
        "loss": nn.functional.binary_cross_entropy_with_logits(logits, y).item(),
        "accuracy": right.item(),
    }


@torch.no_grad()
def score(model, x, y):
    model.eval()
    logits = torch.cat([model(part) for part in x.split(BATCH)])
    model.train()
    return metrics(logits, y)


class Trainer:
    def __init__(self, model, train, test):
        self.model, self.train_set, self.test_set = model, train, test
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.history, self.step, self.start = [], 0, None

    def train_step(self, x, y):
        logits = self.model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return logits.detach()

    def run_epoch(self):
        x, y = self.train_set
        for part in torch.randperm(len(x)).chunk(CHECKPOINTS):
            seen = []
            for rows in part.split(BATCH):
                if self.step == 24:
                    self.start = time.perf_counter()
                seen.append(self.train_step(x[rows], y[rows]))
                self.step += 1
            row = {"test": score(self.model, *self.test_set)}
            if VARIANT == "a":
                row["train"] = score(self.model, x, y)
            else:
                row["train"] = metrics(torch.cat(seen), y[part])
            self.history.append(row)


def main():
    torch.manual_seed(0)
    x = torch.randn(ROWS + HELD_OUT, COLUMNS)
    y = (x[:, :5].sum(1) > 0).float()
    trainer = Trainer(Combiner(), (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:]))
    while trainer.step < STEPS:
        trainer.run_epoch()
    spent = time.perf_counter() - trainer.start
    print(f"loss {trainer.history[-1]['train']['loss']:.4f}")
    print(f"{1000 * spent / (trainer.step - 24):.2f} ms per step")


if __name__ == "__main__":
    main()
