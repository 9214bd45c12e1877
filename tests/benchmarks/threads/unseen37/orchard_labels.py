"""Find fruit in orchard pictures by name: grid cells are matched with the features of the names."""

import os
import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "550"))
WARM = min(10, STEPS // 2)
PICTURES = 256
SIDE = 64
BATCH = 8
NAMES = 120
NAMES_PER_PICTURE = 12
TOKENS = 12
WIDTH = 128


def invent_names(rng):
    kinds = ["apple", "pear", "plum", "cherry", "quince", "medlar", "fig", "olive", "almond", "peach"]
    looks = "ripe green small fallen hidden red yellow split wet young dark old".split()
    return [f"a photo of one {look} {kind} on a tree" for look in looks for kind in kinds][:NAMES]


class OrchardPictures(Dataset):
    def __init__(self, names, rng):
        generator = torch.Generator().manual_seed(2)
        self.pictures = torch.rand(PICTURES, 3, SIDE, SIDE, generator=generator)
        self.cells = torch.randint(0, NAMES_PER_PICTURE, (PICTURES, (SIDE // 8) ** 2), generator=generator)
        self.texts = [rng.sample(names, NAMES_PER_PICTURE) for _ in range(PICTURES)]

    def __len__(self):
        return PICTURES

    def __getitem__(self, i):
        return {"img": self.pictures[i], "cells": self.cells[i], "texts": self.texts[i]}


def collate(samples):
    batch = {name: torch.stack([s[name] for s in samples]) for name in ("img", "cells")}
    return {**batch, "texts": [s["texts"] for s in samples]}


class NameEncoder(nn.Module):
    """Stands for the text tower of a pretrained model; its weights stay as they are."""

    def __init__(self, names):
        super().__init__()
        self.ids = {word: i + 1 for i, word in enumerate(sorted({w for n in names for w in n.split()}))}
        self.words = nn.Embedding(len(self.ids) + 1, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def tokenize(self, texts):
        rows = [[self.ids[w] for w in text.split()] for text in texts]
        return torch.tensor([row + [0] * (TOKENS - len(row)) for row in rows])

    @torch.no_grad()
    def encode_text(self, texts):
        features = self.body(self.words(self.tokenize(texts)))[:, -1]
        return F.normalize(features, dim=-1)


class FruitFinder(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [3, 48, 96, WIDTH]
        self.body = nn.Sequential(
            *[
                nn.Sequential(
                    nn.Conv2d(i, o, 3, 2, 1),
                    nn.BatchNorm2d(o),
                    nn.SiLU(),
                    nn.Conv2d(o, o, 3, 1, 1),
                    nn.BatchNorm2d(o),
                    nn.SiLU(),
                )
                for i, o in zip(sizes, sizes[1:])
            ]
        )

    def forward(self, pictures, names):
        cells = F.normalize(self.body(pictures).flatten(2), dim=1)
        return torch.bmm(names, cells) * 10


class Trainer:
    def __init__(self, names):
        self.text_model = NameEncoder(names).eval()
        self.model = FruitFinder()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.features = None
        if VARIANT != "a":
            self.features = dict(zip(names, self.text_model.encode_text(names)))

    def preprocess_batch(self, batch):
        texts = [text for row in batch["texts"] for text in row]
        if self.features is None:
            features = self.text_model.encode_text(texts)
        else:
            features = torch.stack([self.features[text] for text in texts])
        batch["txt_feats"] = features.view(len(batch["texts"]), NAMES_PER_PICTURE, WIDTH)
        return batch

    def step(self, batch):
        batch = self.preprocess_batch(batch)
        loss = F.cross_entropy(self.model(batch["img"], batch["txt_feats"]), batch["cells"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    names = invent_names(rng)
    trainer = Trainer(names)
    loader = DataLoader(
        OrchardPictures(names, rng),
        batch_size=BATCH,
        shuffle=True,
        collate_fn=collate,
        generator=torch.Generator().manual_seed(3),
    )
    step, start = 0, time.perf_counter()
    while step < STEPS:
        for batch in loader:
            if step == WARM:
                start = time.perf_counter()
            loss = trainer.step(batch)
            step += 1
            if step == STEPS:
                break
    spent = (time.perf_counter() - start) / (STEPS - WARM)
    print(f"loss {loss.item():.5f}")
    print(f"{spent * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
