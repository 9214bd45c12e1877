"""Recommends the next item, over two ranks; each rank reports how it is doing."""

import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 200))
ITEMS, LENGTH, BATCH, WIDTH, CUTOFFS = 1500, 20, 24, 64, (1, 2, 5, 10, 20, 50, 100, 200)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.mix = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, history):
        return self.mix(self.items(history))[0][:, -1] @ self.items.weight.T


class Report:
    def __init__(self, ranks):
        self.ranks, self.totals, self.steps = ranks, {}, 0

    def log(self, name, value, sync):
        if sync:
            distributed.all_reduce(value)
            value = value / self.ranks
        self.totals[name] = self.totals.get(name, 0.0) + value

    def epoch_end(self):
        names = sorted(self.totals)
        values = torch.stack([self.totals[name] for name in names])
        if VARIANT == "b":
            distributed.all_reduce(values)
            values = values / self.ranks
        return dict(zip(names, (values / self.steps).tolist(), strict=True))


def training_step(model, report, history, wanted):
    scores = model(history)
    loss = nn.functional.cross_entropy(scores, wanted)
    with torch.no_grad():
        rank = (scores > scores.gather(1, wanted[:, None])).sum(1)
        for k in CUTOFFS:
            hit = (rank < k).float()
            report.log(f"recall@{k}", hit.mean(), sync=VARIANT == "a")
            report.log(f"ndcg@{k}", (hit / (rank + 2.0).log2()).mean(), sync=VARIANT == "a")
            report.log(f"mrr@{k}", (hit / (rank + 1.0)).mean(), sync=VARIANT == "a")
        report.log("loss", loss.detach().clone(), sync=VARIANT == "a")
    report.steps += 1
    return loss


def main():
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(distributed.get_rank())
    model = DistributedDataParallel(Recommender())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    report = Report(distributed.get_world_size())
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        history, wanted = torch.randint(0, ITEMS, (BATCH, LENGTH)), torch.randint(0, ITEMS, (BATCH,))
        loss = training_step(model, report, history, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    spent = time.perf_counter() - start
    means = report.epoch_end()
    if distributed.get_rank() == 0:
        print(f"loss {means['loss']:.4f}")
        print(f"{1000 * spent / (STEPS - 10):.2f} ms per step")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
