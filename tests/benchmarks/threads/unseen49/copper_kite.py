"""Train a variational autoencoder whose latent space has a part shared by all images of a group."""

from __future__ import annotations

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
CLASSES = 10


class PairedShapes(Dataset):
    """Grey images of ten shapes in many styles: of many sizes, places and shades."""

    def __init__(self, count: int, seed: int, size: int = 28):
        rng = np.random.default_rng(seed)
        rows, cols = np.mgrid[0:size, 0:size].astype(np.float32) / size - 0.5
        self.labels = rng.integers(CLASSES, size=count)
        self.images = np.zeros((count, 1, size, size), dtype=np.float32)
        for i, label in enumerate(self.labels):
            shift = rng.uniform(-0.12, 0.12, size=2)
            radius, shade = rng.uniform(0.15, 0.32), rng.uniform(0.6, 1.0)
            angle = np.arctan2(rows - shift[0], cols - shift[1])
            edge = radius * (1 + 0.35 * np.cos((label % 5 + 1) * angle + (label // 5) * np.pi / 3))
            self.images[i, 0] = shade * (np.hypot(rows - shift[0], cols - shift[1]) < edge)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return torch.from_numpy(self.images[index]), int(self.labels[index])


class Encoder(nn.Module):
    """Convolutions with four heads: mean and log variance of style and of class."""

    def __init__(self, style_dim: int, class_dim: int, width: int = 24):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * width * 49, 256),
            nn.ReLU(),
        )
        self.style_mu, self.style_logvar = nn.Linear(256, style_dim), nn.Linear(256, style_dim)
        self.class_mu, self.class_logvar = nn.Linear(256, class_dim), nn.Linear(256, class_dim)

    def forward(self, image: torch.Tensor):
        h = self.features(image)
        return self.style_mu(h), self.style_logvar(h), self.class_mu(h), self.class_logvar(h)


class Decoder(nn.Module):
    """From both parts of the latent space back to an image."""

    def __init__(self, style_dim: int, class_dim: int, width: int = 24):
        super().__init__()
        self.width = width
        self.spread = nn.Sequential(nn.Linear(style_dim + class_dim, 2 * width * 49), nn.ReLU())
        self.paint = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 1, 4, 2, 1)
        )

    def forward(self, style: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
        h = self.spread(torch.cat([style, content], 1))
        return self.paint(h.view(-1, 2 * self.width, 7, 7))


def accumulate_group_evidence(class_mu, class_logvar, labels_batch):
    """Multiplies the class densities of each group; returns mean and log variance for every image."""
    var_dict, mu_dict = {}, {}
    class_var = class_logvar.exp()
    for i in range(len(labels_batch)):
        group_label = labels_batch[i].item()
        for j in range(len(class_var[i])):
            if class_var[i][j] == 0:
                class_var[i][j] = 1e-6
        if group_label in var_dict:
            var_dict[group_label] = var_dict[group_label] + 1 / class_var[i]
        else:
            var_dict[group_label] = 1 / class_var[i]
    for group_label in var_dict:
        var_dict[group_label] = 1 / var_dict[group_label]
    for i in range(len(labels_batch)):
        group_label = labels_batch[i].item()
        if group_label in mu_dict:
            mu_dict[group_label] = mu_dict[group_label] + class_mu[i] * (1 / class_var[i])
        else:
            mu_dict[group_label] = class_mu[i] * (1 / class_var[i])
    for group_label in mu_dict:
        mu_dict[group_label] = mu_dict[group_label] * var_dict[group_label]
    group_mu = torch.empty_like(class_mu)
    group_var = torch.empty_like(class_var)
    for i in range(len(labels_batch)):
        group_label = labels_batch[i].item()
        group_mu[i] = mu_dict[group_label]
        group_var[i] = var_dict[group_label]
    return group_mu, group_var.log()


def gather_group_evidence(class_mu, class_logvar, labels_batch):
    """The same as `accumulate_group_evidence`."""
    class_var = class_logvar.exp()
    class_var = torch.where(class_var == 0, torch.full_like(class_var, 1e-6), class_var)
    precision = torch.zeros(CLASSES, class_mu.shape[1]).index_add(0, labels_batch, 1 / class_var)
    weighted = torch.zeros(CLASSES, class_mu.shape[1]).index_add(0, labels_batch, class_mu / class_var)
    group_var = 1 / precision[labels_batch]
    return weighted[labels_batch] * group_var, group_var.log()


def reparameterize(mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    return mu + torch.randn_like(mu) * (0.5 * logvar).exp()


def group_wise_reparameterize(mu, logvar, labels_batch):
    """One draw for each group, shared by its images."""
    return mu + torch.randn(CLASSES, mu.shape[1])[labels_batch] * (0.5 * logvar).exp()


def kl_divergence(mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    return -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum()


class MultiLevelVAE(nn.Module):
    """Encoder, evidence of the groups, and decoder."""

    def __init__(self, style_dim: int = 8, class_dim: int = 8):
        super().__init__()
        self.encoder = Encoder(style_dim, class_dim)
        self.decoder = Decoder(style_dim, class_dim)
        self.evidence = accumulate_group_evidence if VARIANT == "a" else gather_group_evidence

    def losses(self, image: torch.Tensor, labels: torch.Tensor) -> dict:
        style_mu, style_logvar, class_mu, class_logvar = self.encoder(image)
        group_mu, group_logvar = self.evidence(class_mu, class_logvar, labels)
        style = reparameterize(style_mu, style_logvar)
        content = group_wise_reparameterize(group_mu, group_logvar, labels)
        picture = self.decoder(style, content)
        n = len(image)
        return {
            "recon": F.binary_cross_entropy_with_logits(picture, image, reduction="sum") / n,
            "style_kl": kl_divergence(style_mu, style_logvar) / n,
            "class_kl": kl_divergence(group_mu, group_logvar) / n,
        }

    @torch.no_grad()
    def swap(self, image: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """The first images in the shape of the others."""
        return self.decoder(self.encoder(image)[0], self.encoder(other)[2]).sigmoid()


@torch.no_grad()
def evaluate(model: MultiLevelVAE, loader: DataLoader) -> dict:
    """Loss of held-out images, each a group by itself, and the ink of swapped ones."""
    model.eval()
    recon, ink, count = 0.0, 0.0, 0
    for image, _ in loader:
        style_mu, _, class_mu, _ = model.encoder(image)
        scores = model.decoder(style_mu, class_mu)
        recon += F.binary_cross_entropy_with_logits(scores, image, reduction="sum").item()
        ink += model.swap(image, image.roll(1, 0)).mean().item() * len(image)
        count += len(image)
    model.train()
    return {"recon": recon / count, "ink": ink / count}


def main() -> None:
    torch.manual_seed(0)
    loader = DataLoader(PairedShapes(3200, seed=1), batch_size=64, shuffle=True, drop_last=True)
    held_out = DataLoader(PairedShapes(256, seed=2), batch_size=128)
    model = MultiLevelVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.999))
    warm, step, epoch = min(10, STEPS // 2), 0, 0
    while step < STEPS:
        for image, labels in loader:
            if step == warm:
                start = time.perf_counter()
            parts = model.losses(image, labels)
            loss = parts["recon"] + min(1.0, (step + 1) / 500) * (parts["style_kl"] + parts["class_kl"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == STEPS:
                break
        epoch += 1
        if epoch % 5 == 0:
            print(f"epoch {epoch} " + " ".join(f"{k} {v:.3f}" for k, v in evaluate(model, held_out).items()))
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
