"""Names of villages and persons in parish registers, found by an encoder of word pieces."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 320))
BATCH = int(os.environ.get("BATCH", 8))
LENGTH = int(os.environ.get("LENGTH", 48))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 24))
PIECES, KINDS = 12000, 9
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.pieces, self.place = nn.Embedding(PIECES, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            max(1, WIDTH // 64),
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)

    def forward(self, pieces):
        return self.layers(self.pieces(pieces) + self.place.weight)


class NameFinder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.classifier = nn.Linear(WIDTH, KINDS)

    def words(self, encoded, starts):
        """The states of the pieces that begin a word, moved to the front of their sentence."""
        found = torch.zeros_like(encoded)
        for i in range(len(encoded)):
            if VARIANT == "b":
                mask = starts[i] == 1
                found[i, : mask.sum()] = encoded[i][mask]
                continue
            at = -1
            for j in range(encoded.shape[1]):
                if starts[i][j].item() == 1:
                    at += 1
                    found[i][at] = encoded[i][j]
        return found

    def forward(self, pieces, starts, kinds):
        scores = self.classifier(self.words(self.encoder(pieces), starts))
        return F.cross_entropy(scores.flatten(0, 1), kinds.flatten(), ignore_index=-1)


def registers(count):
    pieces = torch.randint(0, PIECES, (count, LENGTH))
    starts = (torch.rand(count, LENGTH) < 0.7).long()
    starts[:, 0] = 1
    kinds = torch.full((count, LENGTH), -1)
    for row in range(count):
        first = pieces[row][starts[row] == 1]
        kinds[row, : len(first)] = first % KINDS
    return pieces.to(device), starts.to(device), kinds.to(device)


def main():
    torch.manual_seed(13)
    model = NameFinder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=device.type == "cuda")
    pieces, starts, kinds = registers(32 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = slice(step % 32 * BATCH, (step % 32 + 1) * BATCH)
        loss = model(pieces[rows], starts[rows], kinds[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
