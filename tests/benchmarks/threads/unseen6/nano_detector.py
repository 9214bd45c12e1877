"""A tiny one-stage detector, its convolutions updated by orthogonalised momentum."""

import os
import time

import torch
from ortho_sgd import MuSGD
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1500))
BATCH = int(os.environ.get("BATCH", 64))
SIDE = int(os.environ.get("SIDE", 128))
DEPTH, CLASSES = 18, 20
device = torch.device(os.environ.get("DEVICE", "cuda"))


class ConvUnit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return x + F.silu(self.norm(self.conv(x)))


class Detector(nn.Module):
    def __init__(self, widths=(32, 64, 128)):
        super().__init__()
        stages, before = [], 3
        for width in widths:
            stages.append(nn.Conv2d(before, width, 3, 2, 1, bias=False))
            stages += [ConvUnit(width) for _ in range(DEPTH)]
            before = width
        self.backbone = nn.Sequential(*stages)
        self.head = nn.Conv2d(before, 5 + CLASSES, 1)

    def forward(self, images):
        return self.head(self.backbone(images)).permute(0, 2, 3, 1)


def detection_loss(output, boxes, classes, present):
    objectness = F.binary_cross_entropy_with_logits(output[..., 0], present)
    place = (F.smooth_l1_loss(output[..., 1:5], boxes, reduction="none").mean(-1) * present).mean()
    kind = F.cross_entropy(output[..., 5:].flatten(0, 2), classes.flatten(), reduction="none")
    return objectness + place + (kind * present.flatten()).mean()


def main():
    torch.manual_seed(0)
    model = Detector().to(device, memory_format=torch.channels_last)
    matrices = [p for p in model.parameters() if p.ndim == 4 and p.shape[-1] > 1]
    others = [p for p in model.parameters() if not (p.ndim == 4 and p.shape[-1] > 1)]
    muon = MuSGD(matrices, lr=0.01, variant=VARIANT)
    sgd = torch.optim.SGD(others, lr=0.01, momentum=0.9, fused=device.type == "cuda")
    images = torch.rand(BATCH, 3, SIDE, SIDE, device=device).contiguous(memory_format=torch.channels_last)
    cells = (BATCH, SIDE // 8, SIDE // 8)
    boxes, present = torch.rand(*cells, 4, device=device), (torch.rand(cells, device=device) < 0.1).float()
    classes = torch.randint(0, CLASSES, cells, device=device)
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            output = model(images)
        loss = detection_loss(output.float(), boxes, classes, present)
        muon.zero_grad(set_to_none=True)
        sgd.zero_grad(set_to_none=True)
        loss.backward()
        muon.step()
        sgd.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
