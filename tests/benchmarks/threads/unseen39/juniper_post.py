"""Questions are brought near their answers; the other answers of the batch serve as negatives."""

import hashlib
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "280"))
BATCH = int(os.environ.get("BATCH", "512"))
ROWS = int(os.environ.get("ROWS", "200000"))
QUESTIONS = int(os.environ.get("QUESTIONS", "1000"))
PASSAGES = int(os.environ.get("PASSAGES", "60000"))
WIDTH = int(os.environ.get("WIDTH", "384"))
LAYERS = int(os.environ.get("LAYERS", "4"))
LENGTH = int(os.environ.get("LENGTH", "16"))
NEGATIVES = int(os.environ.get("NEGATIVES", "4"))
device = "cuda" if torch.cuda.is_available() else "cpu"


class LetterTable:
    """Rows of texts, kept as one string of bytes per column, as a columnar file keeps them."""

    def __init__(self, columns):
        self.columns = {}
        for name, texts in columns.items():
            coded = [text.encode() for text in texts]
            self.columns[name] = (b"".join(coded), [0] + np.cumsum([len(c) for c in coded]).tolist())
        self.rows = len(coded)

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        row = {}
        for name, (buffer, ends) in self.columns.items():
            row[name] = buffer[ends[index] : ends[index + 1]].decode()
        return row


def short_code(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class DistinctBatches:
    """Batches in which no text occurs twice; rows that clash wait for a later batch."""

    def __init__(self, table, batch_size, seed):
        self.table, self.batch_size, self.seed = table, batch_size, seed
        self.codes = None
        if VARIANT != "a":
            self.codes = [{short_code(text) for text in table[i].values()} for i in range(len(table))]

    def values_of(self, index):
        if self.codes is not None:
            return self.codes[index]
        return {str(text) for name, text in self.table[index].items() if not name.endswith("_prompt_length")}

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed)
        waiting = dict.fromkeys(torch.randperm(len(self.table), generator=generator).tolist())
        while waiting:
            seen, batch = set(), []
            for index in waiting:
                values = self.values_of(index)
                if values & seen:
                    continue
                batch.append(index)
                if len(batch) == self.batch_size:
                    yield batch
                    break
                seen.update(values)
            for index in batch:
                del waiting[index]


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8192, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, ids):
        return F.normalize(self.layers(self.words(ids)).mean(1).float(), dim=-1)


torch.manual_seed(0)
rng = np.random.default_rng(0)
question = (rng.random(ROWS) ** 1.5 * QUESTIONS).astype(np.int64)
answers = rng.integers(0, PASSAGES, (1 + NEGATIVES, ROWS))
columns = {"query": [f"what is said about matter {q} in the letters" for q in question]}
for k, name in enumerate(["positive"] + [f"negative_{n}" for n in range(NEGATIVES)]):
    columns[name] = [f"letter {p} tells at length of the matter and of its end" for p in answers[k]]
table = LetterTable(columns)
question_ids, passage_ids = (torch.randint(0, 8192, (n, LENGTH)) for n in (QUESTIONS, PASSAGES))


def collate(rows):
    rows = np.asarray(rows)
    return torch.cat([question_ids[question[rows]]] + [passage_ids[answer[rows]] for answer in answers])


loader = DataLoader(range(ROWS), batch_sampler=DistinctBatches(table, BATCH, seed=1), collate_fn=collate)
model = Tower().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
target = torch.arange(BATCH, device=device)

warm = min(10, STEPS // 2)
batches = iter(loader)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    ids = next(batches).to(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        queries, passages = model(ids).split([BATCH, (1 + NEGATIVES) * BATCH])
    loss = F.cross_entropy(20.0 * queries @ passages.t(), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
