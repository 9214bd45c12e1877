"""Fine-tunes a small speaker on dialogues: history and reply as one row of words."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "400"))
WORDS, WIDTH, HEADS, LAYERS = 1200, 96, 4, 3
TALKS, LONGEST, BATCH = 1600, 192, 8
PAD = 0


def make_talks():
    generator = torch.Generator().manual_seed(3)
    talks = []
    for i in range(TALKS):
        turns = int(torch.randint(2, 9, (1,), generator=generator))
        length = 8 + turns * int(torch.randint(6, 13, (1,), generator=generator))
        if i % 400 == 7:
            length = LONGEST
        start = int(torch.randint(1, WORDS, (1,), generator=generator))
        row = [start]
        for _ in range(length - 1):
            jump = int(torch.randint(1, 5, (1,), generator=generator))
            row.append(1 + (row[-1] * 3 + jump) % (WORDS - 1))
        talks.append({"input_ids": row, "reply_from": max(1, length // 2)})
    return talks


def pad_talks(talks):
    longest = max(len(t["input_ids"]) for t in talks)
    rows = []
    for t in talks:
        gap = longest - len(t["input_ids"])
        labels = [-100] * t["reply_from"] + t["input_ids"][t["reply_from"] :]
        rows.append((t["input_ids"] + [PAD] * gap, labels + [-100] * gap))
    return rows


class ParlorDataset(Dataset):
    def __init__(self, talks):
        self.talks = talks
        if VARIANT == "a":
            rows = pad_talks(talks)
            self.input_ids = torch.tensor([r[0] for r in rows])
            self.labels = torch.tensor([r[1] for r in rows])

    def __len__(self):
        return len(self.talks)

    def __getitem__(self, i):
        if VARIANT == "a":
            return self.input_ids[i], self.labels[i]
        return self.talks[i]


def collate_talks(talks):
    rows = pad_talks(talks)
    return torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows])


class ParlorBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(n, t, WIDTH))
        return x + self.feed(self.norm2(x))


class ParlorModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(ParlorBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, input_ids, labels):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(scores.reshape(-1, WORDS), labels[:, 1:].reshape(-1), ignore_index=-100)


def main():
    torch.manual_seed(0)
    dataset = ParlorDataset(make_talks())
    loader = DataLoader(
        dataset,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(1),
        collate_fn=None if VARIANT == "a" else collate_talks,
    )
    model = ParlorModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm, step = min(10, STEPS // 2), 0
    while step < STEPS:
        for input_ids, labels in loader:
            if step == warm:
                start = time.perf_counter()
            loss = model(input_ids, labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step == STEPS:
                break
    took = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * took / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
