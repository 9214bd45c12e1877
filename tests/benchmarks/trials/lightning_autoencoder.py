"""Lightning module, convolutional autoencoder, a loader of ready tensors with large batches.

Meant to be healthy: compute-bound (convolutions). Yet without a GPU some runs are not: glibc gives the
top of the heap back after every step and faults it in again. Measured over seven pairs of runs: 23 to 25
or 51 to 63 ms per step as it is (350 000 or 800 000 page faults), 20 to 36 with MALLOC_MMAP_MAX_=0 and a
high MALLOC_TRIM_THRESHOLD_ (120 000). Which of the two a run becomes, it does not say: both are right.
"""

import time

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TRUTH = "compute-bound"
ACCEPT = ("allocator-thrashing",)


class Batches(Dataset):
    """Hands out whole batches."""

    def __init__(self):
        self.batch = torch.rand(16, 3, 48, 48)

    def __len__(self):
        return 100

    def __getitem__(self, i):
        return self.batch


class AutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(64, 32, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 3, 2, stride=2),
            nn.Sigmoid(),
        )
        self.stamps = []

    def training_step(self, batch, batch_idx):
        self.stamps.append(time.perf_counter())
        loss = nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.seed_everything(0)
    model = AutoEncoder()
    trainer = L.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="auto",
    )  # fmt: skip
    trainer.fit(model, DataLoader(Batches(), batch_size=None))
    s = model.stamps
    print(f"step_ms={(s[-1] - s[20]) * 1000 / (len(s) - 21):.3f}")
