"""Learns a manipulation policy from recorded demonstrations (camera and joints)."""

import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

BATCH, SIDE, FRAMES = (4, 32, 60) if SMALL else (32, 128, 2000)
WIDTH, LAYERS, HORIZON, JOINTS = (32, 2, 8, 7) if SMALL else (256, 6, 16, 7)
JITTER = {"brightness": 0.3, "contrast": 0.4, "saturation": 0.5, "hue": 0.1}


def to_device(array):
    """Copies an array or a tensor of the host without waiting for the copy."""
    tensor = torch.as_tensor(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor


def gray(images):
    """Luma of images whose channels are third from the end."""
    r, g, b = images.unbind(dim=-3)
    return (0.2989 * r + 0.587 * g + 0.114 * b).unsqueeze(-3)


def blend(first, second, ratio):
    """Mixes two images and keeps them between nought and one."""
    return (ratio * first + (1.0 - ratio) * second).clamp(0.0, 1.0)


def shift_hue(images, amount):
    """Turns the hue by way of HSV."""
    r, g, b = images.unbind(dim=-3)
    top, low = images.amax(dim=-3), images.amin(dim=-3)
    spread = top - low
    same = spread == 0
    safe = torch.where(same, torch.ones_like(spread), spread)
    rc, gc, bc = (top - r) / safe, (top - g) / safe, (top - b) / safe
    hue = torch.where(top == r, bc - gc, torch.where(top == g, 2.0 + rc - bc, 4.0 + gc - rc))
    hue = ((hue / 6.0 + 1.0) % 1.0 + amount) % 1.0
    saturation = spread / torch.where(same, torch.ones_like(top), top.clamp(min=1e-6))
    sector = (hue * 6.0).floor()
    f = hue * 6.0 - sector
    p = (top * (1.0 - saturation)).clamp(0.0, 1.0)
    q = (top * (1.0 - saturation * f)).clamp(0.0, 1.0)
    t = (top * (1.0 - saturation * (1.0 - f))).clamp(0.0, 1.0)
    mask = sector.to(torch.int32).remainder(6).unsqueeze(-3) == torch.arange(
        6, device=images.device, dtype=torch.int32
    ).view(-1, 1, 1)
    table = torch.stack(
        [
            torch.stack(c, dim=-3)
            for c in ((top, q, p, p, t, top), (t, top, top, q, p, p), (p, p, t, top, top, q))
        ],
        dim=-4,
    )
    return (mask.unsqueeze(-4).to(table.dtype) * table).sum(dim=-3)


def color_jitter(images, brightness, contrast, saturation, hue):
    """Four adjustments; each factor is a number or a tensor that broadcasts over the images."""
    images = (images * brightness).clamp(0.0, 1.0)
    images = blend(images, gray(images).mean(dim=(-3, -2, -1), keepdim=True), contrast)
    images = blend(images, gray(images), saturation)
    return shift_hue(images, hue.squeeze(-1) if torch.is_tensor(hue) else hue)


class FrameAugmentation:
    """Colour jitter with factors of its own for each frame."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, count):
        """Factors as a table: a row for each frame."""
        u = torch.rand(count, 4, generator=self.generator) * 2.0 - 1.0
        scale = torch.tensor([JITTER["brightness"], JITTER["contrast"], JITTER["saturation"], JITTER["hue"]])
        return u * scale + torch.tensor([1.0, 1.0, 1.0, 0.0])

    def __call__(self, images):
        factors = self.draw(images.shape[0])
        if VARIANT == "a":
            frames = []
            for image, row in zip(images, factors.tolist()):
                frames.append(color_jitter(image, *row))
            return torch.stack(frames)
        columns = to_device(factors).t().reshape(4, -1, 1, 1, 1).unbind(0)
        return color_jitter(images, *columns)


class Policy(nn.Module):
    """Stems for camera and joints, a shared trunk and a flow head for the actions."""

    def __init__(self):
        super().__init__()
        chans = (3, 32, 64, 128, WIDTH)
        self.stem = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(8, b), nn.SiLU())
                for a, b in zip(chans[:-1], chans[1:])
            ]
        )
        self.joints = nn.Linear(JOINTS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.trunk = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.actions = nn.Linear(JOINTS, WIDTH)
        self.moment = nn.Linear(32, WIDTH)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, JOINTS))

    def forward(self, images, joints, noisy, t):
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        freqs = torch.exp(torch.arange(16, device=t.device) * (-math.log(1000.0) / 16))
        angles = t[:, None] * freqs
        moment = self.moment(torch.cat([angles.sin(), angles.cos()], dim=-1))
        queries = self.actions(noisy) + moment[:, None]
        x = self.trunk(torch.cat([tokens, self.joints(joints)[:, None], queries], dim=1))
        return self.head(x[:, -HORIZON:])


class Demonstrations:
    """Frames, joint angles and the actions that follow, drawn at random."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.frames = rng.integers(0, 255, (FRAMES, 3, SIDE, SIDE), dtype=np.uint8)
        self.states = rng.standard_normal((FRAMES, JOINTS), dtype=np.float32)
        self.moves = np.tanh(self.states[:, None] * np.linspace(0.2, 1.0, HORIZON, dtype=np.float32)[:, None])
        self.rng = rng

    def batch(self):
        rows = self.rng.integers(0, FRAMES, BATCH)
        parts = (self.frames[rows], self.states[rows], self.moves[rows])
        return [to_device(p) for p in parts]


def flow_loss(model, images, joints, moves, generator):
    """Flow matching: the velocity from noise to the recorded actions."""
    noise = to_device(torch.randn(moves.shape, generator=generator))
    t = to_device(torch.rand(moves.shape[0], generator=generator))
    mixed = torch.lerp(noise, moves, t[:, None, None])
    return F.mse_loss(model(images, joints, mixed, t), moves - noise)


def main():
    torch.manual_seed(0)
    data, augment = Demonstrations(1), FrameAugmentation(2)
    model = Policy().to(device)
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-4, fused=device == "cuda")
    warm = min(10, STEPS // 2)
    start, last = time.perf_counter(), None
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        frames, joints, moves = data.batch()
        images = augment(frames.float().div_(255.0))
        last = flow_loss(model, images * 2.0 - 1.0, joints, moves, generator)
        optimizer.zero_grad(set_to_none=True)
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 200 == 199:
            print(f"step {step + 1} flow {last.item():.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
