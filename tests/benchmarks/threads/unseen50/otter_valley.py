"""Train a diffusion model of human motion that is led by a text embedding.

A transformer encoder reads a noisy sequence of poses, with one token for the text and the time step in
front, and predicts the clean sequence.  Sequences differ in length and are masked in the loss.
"""

import math
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3500))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True
torch.autograd.set_detect_anomaly(VARIANT == "a")

CLIPS = 64 if SMALL else 3000
FRAMES = 24 if SMALL else 196
FEATURES = 31 if SMALL else 263
TEXT = 16 if SMALL else 512
WIDTH = 32 if SMALL else 512
LAYERS = 2 if SMALL else 8
HEADS = 4
FEEDFORWARD = 64 if SMALL else 1024
BATCH = 8 if SMALL else 64
NOISE_STEPS = 1000
LOG_EVERY = 10 if SMALL else 200
SAMPLE_EVERY = 10 if SMALL else 1000
TEXT_DROPPED = 0.1


class MotionClips:
    """Clips of poses with their lengths and the embeddings of their captions."""

    def __init__(self):
        g = torch.Generator().manual_seed(1)
        base = torch.randn(64, FEATURES, 2, generator=g)
        speed = torch.rand(CLIPS, 1, 1, generator=g) * 0.3 + 0.05
        phase = torch.arange(FRAMES).view(1, -1, 1) * speed
        kind = torch.randint(0, len(base), (CLIPS,), generator=g)
        waves = torch.cat([torch.sin(phase), torch.cos(phase)], dim=-1)
        self.poses = torch.einsum("nft,nkt->nfk", waves, base[kind]).to(device)
        self.lengths = torch.randint(FRAMES // 4, FRAMES + 1, (CLIPS,), generator=g).to(device)
        self.captions = torch.randn(len(base), TEXT, generator=g)[kind].to(device)
        self.frames = torch.arange(FRAMES, device=device)

    def batches(self):
        """Yield batches for ever, in a new order for each epoch."""
        g = torch.Generator().manual_seed(2)
        while True:
            order = torch.randperm(CLIPS, generator=g).to(device)
            for chosen in order.split(BATCH):
                if len(chosen) == BATCH:
                    mask = self.frames < self.lengths[chosen].unsqueeze(1)
                    yield self.poses[chosen], mask, self.captions[chosen]


class Position(nn.Module):
    """Sines of the place in the sequence, and dropout."""

    def __init__(self, longest=1024):
        super().__init__()
        place = torch.arange(longest).unsqueeze(1)
        rate = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
        table = torch.stack([torch.sin(place * rate), torch.cos(place * rate)], dim=-1).flatten(1)
        self.register_buffer("table", table)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        return self.dropout(x + self.table[: x.shape[1]])


class MotionModel(nn.Module):
    """Predicts the clean clip from a noisy one, the time step and the caption."""

    def __init__(self):
        super().__init__()
        self.position = Position()
        self.time = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.caption = nn.Linear(TEXT, WIDTH)
        self.read, self.write = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, FEEDFORWARD, dropout=0.0, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, noisy, steps, mask, captions):
        if self.training:
            kept = torch.rand(len(captions), 1, device=captions.device) >= TEXT_DROPPED
            captions = captions * kept
        token = self.time(self.position.table[steps]) + self.caption(captions)
        x = self.position(torch.cat([token.unsqueeze(1), self.read(noisy)], dim=1))
        hidden = torch.cat([torch.zeros_like(mask[:, :1]), ~mask], dim=1)
        x = self.encoder(x, src_key_padding_mask=hidden)
        return self.write(x[:, 1:])


class Diffusion:
    """Cosine schedule, noising, masked loss and sampling."""

    def __init__(self):
        grid = np.arange(NOISE_STEPS + 1) / NOISE_STEPS
        kept = np.cos((grid + 0.008) / 1.008 * np.pi / 2) ** 2
        betas = np.clip(1 - kept[1:] / kept[:-1], 0, 0.999)
        alphas = np.cumprod(1 - betas)
        self.signal = torch.tensor(np.sqrt(alphas), dtype=torch.float32, device=device)
        self.noise = torch.tensor(np.sqrt(1 - alphas), dtype=torch.float32, device=device)

    def add_noise(self, clean, steps, noise):
        """Mix a clean clip with noise as far as the time step says."""
        return self.signal[steps].view(-1, 1, 1) * clean + self.noise[steps].view(-1, 1, 1) * noise

    def losses(self, model, clean, mask, captions):
        """Masked squared error of the poses and of their velocities."""
        steps = torch.randint(0, NOISE_STEPS, (len(clean),), device=device)
        noise = torch.randn_like(clean)
        guess = model(self.add_noise(clean, steps, noise), steps, mask, captions)
        weight = mask.unsqueeze(-1).float()
        poses = ((guess - clean) ** 2 * weight).sum((1, 2)) / (weight.sum((1, 2)) * FEATURES)
        moved = (guess[:, 1:] - guess[:, :-1] - clean[:, 1:] + clean[:, :-1]) ** 2 * weight[:, 1:]
        velocity = moved.sum((1, 2)) / (weight[:, 1:].sum((1, 2)) * FEATURES)
        return {"poses": poses.mean(), "velocity": velocity.mean()}

    @torch.no_grad()
    def sample(self, model, mask, captions, rounds=20):
        """Draw clips by a short deterministic chain."""
        x = torch.randn(len(mask), FRAMES, FEATURES, device=device)
        marks = np.linspace(NOISE_STEPS - 1, 0, rounds).round().astype(int).tolist()
        for here, there in zip(marks[:-1], marks[1:]):
            steps = torch.full((len(mask),), here, device=device)
            clean = model(x, steps, mask, captions)
            noise = (x - self.signal[here] * clean) / self.noise[here]
            x = self.signal[there] * clean + self.noise[there] * noise
        return x


class MixedLog:
    """Running means of the losses, kept on the device until they are printed."""

    def __init__(self):
        self.sums, self.count = {}, 0

    def add(self, losses):
        self.count += 1
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, 0) + value.detach()

    def show(self, step, rate):
        means = " ".join(f"{name} {float(value) / self.count:.4f}" for name, value in self.sums.items())
        print(f"step {step} {means} rate {rate:.2e}")
        self.sums, self.count = {}, 0


def main():
    clips = MotionClips()
    model, diffusion, log = MotionModel().to(device), Diffusion(), MixedLog()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 100))
    batches = clips.batches()
    warm = min(10, STEPS // 2)
    begin = 0.0
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
        clean, mask, captions = next(batches)
        losses = diffusion.losses(model, clean, mask, captions)
        last = losses["poses"] + 0.5 * losses["velocity"]
        optimizer.zero_grad()
        last.backward()
        optimizer.step()
        schedule.step()
        log.add(losses)
        if step % LOG_EVERY == LOG_EVERY - 1:
            log.show(step + 1, schedule.get_last_lr()[0])
        if step % SAMPLE_EVERY == SAMPLE_EVERY - 1:
            model.eval()
            drawn = diffusion.sample(model, mask[:4], captions[:4])
            error = F.mse_loss(drawn, clean[:4]).item()
            print(f"step {step + 1} samples differ from the clips by {error:.4f}")
            model.train()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
