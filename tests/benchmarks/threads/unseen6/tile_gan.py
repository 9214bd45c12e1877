"""A DCGAN that draws tiles with patterns, 32 x 32."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 800))
BATCH = int(os.environ.get("BATCH", 16))
LATENT, WIDTH = 64, 64


def weights_init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)


def up(inputs, outputs, stride=2, padding=1):
    conv = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU(True))


def down(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True))


class Generator(nn.Sequential):
    def __init__(self):
        last = nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1)
        super().__init__(
            up(LATENT, 4 * WIDTH, 1, 0), up(4 * WIDTH, 2 * WIDTH), up(2 * WIDTH, WIDTH), last, nn.Tanh()
        )


class Discriminator(nn.Sequential):
    def __init__(self):
        layers = [down(3, 16), down(16, 32), down(32, 64)]
        super().__init__(*layers, nn.Conv2d(64, 1, 4), nn.Flatten(0))


class Trainer:
    def __init__(self):
        self.netG, self.netD = Generator().apply(weights_init), Discriminator().apply(weights_init)
        self.optimizerG = torch.optim.Adam(self.netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.optimizerD = torch.optim.Adam(self.netD.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def update_discriminator(self, real):
        self.optimizerD.zero_grad()
        fake = self.netG(torch.randn(len(real), LATENT, 1, 1))
        if VARIANT == "b":
            fake = fake.detach()
        loss = F.softplus(-self.netD(real)).mean() + F.softplus(self.netD(fake)).mean()
        loss.backward()
        self.optimizerD.step()
        return loss.item()

    def update_generator(self, count):
        self.optimizerG.zero_grad()
        fake = self.netG(torch.randn(count, LATENT, 1, 1))
        loss = F.softplus(-self.netD(fake)).mean()
        loss.backward()
        self.optimizerG.step()
        return loss.item()


def tiles(count=512, side=32):
    """Stripes and checks of some size and direction."""
    generator = torch.Generator().manual_seed(8)
    waves = 0.2 + torch.rand(count, 3, 2, 1, 1, generator=generator)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.sin(waves[:, :, 0] * rows) * torch.cos(waves[:, :, 1] * columns)


def main():
    torch.manual_seed(0)
    trainer, images = Trainer(), tiles()
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        real = images[torch.randint(0, len(images), (BATCH,))]
        errD = trainer.update_discriminator(real)
        errG = trainer.update_generator(BATCH)
    print(f"loss {errD + errG:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
