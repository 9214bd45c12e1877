"""One-step weather forecasts on a limited area with a graph-like encoder, processor and decoder."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

ROWS, COLUMNS, TIMES = (16, 16, 30) if SMALL else (268, 238, 160)
GRID = ROWS * COLUMNS
STATE, FORCING, WINDOW, STATIC = 17, 5, 3, 4
BATCH, AR_STEPS, WORKERS, HIDDEN = 2, 1, 2, 64


class Datastore:
    """Holds the fields of an analysis archive with the statistics of each feature."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        scale = rng.uniform(0.5, 20.0, STATE).astype(np.float32)
        offset = rng.uniform(-50.0, 250.0, STATE).astype(np.float32)
        base = rng.standard_normal((8, GRID, STATE), dtype=np.float32)
        self.state = np.empty((TIMES, GRID, STATE), dtype=np.float32)
        for t in range(TIMES):
            drift = 0.3 * np.sin(0.2 * t + np.arange(STATE)).astype(np.float32)
            self.state[t] = (base[t % 8] + drift) * scale + offset
        self.forcing = np.tile(
            rng.standard_normal((10, GRID, FORCING), dtype=np.float32), (TIMES // 10, 1, 1)
        )
        self.static = torch.from_numpy(rng.standard_normal((GRID, STATIC), dtype=np.float32))
        self.stats = {
            "state_mean": torch.from_numpy(offset),
            "state_std": torch.from_numpy(scale),
            "forcing_mean": torch.zeros(FORCING * WINDOW),
            "forcing_std": torch.ones(FORCING * WINDOW),
        }


class WeatherDataset(Dataset):
    """Samples of two initial states, the target states and windows of the forcing."""

    def __init__(self, datastore, standardize):
        self.store = datastore
        self.standardize = standardize

    def __len__(self):
        return TIMES - 2 - AR_STEPS - 1

    def _window(self, start):
        parts = [self.store.forcing[start + 1 + k : start + 1 + k + AR_STEPS] for k in range(WINDOW)]
        return torch.from_numpy(np.concatenate(parts, axis=-1))

    def __getitem__(self, index):
        state = torch.tensor(self.store.state[index : index + 2 + AR_STEPS], dtype=torch.float32)
        forcing = self._window(index)
        if self.standardize:
            stats = self.store.stats
            state = (state - stats["state_mean"]) / stats["state_std"]
            forcing = (forcing - stats["forcing_mean"]) / stats["forcing_std"]
        return state[:2], state[2:], forcing, index


class Normalizer(nn.Module):
    """Means and deviations of the features, kept with the model."""

    def __init__(self, stats):
        super().__init__()
        for name, value in stats.items():
            self.register_buffer(name, value.clone())

    def forward(self, init, target, forcing):
        init = (init - self.state_mean) / self.state_std
        target = (target - self.state_mean) / self.state_std
        return init, target, (forcing - self.forcing_mean) / self.forcing_std


def mlp(width_in, width_out, norm=True):
    """Two layers, as everywhere in the model."""
    layers = [nn.Linear(width_in, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, width_out)]
    return nn.Sequential(*layers, nn.LayerNorm(width_out)) if norm else nn.Sequential(*layers)


class LimitedAreaModel(nn.Module):
    """Grid to a coarse mesh, some rounds on the mesh, and back to the grid."""

    def __init__(self, static, rounds=4):
        super().__init__()
        self.register_buffer("static", static)
        self.embed = mlp(2 * STATE + FORCING * WINDOW + STATIC, HIDDEN)
        self.to_mesh = nn.Conv2d(HIDDEN, HIDDEN, 4, 4)
        self.rounds = nn.ModuleList([nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1) for _ in range(rounds)])
        self.from_mesh = nn.ConvTranspose2d(HIDDEN, HIDDEN, 4, 4)
        self.decode = mlp(2 * HIDDEN, STATE, norm=False)

    def step(self, before, now, forcing):
        static = self.static.expand(now.shape[0], -1, -1)
        x = self.embed(torch.cat([before, now, forcing, static], dim=-1))
        plane = x.transpose(1, 2).reshape(-1, HIDDEN, ROWS, COLUMNS)
        mesh = self.to_mesh(plane)
        for conv in self.rounds:
            mesh = mesh + torch.nn.functional.silu(conv(mesh))
        back = nn.functional.pad(self.from_mesh(mesh), (0, COLUMNS % 4, 0, ROWS % 4))
        back = back.flatten(2).transpose(1, 2)
        return now + self.decode(torch.cat([x, back], dim=-1))

    def forward(self, init, forcing):
        before, now, outputs = init[:, 0], init[:, 1], []
        for k in range(forcing.shape[1]):
            before, now = now, self.step(before, now, forcing[:, k])
            outputs.append(now)
        return torch.stack(outputs, dim=1)


def endless(loader):
    """One epoch after the other."""
    while True:
        yield from loader


def make_loader(dataset, batch, workers):
    """Shuffled loader with its own generator, workers kept alive."""
    return DataLoader(
        dataset,
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=device == "cuda",
        generator=torch.Generator().manual_seed(4),
    )


def main():
    torch.manual_seed(0)
    store = Datastore(1)
    dataset = WeatherDataset(store, standardize=VARIANT == "a")
    batches = endless(make_loader(dataset, BATCH, WORKERS))
    normalize = Normalizer(store.stats).to(device)
    model = LimitedAreaModel(store.static).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=device == "cuda")
    warm = min(10, STEPS // 2)
    start, last, running = time.perf_counter(), None, 0.0
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        init, target, forcing, _ = next(batches)
        init, target, forcing = (t.to(device, non_blocking=True) for t in (init, target, forcing))
        if VARIANT != "a":
            init, target, forcing = normalize(init, target, forcing)
        with torch.autocast(device, dtype=torch.bfloat16):
            prediction = model(init, forcing)
        last = nn.functional.mse_loss(prediction.float(), target)
        optimizer.zero_grad(set_to_none=True)
        last.backward()
        optimizer.step()
        running = running + last.detach()
        if step % 100 == 99:
            print(f"step {step + 1} mean loss {(running / 100).item():.4f}")
            running = 0.0
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
