"""Sentiment on sentences of different length: an LSTM cell called once per word from Python.

Planted: launch-bound (thousands of tiny operators). --fixed: nn.LSTM over the packed batch.
"""

import random
import sys
import time

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence

TRUTH = "launch-bound"
FIXED = "--fixed" in sys.argv

torch.manual_seed(0)
random.seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
emb = nn.Embedding(1000, 16).to(device)
if FIXED:
    rnn = nn.LSTM(16, 24).to(device)
else:
    rnn = nn.LSTMCell(16, 24).to(device)
out = nn.Linear(24, 2).to(device)
params = [*emb.parameters(), *rnn.parameters(), *out.parameters()]
optimizer = torch.optim.Adam(params, lr=1e-3)


def make_batch():
    sentences = [torch.randint(1000, (random.randint(20, 40),)) for _ in range(8)]
    return sentences, torch.randint(2, (8,))


def forward(sentences):
    if FIXED:
        packed = pack_sequence([emb(s.to(device)) for s in sentences], enforce_sorted=False)
        return out(rnn(packed)[1][0][0])
    padded = pad_sequence(sentences).to(device)
    h = c = torch.zeros(len(sentences), 24, device=device)
    lengths = torch.tensor([len(s) for s in sentences], device=device).unsqueeze(1)
    for t in range(padded.size(0)):
        h2, c2 = rnn(emb(padded[t]), (h, c))
        alive = (lengths > t).float()
        h = alive * h2 + (1 - alive) * h
        c = alive * c2 + (1 - alive) * c
    return out(h)


criterion = nn.CrossEntropyLoss()
begin = None
for step in range(150):
    if step == 20:
        begin = time.perf_counter()
    sentences, labels = make_batch()
    optimizer.zero_grad()
    loss = criterion(forward(sentences), labels.to(device))
    loss.backward()
    nn.utils.clip_grad_norm_(params, 5.0)
    optimizer.step()
print("loss", loss.item())
print(f"step_ms={(time.perf_counter() - begin) * 1000 / 130:.3f}")
