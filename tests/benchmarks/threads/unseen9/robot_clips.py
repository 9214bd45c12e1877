"""The next frames of a robot's camera: a video denoiser trained on clips kept as JPEG frames."""

import io
import os
import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
BATCH = int(os.environ.get("BATCH", 2))
FRAMES = int(os.environ.get("FRAMES", 16))
SIDE = int(os.environ.get("SIDE", 128))
WIDTH = int(os.environ.get("WIDTH", 512))
LAYERS = int(os.environ.get("LAYERS", 8))
CLIPS = int(os.environ.get("CLIPS", 16))
HEIGHT = int(os.environ.get("HEIGHT", 480))
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Clips(Dataset):
    """Decodes FRAMES frames in a row, cuts the middle and scales it to SIDE."""

    def __init__(self, folder):
        self.files = sorted(folder.glob("*.pkl"))

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        clip = pickle.loads(self.files[i % len(self.files)].read_bytes())
        first = rng.integers(0, len(clip["frames"]) - FRAMES + 1)
        frames = []
        for data in clip["frames"][first : first + FRAMES]:
            image = Image.open(io.BytesIO(data)).convert("RGB")
            margin = (image.width - image.height) // 2
            image = image.crop((margin, 0, margin + image.height, image.height))
            frames.append(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)))
        video = torch.from_numpy(np.stack(frames)).permute(3, 0, 1, 2).float() / 127.5 - 1
        return {"video": video, "command": torch.from_numpy(clip["command"])}


class Layer(nn.Module):
    """Attention over space and time with a command and a noise level mixed in."""

    def __init__(self, width, heads=8):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width, elementwise_affine=False) for _ in range(2)])
        self.change = nn.Linear(width, 4 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, c):
        a, b, p, q = self.change(F.silu(c))[:, None].chunk(4, -1)
        y = self.qkv(self.norms[0](x) * (1 + a) + b)
        query, key, value = y.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x) * (1 + p) + q)


class VideoDenoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = nn.Conv3d(3, WIDTH, (2, 8, 8), (2, 8, 8))
        self.place = nn.Parameter(0.02 * torch.randn(1, FRAMES // 2 * (SIDE // 8) ** 2, WIDTH))
        self.command, self.level = nn.Linear(7, WIDTH), nn.Linear(1, WIDTH)
        self.layers = nn.ModuleList([Layer(WIDTH) for _ in range(LAYERS)])
        self.paste = nn.ConvTranspose3d(WIDTH, 3, (2, 8, 8), (2, 8, 8))

    def forward(self, video, command, level):
        x = self.cut(video)
        shape = x.shape
        x = x.flatten(2).transpose(1, 2) + self.place
        c = self.command(command) + self.level(level[:, None])
        for layer in self.layers:
            x = layer(x, c)
        return self.paste(x.transpose(1, 2).reshape(shape))


def film(folder):
    rng = np.random.default_rng(8)
    width = HEIGHT * 4 // 3
    for n in range(CLIPS):
        scene = Image.fromarray(rng.integers(0, 255, (HEIGHT // 4, width // 4, 3), dtype=np.uint8))
        scene = scene.resize((width + 64, HEIGHT + 64), Image.Resampling.BICUBIC)
        frames = []
        for t in range(FRAMES + 8):
            kept = io.BytesIO()
            scene.crop((2 * t, t, 2 * t + width, t + HEIGHT)).save(kept, "JPEG", quality=92)
            frames.append(kept.getvalue())
        clip = {"frames": frames, "command": rng.normal(size=7).astype(np.float32)}
        (folder / f"clip{n:03}.pkl").write_bytes(pickle.dumps(clip))


def make_loader(data):
    if VARIANT == "a":
        return DataLoader(data, batch_size=BATCH, drop_last=True)
    return DataLoader(data, batch_size=BATCH, drop_last=True, num_workers=8, pin_memory=device.type == "cuda")


def main():
    torch.manual_seed(8)
    with tempfile.TemporaryDirectory() as name:
        film(Path(name))
        model = VideoDenoiser().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
        warm = min(12, STEPS // 2)
        for step, batch in enumerate(make_loader(Clips(Path(name)))):
            if step == warm:
                if device.type == "cuda":
                    torch.cuda.synchronize()
                start = time.perf_counter()
            video = batch["video"].to(device, non_blocking=True)
            command = batch["command"].to(device, non_blocking=True)
            level = torch.rand(len(video), device=device)
            noise, share = torch.randn_like(video), level[:, None, None, None, None]
            with torch.autocast(device.type, torch.bfloat16):
                guess = model((1 - share) * video + share * noise, command, level)
            loss = F.mse_loss(guess.float(), noise - video)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
