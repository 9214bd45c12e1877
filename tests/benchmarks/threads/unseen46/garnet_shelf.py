"""Formation energy of crystals from their Wyckoff positions, with a transformer over the set."""

import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 12000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

MATERIALS = 300 if SMALL else 24_000
BATCH = 16 if SMALL else 768
ELEMENTS, ELEMENT_FEATURES, POSITION_FEATURES, MOST = 89, 112, 144, 12
WIDTH, HEADS, LAYERS = (32, 4, 1) if SMALL else (128, 4, 3)


class MaterialsTable:
    """Compositions, Wyckoff letters and targets as a data frame would hold them."""

    def __init__(self, materials, seed):
        rng = np.random.default_rng(seed)
        counts = rng.integers(2, MOST + 1, materials)
        self.elements = [rng.integers(0, ELEMENTS, n) for n in counts]
        self.letters = [rng.integers(0, 26, n) for n in counts]
        self.multiplicities = [rng.integers(1, 9, n).astype(np.float32) for n in counts]
        energies = rng.normal(size=ELEMENTS)
        self.targets = np.array(
            [
                float((energies[element] * weight).sum() / weight.sum())
                for element, weight in zip(self.elements, self.multiplicities)
            ],
            dtype=np.float32,
        )
        self.element_features = rng.normal(size=(ELEMENTS, ELEMENT_FEATURES)).astype(np.float32)
        self.position_features = rng.normal(size=(26, POSITION_FEATURES)).astype(np.float32)

    def __len__(self):
        return len(self.targets)

    def wyckoff_features(self, row):
        """One line per Wyckoff position: multiplicity, element and site."""
        weight = self.multiplicities[row]
        return np.concatenate(
            [
                (weight / weight.sum())[:, None],
                self.element_features[self.elements[row]],
                self.position_features[self.letters[row]],
            ],
            axis=1,
        )


class WyckoffData(Dataset):
    """A material: its positions as a tensor, and its target."""

    def __init__(self, table):
        self.table = table
        self.features = [torch.from_numpy(table.wyckoff_features(row)) for row in range(len(table))]

    def __len__(self):
        return len(self.table)

    def __getitem__(self, row):
        return self.features[row], torch.tensor([self.table.targets[row]]), row


def collate_batch(samples):
    """Pads the sets of a batch; the mask is true where there is nothing."""
    features, targets, rows = zip(*samples)
    lengths = torch.tensor([len(feature) for feature in features])
    padded = pad_sequence(features, batch_first=True)
    mask = torch.arange(padded.size(1)) >= lengths.unsqueeze(1)
    return padded, mask, torch.stack(targets), list(rows)


class EpochOrder(Sampler):
    """A new order in each epoch, the same for whoever asks for it."""

    def __init__(self, size, seed):
        self.size, self.generator = size, torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(torch.randperm(self.size, generator=self.generator).tolist())


class TensorBatches:
    """All materials as tensors on the device; a batch is taken by its rows."""

    def __init__(self, data, batch_size, sampler):
        everything = collate_batch([data[row] for row in range(len(data))])
        self.features, self.mask, self.targets = (part.to(device) for part in everything[:3])
        self.batch_size, self.sampler = batch_size, sampler

    def __iter__(self):
        order = torch.tensor(list(self.sampler))
        on_device = order.to(device)
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            rows = on_device[start : start + self.batch_size]
            yield (
                self.features.index_select(0, rows),
                self.mask.index_select(0, rows),
                self.targets.index_select(0, rows),
                order[start : start + self.batch_size].tolist(),
            )


def make_loader(data, sampler):
    if VARIANT == "a":
        return DataLoader(data, BATCH, sampler=sampler, collate_fn=collate_batch, drop_last=True)
    return TensorBatches(data, BATCH, sampler)


class WyckoffTransformer(nn.Module):
    """Projection, transformer over the positions, pooled by mean and maximum."""

    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(1 + ELEMENT_FEATURES + POSITION_FEATURES, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.trunk = nn.Sequential(nn.Linear(2 * WIDTH, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        self.output = nn.Linear(128, 2)

    def forward(self, features, mask):
        x = self.encoder(self.projection(features), src_key_padding_mask=mask)
        absent = mask.unsqueeze(-1)
        mean = x.masked_fill(absent, 0.0).sum(1) / (~absent).sum(1)
        largest = x.masked_fill(absent, -1e9).max(1).values
        return self.output(self.trunk(torch.cat([mean, largest], 1))).chunk(2, -1)


def robust_loss(prediction, log_std, target):
    """L1 loss weighed with the uncertainty that the model states."""
    return (2**0.5 * (prediction - target).abs() * torch.exp(-log_std) + log_std).mean()


class Normalizer:
    """Mean and deviation of the targets."""

    def __init__(self, targets):
        self.mean, self.std = float(targets.mean()), float(targets.std())

    def norm(self, values):
        return (values - self.mean) / self.std


@torch.no_grad()
def evaluate(model, batches, normalizer):
    """Mean absolute error, in units of the deviation."""
    model.eval()
    errors = []
    for features, mask, targets, _ in batches:
        prediction, _ = model(features.to(device), mask.to(device))
        errors.append((prediction - normalizer.norm(targets.to(device))).abs().mean())
    model.train()
    return torch.stack(errors).mean().item()


def epochs(loader):
    """Batches of epoch after epoch."""
    while True:
        yield from loader


def main():
    table = MaterialsTable(MATERIALS, 0)
    normalizer = Normalizer(table.targets)
    data = WyckoffData(table)
    loader = make_loader(data, EpochOrder(len(data), 1))
    held_out = WyckoffData(MaterialsTable(BATCH * 2, 5))
    test_loader = make_loader(held_out, EpochOrder(len(held_out), 2))
    model = WyckoffTransformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-6)
    seen = set()
    source = epochs(loader)
    model.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        features, mask, targets, rows = next(source)
        features, mask, targets = features.to(device), mask.to(device), targets.to(device)
        prediction, log_std = model(features, mask)
        loss = robust_loss(prediction, log_std, normalizer.norm(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.update(rows)
        last = F.l1_loss(prediction.detach(), normalizer.norm(targets))
        if (step + 1) % 200 == 0:
            print(f"step {step + 1} MAE {last.item():.4f} materials {len(seen)}", flush=True)
        if (step + 1) % 1000 == 0:
            print(f"test MAE {evaluate(model, test_loader, normalizer):.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
