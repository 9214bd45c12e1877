"""Ranks a hundred candidate answers per round of a dialog about a picture (late fusion)."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 90))
BATCH = int(os.environ.get("BATCH", 8))
ROUNDS = int(os.environ.get("ROUNDS", 10))
OPTIONS = int(os.environ.get("OPTIONS", 100))
WORDS = int(os.environ.get("WORDS", 20))
HIDDEN = int(os.environ.get("HIDDEN", 512))
VOCAB = int(os.environ.get("VOCAB", 11322))
REGIONS, IMAGE, EMBED = 36, int(os.environ.get("IMAGE", 2048)), 300
POOL = 4
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class FusionEncoder(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed = embed
        self.question = nn.LSTM(EMBED, HIDDEN, 2, batch_first=True)
        self.history = nn.LSTM(EMBED, HIDDEN, 2, batch_first=True)
        self.project = nn.Linear(IMAGE, HIDDEN)
        self.attend = nn.Linear(HIDDEN, 1)
        self.fuse = nn.Linear(IMAGE + 2 * HIDDEN, HIDDEN)

    def forward(self, image, question, history):
        b, r, t = question.shape
        q = self.question(self.embed(question.view(b * r, t)))[1][0][-1]
        h = self.history(self.embed(history.view(b * r, -1)))[1][0][-1]
        regions = image[:, None].expand(b, r, REGIONS, IMAGE).reshape(b * r, REGIONS, IMAGE)
        scores = self.attend(self.project(regions) * q[:, None])
        seen = (scores.softmax(1) * regions).sum(1)
        return torch.tanh(self.fuse(torch.cat([seen, q, h], 1))).view(b, r, HIDDEN)


class OptionDecoder(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed = embed
        self.option = nn.LSTM(EMBED, HIDDEN, 2, batch_first=True)

    def forward(self, code, options):
        b, r, n, t = options.shape
        o = self.option(self.embed(options.view(b * r * n, t)))[1][0][-1].view(b, r, n, HIDDEN)
        return (o * code[:, :, None]).sum(-1)


def make_dialogs():
    g = torch.Generator().manual_seed(4)
    n = POOL * BATCH
    image = torch.randn(n, REGIONS, IMAGE, generator=g)
    question = torch.randint(1, VOCAB, (n, ROUNDS, WORDS), generator=g)
    history = torch.randint(1, VOCAB, (n, ROUNDS, 2 * WORDS), generator=g)
    options = torch.randint(1, VOCAB, (n, ROUNDS, OPTIONS, WORDS), generator=g)
    answer = torch.randint(0, OPTIONS, (n, ROUNDS), generator=g)
    return [t.to(device) for t in (image, question, history, options, answer)]


dialogs = make_dialogs()
embed = nn.Embedding(VOCAB, EMBED, padding_idx=0)
encoder, decoder = FusionEncoder(embed).to(device), OptionDecoder(embed).to(device)
parameters = list({id(p): p for m in (encoder, decoder) for p in m.parameters()}.values())
optimizer = torch.optim.Adamax(parameters, lr=4e-4)
per_epoch = max(STEPS // 2, 1)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    at = step % POOL * BATCH
    image, question, history, options, answer = [t[at : at + BATCH] for t in dialogs]
    optimizer.zero_grad()
    scores = decoder(encoder(image, question, history), options)
    loss = F.cross_entropy(scores.view(-1, OPTIONS), answer.reshape(-1))
    loss.backward()
    optimizer.step()
    last = loss.detach()
    if VARIANT == "a" or (step + 1) % per_epoch == 0:
        torch.cuda.empty_cache()
if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - t0
print(f"loss {last.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
