"""Predict many figures of a company's ledger at once, with the Trainer of Lightning."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics
from torch.utils.data import DataLoader, Dataset

try:
    import lightning as L
except ImportError:
    import pytorch_lightning as L

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 8 if SMALL else 6500))
WARMUP = 3 if SMALL else 30

FIELDS = 32 if SMALL else 1024
WIDTH = 64 if SMALL else 3072
LAYERS = 2 if SMALL else 10
BATCH = 16 if SMALL else 4096
TARGETS = 4 if SMALL else 24
BATCHES = 4 if SMALL else 32


class Ledgers(Dataset):
    """Whole batches, made once and kept in pinned memory."""

    def __init__(self):
        g = torch.Generator().manual_seed(11)
        self.x = torch.randn(BATCHES, BATCH, FIELDS, generator=g)
        mix = torch.randn(FIELDS, TARGETS, generator=g) / FIELDS**0.5
        self.y = torch.sin(self.x @ mix)
        if torch.cuda.is_available():
            self.x, self.y = self.x.pin_memory(), self.y.pin_memory()

    def __len__(self):
        return STEPS

    def __getitem__(self, i):
        return self.x[i % BATCHES], self.y[i % BATCHES]


class LedgerModel(L.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(FIELDS, WIDTH), nn.GELU()]
        for _ in range(LAYERS - 1):
            layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, TARGETS)
        if VARIANT == "a":
            self.errors = nn.ModuleList(torchmetrics.MeanSquaredError() for _ in range(TARGETS))
        else:
            self.error = torchmetrics.MeanSquaredError(num_outputs=TARGETS)
        self.begin = self.took = 0.0
        self.last = None

    def per_target(self, pred, y):
        loss = 0.0
        for i, metric in enumerate(self.errors):
            part = F.mse_loss(pred[:, i], y[:, i])
            metric(pred[:, i].detach(), y[:, i])
            self.log(f"loss_{i}", part, on_step=True, on_epoch=False)
            self.log(f"error_{i}", metric, on_step=False, on_epoch=True)
            loss = loss + part
        return loss

    def together(self, pred, y):
        parts = F.mse_loss(pred, y, reduction="none").mean(0)
        self.error.update(pred.detach(), y)
        return parts.sum()

    def training_step(self, batch, index):
        x, y = batch
        pred = self.head(self.body(x)).float()
        loss = self.per_target(pred, y) if VARIANT == "a" else self.together(pred, y)
        self.log("loss", loss, on_step=True, on_epoch=False)
        self.last = loss.detach()
        return loss

    def now(self):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    def on_train_batch_start(self, batch, index):
        if index == WARMUP:
            self.begin = self.now()

    def on_train_batch_end(self, outputs, batch, index):
        if index == STEPS - 1:
            self.took = self.now() - self.begin

    def on_train_epoch_end(self):
        if VARIANT != "a":
            for i, error in enumerate(self.error.compute()):
                self.log(f"error_{i}", error)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4, fused=torch.cuda.is_available())


def main():
    L.seed_everything(0)
    torch.set_float32_matmul_precision("high")
    model = LedgerModel()
    loader = DataLoader(Ledgers(), batch_size=None)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        max_epochs=1,
        precision="bf16-mixed" if torch.cuda.is_available() else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    print(f"loss {model.last.item():.4f}")
    print(f"{model.took * 1000 / (STEPS - WARMUP):.2f} ms per step")


if __name__ == "__main__":
    main()
