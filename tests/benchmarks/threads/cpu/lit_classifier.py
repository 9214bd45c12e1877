"""A classifier as a Lightning module."""

import logging
import os
import tempfile
import time
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 350))
EVERY, REFRESH = (1, 1) if VARIANT == "a" else (50, 20)

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        loss = nn.functional.cross_entropy(scores, y)
        with torch.no_grad():
            self.log("loss", loss, prog_bar=True)
            self.log("accuracy", (scores.argmax(1) == y).float().mean(), prog_bar=True)
            self.log(
                "entropy", torch.distributions.Categorical(logits=scores).entropy().mean(), prog_bar=True
            )
            self.log("top3", (scores.topk(3, 1).indices == y[:, None]).any(1).float().mean(), prog_bar=True)
            self.log("scores_mean", scores.mean(), prog_bar=True)
            self.log("scores_std", scores.std(), prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Clock(L.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 20:
            self.start = time.perf_counter()

    def on_train_end(self, trainer, *_):
        seconds = time.perf_counter() - self.start
        print(f"\n{1000 * seconds / (trainer.global_step - 20):.2f} ms per step")


def main():
    L.seed_everything(0, verbose=False)
    data = TensorDataset(torch.randn(64 * STEPS, 64), torch.randint(0, 10, (64 * STEPS,)))
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu", max_steps=STEPS, log_every_n_steps=EVERY, logger=CSVLogger(folder),
            callbacks=[TQDMProgressBar(refresh_rate=REFRESH), Clock()], enable_checkpointing=False,
            enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Classifier(), DataLoader(data, batch_size=64, shuffle=True))


if __name__ == "__main__":
    main()
