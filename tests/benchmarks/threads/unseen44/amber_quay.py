"""Solar power of the next hours from weather forecasts, satellite pictures and the recent past."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2200))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

CHANNELS, NWP_STEPS, NWP_SIDE, PATCH = 13, 8, 24, 4
SAT_CHANNELS, SAT_STEPS, SAT_SIDE = 6, 6, 24
WIDTH = 32 if SMALL else 512
LAYERS = 1 if SMALL else 6
HEADS = 2 if SMALL else 8
BATCH = 4 if SMALL else 64
SITES = 8 if SMALL else 300
HISTORY, HORIZON = 8, 16
QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
LOG_EVERY = 50
EVAL_EVERY = 400

if VARIANT != "a":
    torch.set_float32_matmul_precision("high")


class Block(nn.Module):
    """Attention among all patches of all forecast steps, then a layer for each of them."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_first, self.norm_second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint = nn.Linear(width, 3 * width)
        self.back = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.joint(self.norm_first(x)).view(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)
        x = x + self.back(h)
        return x + self.narrow(F.gelu(self.widen(self.norm_second(x))))


class ForecastEncoder(nn.Module):
    """Patches of the numerical weather prediction, as tokens."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(CHANNELS * PATCH * PATCH, WIDTH)
        count = NWP_STEPS * (NWP_SIDE // PATCH) ** 2
        self.places = nn.Parameter(0.02 * torch.randn(count, WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, nwp):
        n, side = len(nwp), NWP_SIDE // PATCH
        x = nwp.view(n, NWP_STEPS, CHANNELS, side, PATCH, side, PATCH)
        x = x.permute(0, 1, 3, 5, 2, 4, 6).reshape(n, NWP_STEPS * side * side, -1)
        x = self.patches(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.norm(x).mean(dim=1)


class SatelliteEncoder(nn.Module):
    """Three-dimensional convolutions over the last pictures."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(SAT_CHANNELS, 32, 3, padding=1),
            nn.LeakyReLU(),
            nn.Conv3d(32, 32, 3, stride=2, padding=1),
            nn.LeakyReLU(),
            nn.Conv3d(32, 32, 3, stride=2, padding=1),
            nn.LeakyReLU(),
            nn.Flatten(1),
        )
        flat = 32 * ((SAT_STEPS + 3) // 4) * (SAT_SIDE // 4) ** 2
        self.out = nn.Linear(flat, WIDTH)

    def forward(self, satellite):
        return self.out(self.layers(satellite.transpose(1, 2)))


class ResidualFC(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.second(F.elu(self.first(F.elu(x))))


class LateFusion(nn.Module):
    """Joins the sources and gives the quantiles of each half hour."""

    def __init__(self):
        super().__init__()
        self.nwp, self.satellite = ForecastEncoder(), SatelliteEncoder()
        self.site = nn.Embedding(SITES, 32)
        self.enter = nn.Linear(2 * WIDTH + HISTORY + 2 * (HISTORY + HORIZON) + 32, 2 * WIDTH)
        self.fusion = nn.Sequential(*[ResidualFC(2 * WIDTH) for _ in range(3)])
        self.leave = nn.Linear(2 * WIDTH, HORIZON * len(QUANTILES))

    def forward(self, batch):
        joined = torch.cat(
            [
                self.nwp(batch["nwp"]),
                self.satellite(batch["satellite"]),
                batch["history"],
                batch["sun"],
                self.site(batch["site"]),
            ],
            dim=1,
        )
        out = self.leave(self.fusion(self.enter(joined)))
        return F.leaky_relu(out.view(len(out), HORIZON, len(QUANTILES)), 0.01)


class QuantileLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("levels", torch.tensor(QUANTILES))

    def forward(self, predicted, actual):
        error = actual[..., None] - predicted
        return torch.maximum(self.levels * error, (self.levels - 1) * error).mean()


class Archive:
    """A year in small: fields, pictures and yields kept on the host, cut into batches."""

    def __init__(self, batches, seed):
        gen = torch.Generator().manual_seed(seed)
        n = batches * BATCH
        self.fields = {
            "nwp": torch.randn(n, NWP_STEPS, CHANNELS, NWP_SIDE, NWP_SIDE, generator=gen),
            "satellite": torch.rand(n, SAT_STEPS, SAT_CHANNELS, SAT_SIDE, SAT_SIDE, generator=gen),
            "history": torch.rand(n, HISTORY, generator=gen),
            "sun": torch.rand(n, 2 * (HISTORY + HORIZON), generator=gen),
            "site": torch.randint(SITES, (n,), generator=gen),
        }
        cloud = self.fields["nwp"][:, :, 0].mean(dim=(2, 3)).repeat_interleave(HORIZON // NWP_STEPS, dim=1)
        self.fields["target"] = (self.fields["sun"][:, :HORIZON] - 3 * cloud).clamp(0, 1)
        if device == "cuda":
            self.fields = {key: value.pin_memory() for key, value in self.fields.items()}
        self.batches = batches

    def batch(self, step):
        rows = slice((step % self.batches) * BATCH, (step % self.batches + 1) * BATCH)
        return {key: value[rows].to(device, non_blocking=True) for key, value in self.fields.items()}


@torch.no_grad()
def evaluate(model, archive):
    """Mean absolute error of the median."""
    model.eval()
    batch = archive.batch(0)
    median = model(batch)[..., QUANTILES.index(0.5)]
    model.train()
    return (median - batch["target"]).abs().mean().item()


def main():
    torch.manual_seed(0)
    train, valid = Archive(2 if SMALL else 16, 0), Archive(1, 1)
    model, criterion = LateFusion().to(device), QuantileLoss().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.02, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 200))
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        batch = train.batch(step)
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(batch), batch["target"])
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1} quantile loss {loss.item():.5f} lr {schedule.get_last_lr()[0]:.2e}")
        if (step + 1) % EVAL_EVERY == 0:
            print(f"step {step + 1} error {evaluate(model, valid):.4f}")
        last = loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
