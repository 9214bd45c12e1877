"""Train a small generative adversarial network on made-up digits, with optimizers stepped by hand."""

from __future__ import annotations

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))


def draw_digits(count: int, size: int = 28, seed: int = 7) -> torch.Tensor:
    """Thick strokes along random arcs, between -1 and 1."""
    rng = np.random.default_rng(seed)
    rows, cols = np.mgrid[0:size, 0:size].astype(np.float32)
    images = np.full((count, size, size), -1.0, dtype=np.float32)
    for image in images:
        row, col = rng.uniform(9, 19, size=2)
        radius = rng.uniform(4, 8)
        distance = np.abs(np.hypot(rows - row, (cols - col) * rng.uniform(0.8, 1.6)) - radius)
        angle = np.arctan2(rows - row, cols - col)
        inside = (distance < 1.6) & (angle > rng.uniform(-3.1, 0)) & (angle < rng.uniform(0.5, 3.2))
        image[inside] = 1.0 - 0.4 * distance[inside]
    return torch.from_numpy(images)[:, None]


class DigitModule:
    """Splits the images into those to learn from and those to look at."""

    def __init__(self, batch_size: int):
        self.batch_size = batch_size
        images = draw_digits(6400)
        dataset = TensorDataset(images, torch.zeros(len(images), dtype=torch.long))
        parts = random_split(dataset, [5888, 512], generator=torch.Generator().manual_seed(1))
        self.train_set, self.val_set = parts

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val_set, batch_size=self.batch_size)


class Generator(nn.Module):
    """From a point of the latent space to an image."""

    def __init__(self, latent_dim: int, shape: tuple):
        super().__init__()
        self.shape = shape

        def layer(inside: int, outside: int, normalize: bool = True) -> list:
            layers = [nn.Linear(inside, outside)]
            if normalize:
                layers.append(nn.BatchNorm1d(outside, 0.8))
            return [*layers, nn.LeakyReLU(0.2)]

        self.model = nn.Sequential(
            *layer(latent_dim, 128, normalize=False),
            *layer(128, 256),
            *layer(256, 512),
            *layer(512, 1024),
            nn.Linear(1024, int(np.prod(shape))),
            nn.Tanh(),
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.model(z).view(z.shape[0], *self.shape)


class Discriminator(nn.Module):
    """From an image to the score of its being real."""

    def __init__(self, shape: tuple):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(int(np.prod(shape)), 512),
            nn.LeakyReLU(0.2),
            nn.Linear(512, 256),
            nn.LeakyReLU(0.2),
            nn.Linear(256, 1),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.model(image.flatten(1))


class GAN(nn.Module):
    """Both networks and what is done with a batch."""

    def __init__(self, latent_dim: int = 100, lr: float = 2e-4, b1: float = 0.5, b2: float = 0.999):
        super().__init__()
        self.latent_dim = latent_dim
        self.generator = Generator(latent_dim, (1, 28, 28))
        self.discriminator = Discriminator((1, 28, 28))
        self.optimizer_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(b1, b2))
        self.optimizer_d = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=(b1, b2))
        self.register_buffer("validation_z", torch.randn(8, latent_dim))
        self.generated_imgs = None
        self.logged: dict[str, list] = {"g_loss": [], "d_loss": []}

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.generator(z)

    def adversarial_loss(self, score: torch.Tensor, target: float) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(score, torch.full_like(score, target))

    def toggle(self, active: nn.Module, resting: nn.Module) -> None:
        active.requires_grad_(True)
        resting.requires_grad_(False)

    def untoggle(self) -> None:
        self.generator.requires_grad_(True)
        self.discriminator.requires_grad_(True)

    def fakes(self, z: torch.Tensor) -> torch.Tensor:
        """Images of the generator for these points."""
        return self(z) if VARIANT == "a" else self.generated_imgs

    def training_step(self, imgs: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        z = torch.randn(imgs.shape[0], self.latent_dim)
        self.generated_imgs = self(z)
        if step % 100 == 0:
            self.log_images("train", self.generated_imgs[:6])

        self.toggle(self.discriminator, self.generator)
        real_loss = self.adversarial_loss(self.discriminator(imgs), 1.0)
        fake_loss = self.adversarial_loss(self.discriminator(self.fakes(z).detach()), 0.0)
        d_loss = (real_loss + fake_loss) / 2
        self.optimizer_d.zero_grad()
        d_loss.backward()
        self.optimizer_d.step()
        self.untoggle()

        self.toggle(self.generator, self.discriminator)
        g_loss = self.adversarial_loss(self.discriminator(self.fakes(z)), 1.0)
        self.optimizer_g.zero_grad()
        g_loss.backward()
        self.optimizer_g.step()
        self.untoggle()
        if step % 20 == 0:
            self.logged["g_loss"].append(g_loss.item())
            self.logged["d_loss"].append(d_loss.item())
        return g_loss.detach(), d_loss.detach()

    def log_images(self, where: str, images: torch.Tensor) -> None:
        """Keeps a grid of a few images in bytes."""
        grid = images.detach().clamp(-1, 1).add(1).mul(127.5).to(torch.uint8)
        self.last_grid = (where, np.concatenate(list(grid[:, 0].numpy()), axis=1))

    @torch.no_grad()
    def on_validation_epoch_end(self, loader: DataLoader) -> dict:
        """Scores of held-out images, and what the generator makes of the fixed points."""
        self.eval()
        self.log_images("validation", self(self.validation_z))
        scores = torch.cat([self.discriminator(imgs).sigmoid() for imgs, _ in loader])
        self.train()
        return {"real_score": scores.mean().item(), "ink": float(self.last_grid[1].mean()) / 255}


def main() -> None:
    torch.manual_seed(0)
    data = DigitModule(batch_size=128)
    model = GAN()
    train_loader, val_loader = data.train_dataloader(), data.val_dataloader()
    warm, step, epoch = min(10, STEPS // 2), 0, 0
    while step < STEPS:
        for imgs, _ in train_loader:
            if step == warm:
                start = time.perf_counter()
            g_loss, d_loss = model.training_step(imgs, step)
            loss = g_loss + d_loss
            step += 1
            if step == STEPS:
                break
        epoch += 1
        if epoch % 5 == 0:
            found = model.on_validation_epoch_end(val_loader)
            print(f"epoch {epoch} " + " ".join(f"{key} {value:.4f}" for key, value in found.items()))
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
