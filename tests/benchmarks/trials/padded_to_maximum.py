"""Text classifier: the generator pads each batch to 256 tokens though texts have about 30.

Planted: compute-bound, on padding (the line is marked). --fixed: padded to the longest of the batch.
"""

import random
import sys
import time

import torch
from torch import nn

TRUTH = "compute-bound"
ACCEPT = ("allocator-thrashing",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"
MAX_LEN, PAD, VOCAB = 256, 0, 3000
random.seed(0)
corpus = [
    ([random.randrange(1, VOCAB) for _ in range(random.randrange(20, 40))], random.randrange(4))
    for _ in range(4000)
]


def batches(size=8):
    while True:
        chosen = random.sample(corpus, size)
        longest = max(len(t) for t, _ in chosen) if FIXED else MAX_LEN
        input_ids = torch.full((size, longest), PAD)  # planted
        for row, (tokens, _) in enumerate(chosen):
            input_ids[row, : len(tokens)] = torch.tensor(tokens)
        yield {
            "input_ids": input_ids,
            "attention_mask": (input_ids != PAD).long(),
            "labels": torch.tensor([c for _, c in chosen]),
        }


class Classifier(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(d, 4)

    def forward(self, input_ids, attention_mask):
        h = self.enc(self.emb(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.head((h * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))


model = Classifier().to(DEV)
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
stream = batches()
N = 60
for it in range(N):
    if it == 10:
        t0 = time.perf_counter()
    b = {k: v.to(DEV) for k, v in next(stream).items()}
    loss = nn.functional.cross_entropy(model(b["input_ids"], b["attention_mask"]), b["labels"])
    opt.zero_grad()
    loss.backward()
    opt.step()
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 10):.3f}")
