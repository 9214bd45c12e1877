"""Classes of icons: a residual network whose features live at two octaves, half of them at half size."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3800))
BATCH = int(os.environ.get("BATCH", 64))
BLOCKS = int(os.environ.get("BLOCKS", 9))
WIDTH = int(os.environ.get("WIDTH", 16))
ICONS = int(os.environ.get("ICONS", 20_000))
CLASSES = 10
device = torch.device(os.environ.get("DEVICE", "cuda"))


class OctaveConv(nn.Module):
    """Four convolutions: each octave hears itself and the other one."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.stride = stride
        for name in ("fine_fine", "fine_coarse", "coarse_fine", "coarse_coarse"):
            setattr(self, name, nn.Conv2d(inputs // 2, outputs // 2, 3, padding=1, bias=False))

    def forward(self, fine, coarse):
        if self.stride == 2:
            fine, coarse = F.avg_pool2d(fine, 2), F.avg_pool2d(coarse, 2)
        up = F.interpolate(self.coarse_fine(coarse), scale_factor=2.0)
        return self.fine_fine(fine) + up, self.coarse_coarse(coarse) + self.fine_coarse(F.avg_pool2d(fine, 2))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fine, self.coarse = nn.BatchNorm2d(width // 2), nn.BatchNorm2d(width // 2)

    def forward(self, fine, coarse):
        return self.fine(fine), self.coarse(coarse)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.stride, self.more = stride, (outputs - inputs) // 2
        self.convs = nn.ModuleList([OctaveConv(inputs, outputs, stride), OctaveConv(outputs, outputs)])
        self.norms = nn.ModuleList([Norm(outputs), Norm(outputs)])

    def shortcut(self, x):
        if self.stride == 2:
            x = F.avg_pool2d(x, 2)
        return F.pad(x, (0, 0, 0, 0, 0, self.more)) if self.more else x

    def forward(self, fine, coarse):
        a, b = self.norms[0](*self.convs[0](fine, coarse))
        a, b = self.norms[1](*self.convs[1](F.relu(a), F.relu(b)))
        return F.relu(a + self.shortcut(fine)), F.relu(b + self.shortcut(coarse))


class OctaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = nn.Conv2d(3, WIDTH // 2, 3, padding=1, bias=False)
        self.coarse = nn.Conv2d(3, WIDTH // 2, 3, padding=1, bias=False)
        self.norm = Norm(WIDTH)
        blocks, inputs = [], WIDTH
        for stage in range(3):
            for n in range(BLOCKS):
                outputs = WIDTH * 2**stage
                blocks.append(Block(inputs, outputs, 2 if stage and n == 0 else 1))
                inputs = outputs
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        fine, coarse = self.norm(self.fine(x), self.coarse(F.avg_pool2d(x, 2)))
        for block in self.blocks:
            fine, coarse = block(fine, coarse)
        return self.head(torch.cat([fine.mean((2, 3)), coarse.mean((2, 3))], 1))


def draw_icons():
    """A pattern per class, moved about, in other colours and with noise."""
    kinds = torch.randint(0, CLASSES, (ICONS,))
    patterns = F.interpolate(torch.randn(CLASSES, 3, 8, 8), size=(40, 40), mode="bilinear")
    icons = torch.empty(ICONS, 3, 32, 32)
    for n, kind in enumerate(kinds.tolist()):
        top, left = torch.randint(0, 9, (2,)).tolist()
        icons[n] = patterns[kind, :, top : top + 32, left : left + 32]
    tint = 1 + 0.3 * torch.randn(ICONS, 3, 1, 1)
    return icons * tint + 0.5 * torch.randn_like(icons), kinds


def main():
    torch.manual_seed(10)
    icons, kinds = (x.to(device) for x in draw_icons())
    model = OctaveNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    low = VARIANT == "b"
    scaler = torch.amp.GradScaler(device.type, enabled=low and device.type == "cuda")
    kind_of_half = torch.float16 if device.type == "cuda" else torch.bfloat16
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        rows = torch.randint(0, ICONS, (BATCH,), device=device)
        with torch.autocast(device.type, kind_of_half, enabled=low):
            loss = F.cross_entropy(model(icons[rows]), kinds[rows])
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
