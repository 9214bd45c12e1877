"""Trains a wide dictionary of atoms, of which each birdsong embedding uses only a few."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 800))
BATCH = int(os.environ.get("BATCH", 4096))
DIM = int(os.environ.get("DIM", 2048))
ATOMS = int(os.environ.get("ATOMS", 65536))
KEEP = int(os.environ.get("KEEP", 32))


class AtomDictionary(nn.Module):
    """Encodes into many atoms, keeps the strongest, and sums them up again."""

    def __init__(self, dim, atoms, keep, device):
        super().__init__()
        self.keep = keep
        start = F.normalize(torch.randn(atoms, dim, device=device), dim=-1)
        self.encoder = nn.Parameter(start.clone())
        self.offset = nn.Parameter(torch.zeros(atoms, device=device))
        self.atoms = nn.Parameter(start)
        self.middle = nn.Parameter(torch.zeros(dim, device=device))

    def encode(self, x):
        strength = F.linear(x - self.middle, self.encoder, self.offset)
        values, which = strength.topk(self.keep, dim=-1, sorted=False)
        return F.relu(values), which

    def spread(self, values, which):
        return values.new_zeros(len(values), len(self.atoms)).scatter(1, which, values)

    def decode(self, values, which):
        if VARIANT == "a":
            return self.spread(values, which) @ self.atoms + self.middle
        return F.embedding_bag(which, self.atoms, per_sample_weights=values, mode="sum") + self.middle

    def forward(self, x):
        values, which = self.encode(x)
        return self.decode(values, which), values


class SongEmbeddings:
    """Embeddings made of a few hidden directions each, held on the device."""

    def __init__(self, device, rows):
        generator = torch.Generator(device=device).manual_seed(23)
        hidden = F.normalize(torch.randn(1024, DIM, device=device, generator=generator), dim=-1)
        mix = torch.rand(rows, 1024, device=device, generator=generator)
        mix = mix * (mix > 0.98)
        self.rows = mix @ hidden * 4 + 0.02 * torch.randn(rows, DIM, device=device, generator=generator)

    def batch(self, step):
        first = step * BATCH % (len(self.rows) - BATCH + 1)
        return self.rows[first : first + BATCH]


def learning_rate(step):
    return 2e-4 * min(1.0, (step + 1) / 20)


def main():
    torch.manual_seed(23)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    songs = SongEmbeddings(device, 8 * BATCH)
    model = AtomDictionary(DIM, ATOMS, KEEP, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, fused=device.type == "cuda")
    scale = songs.rows.var(dim=0).sum()

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            sync()
            start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        x = songs.batch(step)
        rebuilt, values = model(x)
        loss = (rebuilt - x).square().sum(-1).mean() / scale + 1e-4 * values.mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
