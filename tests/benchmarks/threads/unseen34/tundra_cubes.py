"""Segments lesions in brain volumes with a small 3D U-Net, trained on cubes cut out of whole subjects."""

import copy
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "220"))
BATCH = int(os.environ.get("BATCH", "8"))
SIDE = int(os.environ.get("SIDE", "256"))
DEPTH = int(os.environ.get("DEPTH", "160"))
CUBE = int(os.environ.get("CUBE", "64"))
BASE = int(os.environ.get("BASE", "32"))
SUBJECTS = int(os.environ.get("SUBJECTS", "6"))
CUBES_PER_SUBJECT = int(os.environ.get("CUBES_PER_SUBJECT", "32"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Subject(dict):
    """Volumes of one person, and what is known of them."""

    @property
    def spatial_shape(self):
        return self["image"].shape[1:]


class CropBox:
    """Cuts the same box out of all volumes of a subject."""

    def __init__(self, corner, size, keep_whole=True):
        self.corner, self.size, self.keep_whole = corner, size, keep_whole

    def __call__(self, subject):
        box = tuple(slice(c, c + self.size) for c in self.corner)
        if self.keep_whole:
            subject = copy.deepcopy(subject)
            for name in ("image", "label"):
                subject[name] = subject[name][(slice(None),) + box].clone()
            return subject
        cut = Subject({k: v for k, v in subject.items() if k not in ("image", "label")})
        for name in ("image", "label"):
            cut[name] = subject[name][(slice(None),) + box].clone()
        return cut


class CubeSampler:
    def __init__(self, size, seed):
        self.size = size
        self.rng = np.random.default_rng(seed)

    def extract(self, subject):
        corner = [int(self.rng.integers(0, n - self.size + 1)) for n in subject.spatial_shape]
        cube = CropBox(corner, self.size, keep_whole=VARIANT == "a")(subject)
        cube["location"] = torch.as_tensor(corner)
        return cube


class CubeQueue(IterableDataset):
    """Goes through the subjects and hands out a number of cubes of each."""

    def __init__(self, subjects, sampler, per_subject):
        self.subjects, self.sampler, self.per_subject = subjects, sampler, per_subject

    def __iter__(self):
        while True:
            for subject in self.subjects:
                for _ in range(self.per_subject):
                    cube = self.sampler.extract(subject)
                    yield cube["image"], cube["label"].long()[0]


def pair(cin, cout):
    layers = []
    for c in (cin, cout):
        layers += [nn.Conv3d(c, cout, 3, padding=1), nn.InstanceNorm3d(cout), nn.LeakyReLU(0.01, True)]
    return nn.Sequential(*layers)


class TundraNet(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.down1, self.down2, self.floor = pair(2, base), pair(base, 2 * base), pair(2 * base, 4 * base)
        self.up2, self.up1 = pair(6 * base, 2 * base), pair(3 * base, base)
        self.head = nn.Conv3d(base, 3, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool3d(a, 2))
        c = self.floor(F.max_pool3d(b, 2))
        b = self.up2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        a = self.up1(torch.cat([F.interpolate(b, scale_factor=2.0), a], 1))
        return self.head(a)


def make_subject(seed):
    gen = torch.Generator().manual_seed(seed)
    image = torch.randn(2, SIDE, SIDE, DEPTH, generator=gen)
    label = (image[:1] > 1.2).to(torch.uint8) + (image[1:] > 1.2).to(torch.uint8)
    return Subject(image=image, label=label, name=f"sub-{seed:03d}", spacing=(1.0, 1.0, 1.0))


torch.manual_seed(0)
queue = CubeQueue([make_subject(i) for i in range(SUBJECTS)], CubeSampler(CUBE, 0), CUBES_PER_SUBJECT)
loader = iter(DataLoader(queue, batch_size=BATCH, num_workers=0))
model = TundraNet(BASE).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    image, label = next(loader)
    image, label = image.to(device), label.to(device)
    loss = F.cross_entropy(model(image), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if device.type == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
