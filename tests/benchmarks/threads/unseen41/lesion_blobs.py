"""3D U-Net for small lesions in MR crops: one loss of the whole, one that counts lesions alike."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 170))
BATCH = int(os.environ.get("BATCH", 4))
SIZE = int(os.environ.get("SIZE", 64))
WIDTH = int(os.environ.get("WIDTH", 32))
LESIONS = int(os.environ.get("LESIONS", 24))
CROPS = int(os.environ.get("CROPS", 16))
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True
torch.manual_seed(0)


def bce(logits, target):
    return F.binary_cross_entropy_with_logits(logits, target)


def dice(logits, target):
    p = torch.sigmoid(logits).flatten(1)
    t = target.flatten(1)
    overlap = (p * t).sum(1)
    return (1 - (2 * overlap + 1e-5) / (p.sum(1) + t.sum(1) + 1e-5)).mean()


def lesion_loss(criterion, outputs, labels):
    per_crop = []
    for i in range(labels.shape[0]):
        label, output = labels[i : i + 1], outputs[i : i + 1]
        if VARIANT == "a":
            losses = []
            for u in torch.unique(label):
                if u == 0:
                    continue
                keep = ~(label > 0)
                keep[label == u] = 1
                target = label == u
                losses.append(criterion(output * keep, target.float()))
            if losses:
                per_crop.append(sum(losses) / len(losses))
        else:
            found = torch.unique(label)
            found = found[found > 0].view(-1, 1, 1, 1, 1)
            if found.numel():
                target = label == found
                keep = ~(label > 0) | target
                per_crop.append(criterion(output * keep, target.float()))
    return sum(per_crop) / max(len(per_crop), 1)


def total_loss(outputs, labels):
    binary = (labels > 0).float()
    whole = bce(outputs, binary) + dice(outputs, binary)
    each = lesion_loss(bce, outputs, labels) + lesion_loss(dice, outputs, labels)
    return 2 * whole + each


def stage(cin, cout):
    layers = []
    for c in (cin, cout):
        layers += [nn.Conv3d(c, cout, 3, padding=1), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers)


class LesionNet(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.a, self.b, self.c = stage(2, w), stage(w, 2 * w), stage(2 * w, 4 * w)
        self.up2, self.up1 = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)
        self.d, self.e = stage(4 * w, 2 * w), stage(2 * w, w)
        self.out = nn.Conv3d(w, 1, 1)

    def forward(self, x):
        a = self.a(x)
        b = self.b(F.max_pool3d(a, 2))
        c = self.c(F.max_pool3d(b, 2))
        y = self.d(torch.cat([self.up2(c), b], 1))
        return self.out(self.e(torch.cat([self.up1(y), a], 1)))


def make_crops():
    g = torch.Generator().manual_seed(6)
    axis = torch.arange(SIZE)
    labels = torch.zeros(CROPS, 1, SIZE, SIZE, SIZE, dtype=torch.long)
    for n in range(CROPS):
        for k in range(1, LESIONS + 1):
            z, y, x = torch.randint(4, SIZE - 4, (3,), generator=g).tolist()
            r = int(torch.randint(2, 5, (1,), generator=g))
            far = ((axis - z) ** 2)[:, None, None] + ((axis - y) ** 2)[:, None] + (axis - x) ** 2
            labels[n, 0][far <= r * r] = k
    images = torch.randn(CROPS, 2, SIZE, SIZE, SIZE, generator=g) + 1.5 * (labels > 0)
    return images.to(device), labels.to(device)


images, labels = make_crops()
net = LesionNet(WIDTH).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device == "cuda":
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    at = step * BATCH % (CROPS - BATCH + 1)
    loss = total_loss(net(images[at : at + BATCH]), labels[at : at + BATCH])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
if device == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - t0
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
