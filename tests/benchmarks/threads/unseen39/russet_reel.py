"""A decoder reads films, with text between the frames; a token has a place in time, height and width."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "180"))
BATCH = int(os.environ.get("BATCH", "4"))
FRAMES = int(os.environ.get("FRAMES", "40"))
DIM = int(os.environ.get("DIM", "768"))
LAYERS = int(os.environ.get("LAYERS", "12"))
HEADS = int(os.environ.get("HEADS", "12"))
VOCAB, START, PIXEL = 8000, 8000, 8001
device = "cuda" if torch.cuda.is_available() else "cpu"


def film(rng):
    ids, grids = [], []
    for _ in range(FRAMES):
        h, w = 2 * rng.integers(3, 7), 2 * rng.integers(3, 7)
        ids += rng.integers(0, VOCAB, rng.integers(4, 12)).tolist() + [START] + [PIXEL] * (h * w // 4)
        grids.append((1, h, w))
    return ids + rng.integers(0, VOCAB, rng.integers(16, 48)).tolist(), grids


def film_batch(rng):
    films = [film(rng) for _ in range(BATCH)]
    length = -(-max(len(ids) for ids, _ in films) // 64) * 64
    ids, mask = np.zeros((2, BATCH, length), np.int64)
    for i, (row, _) in enumerate(films):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    return [torch.as_tensor(x).to(device) for x in (ids, mask, [g for _, rows in films for g in rows])]


def places_by_spans(ids, mask, grids):
    places = torch.ones(3, *ids.shape, dtype=ids.dtype, device=ids.device)
    frame = 0
    for i, row in enumerate(ids):
        row = row[mask[i] == 1]
        starts = torch.argwhere(row == START).squeeze(1)
        count = (row[starts + 1] == PIXEL).sum()
        tokens = row.tolist()
        parts, st = [], 0
        for _ in range(count):
            ed = tokens.index(PIXEL, st)
            t, h, w = grids[frame][0].item(), grids[frame][1].item() // 2, grids[frame][2].item() // 2
            frame += 1
            text = ed - st
            first = parts[-1].max() + 1 if parts else 0
            parts.append(torch.arange(text).view(1, -1).expand(3, -1) + first)
            t_index = torch.arange(t).view(-1, 1).expand(-1, h * w).flatten()
            h_index = torch.arange(h).view(1, -1, 1).expand(t, -1, w).flatten()
            w_index = torch.arange(w).view(1, 1, -1).expand(t, h, -1).flatten()
            parts.append(torch.stack([t_index, h_index, w_index]) + text + first)
            st = ed + t * h * w
        parts.append(torch.arange(len(tokens) - st).view(1, -1).expand(3, -1) + parts[-1].max() + 1)
        places[:, i, mask[i] == 1] = torch.cat(parts, dim=1).to(places.device)
    return places


def places_by_rows(ids, mask, grids):
    places = torch.ones(3, *ids.shape, dtype=ids.dtype, device=ids.device)
    ids_np, mask_np, grids_np = ids.cpu().numpy(), mask.cpu().numpy().astype(bool), grids.cpu().numpy()
    frame = 0
    for i in range(len(ids_np)):
        row = ids_np[i][mask_np[i]]
        starts = np.flatnonzero(row[:-1] == START)
        starts = starts[row[starts + 1] == PIXEL]
        out, st, last = np.empty((3, len(row)), np.int64), 0, -1
        for ed in (starts + 1).tolist():
            t, h, w = grids_np[frame, 0], grids_np[frame, 1] // 2, grids_np[frame, 2] // 2
            frame += 1
            base = ed - st + last + 1
            out[:, st:ed] = np.arange(last + 1, base)
            st = ed + t * h * w
            out[0, ed:st] = np.repeat(np.arange(t), h * w) + base
            out[1, ed:st] = np.tile(np.repeat(np.arange(h), w), t) + base
            out[2, ed:st] = np.tile(np.arange(w), t * h) + base
            last = base + max(t, h, w) - 1
        out[:, st:] = np.arange(last + 1, last + 1 + len(row) - st)
        places[:, i, mask[i] == 1] = torch.from_numpy(out).to(places.device)
    return places


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(VOCAB + 2, DIM), nn.Linear(DIM, VOCAB + 2, bias=False)
        self.axes = nn.ModuleList([nn.Embedding(4096, DIM) for _ in range(3)])
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.register_buffer("later", nn.Transformer.generate_square_subsequent_mask(4096), persistent=False)

    def forward(self, ids, mask, grids):
        places = (places_by_spans if VARIANT == "a" else places_by_rows)(ids, mask, grids)
        x = self.words(ids)
        for axis, place in zip(self.axes, places):
            x = x + axis(place)
        return self.head(self.layers(x, mask=self.later[: ids.shape[1], : ids.shape[1]], is_causal=True))


torch.manual_seed(0)
rng = np.random.default_rng(0)
model = Projector().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
films = [film_batch(rng) for _ in range(8)]

warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    ids, mask, grids = films[step % len(films)]
    with torch.autocast(device, dtype=torch.bfloat16):
        scores = model(ids, mask, grids)[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(scores, ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.3f} ms per step")
