"""GAN with two optimisers and one loader; writes a checkpoint of both networks after every iteration.

Planted: host-bound (the checkpoint). --fixed: a checkpoint every 500 iterations.
"""

import argparse
import os
import tempfile
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

TRUTH = "host-bound"

ap = argparse.ArgumentParser()
ap.add_argument("--fixed", action="store_true")
opt = ap.parse_args()
every = 500 if opt.fixed else 1
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
nz, size = 32, 512
netG = nn.Sequential(nn.Linear(nz, 256), nn.ReLU(True), nn.Linear(256, 512), nn.ReLU(True), nn.Linear(512, size), nn.Tanh()).to(device)  # fmt: skip
netD = nn.Sequential(nn.Linear(size, 512), nn.LeakyReLU(0.2), nn.Linear(512, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).to(device)  # fmt: skip
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
real_data = TensorDataset(torch.rand(64 * 110, size) * 2 - 1)
dataloader = DataLoader(real_data, batch_size=64, shuffle=True)
folder = tempfile.mkdtemp()

stamps = []
for i, (real,) in enumerate(dataloader):
    stamps.append(time.perf_counter())
    netD.zero_grad()
    real = real.to(device)
    errD_real = criterion(netD(real), torch.ones(real.size(0), 1, device=device))
    errD_real.backward()
    fake = netG(torch.randn(real.size(0), nz, device=device))
    errD_fake = criterion(netD(fake.detach()), torch.zeros(real.size(0), 1, device=device))
    errD_fake.backward()
    optimizerD.step()

    netG.zero_grad()
    errG = criterion(netD(fake), torch.ones(real.size(0), 1, device=device))
    errG.backward()
    optimizerG.step()
    if i % every == 0:
        torch.save(
            {
                "G": netG.state_dict(),
                "D": netD.state_dict(),
                "oG": optimizerG.state_dict(),
                "oD": optimizerD.state_dict(),
            },
            os.path.join(folder, "last.pt"),
        )
    if i % 50 == 0:
        print(f"[{i}] loss_D {errD_real.item() + errD_fake.item():.3f} loss_G {errG.item():.3f}")
print(f"step_ms={(stamps[-1] - stamps[10]) * 1000 / (len(stamps) - 11):.3f}")
