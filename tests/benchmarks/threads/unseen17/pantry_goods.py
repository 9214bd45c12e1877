"""What households keep in their pantries: amounts of goods that were hidden are to be guessed."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
BATCH = int(os.environ.get("BATCH", 32))
LENGTH = int(os.environ.get("LENGTH", 1024))
WIDTH = int(os.environ.get("WIDTH", 512))
DEPTH = int(os.environ.get("DEPTH", 12))
HOUSES = int(os.environ.get("HOUSES", 3000))
WORKERS = int(os.environ.get("WORKERS", 6))
GOODS, NONE, AMOUNTS, HIDDEN = 12000, 12000, 51, -1.0
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Pantries(Dataset):
    """Of each household the goods that it has, and how many of each."""

    def __init__(self):
        random = np.random.default_rng(3)
        self.goods, self.amounts = [], []
        for _ in range(HOUSES):
            count = int(random.integers(LENGTH // 2, 3 * LENGTH))
            goods = np.unique(random.integers(0, GOODS, count))
            self.goods.append(torch.from_numpy(goods))
            self.amounts.append(torch.from_numpy(random.lognormal(1.0, 1.0, len(goods))).float())

    def __len__(self):
        return HOUSES

    def __getitem__(self, item):
        return self.goods[item], self.amounts[item]


def step_of(amounts):
    """Amounts as steps, of which each holds as many goods of the household."""
    edges = torch.quantile(amounts, torch.linspace(0, 1, AMOUNTS - 1))
    return torch.bucketize(amounts, edges).float()


def draw(goods, amounts):
    """As many goods of a household as there is room for."""
    if len(goods) <= LENGTH:
        return goods, amounts
    if VARIANT == "a":
        places = torch.randperm(len(goods))[:LENGTH]
        return goods[places], amounts[places]
    return goods[:LENGTH], amounts[:LENGTH]


def collate(houses, share=0.4):
    goods_rows, given_rows, wanted_rows = [], [], []
    for goods, amounts in houses:
        goods, steps = draw(goods, step_of(amounts))
        hide = torch.randperm(len(goods))[: int(share * len(goods))]
        given = steps.clone()
        given[hide] = HIDDEN
        free = LENGTH - len(goods)
        goods_rows.append(F.pad(goods, (0, free), value=NONE))
        given_rows.append(F.pad(given, (0, free)))
        wanted_rows.append(F.pad(steps, (0, free)))
    return torch.stack(goods_rows), torch.stack(given_rows), torch.stack(wanted_rows)


class Guess(nn.Module):
    def __init__(self):
        super().__init__()
        self.goods = nn.Embedding(GOODS + 1, WIDTH)
        self.amount = nn.Sequential(nn.Linear(1, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        sizes, first = (WIDTH, WIDTH // 64, 4 * WIDTH), {"batch_first": True, "norm_first": True}
        layers = [nn.TransformerEncoderLayer(*sizes, 0.0, **first) for _ in range(DEPTH)]
        self.layers = nn.ModuleList(layers)
        self.out = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))

    def forward(self, goods, given):
        x = self.goods(goods) + self.amount(given.unsqueeze(-1))
        for layer in self.layers:
            x = layer(x)
        return self.out(x)[..., 0]


def main():
    torch.manual_seed(59)
    model = Guess().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    pantries = Pantries()
    sampler = RandomSampler(pantries, replacement=True, num_samples=STEPS * BATCH)
    options = {"num_workers": WORKERS, "pin_memory": device.type == "cuda"}
    loader = DataLoader(pantries, BATCH, sampler=sampler, collate_fn=collate, **options)
    warm = min(20, STEPS // 2)
    for step, batch in enumerate(loader):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        goods, given, wanted = (x.to(device, non_blocking=True) for x in batch)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            guessed = model(goods, given)
        hidden = given == HIDDEN
        loss = ((guessed.float() - wanted).square() * hidden).sum() / hidden.sum()
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
