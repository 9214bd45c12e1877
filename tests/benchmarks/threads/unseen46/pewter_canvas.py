"""Fine-tunes low-rank adapters of a frozen image transformer on latents (rectified flow)."""

import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

WIDTH, HEADS, DEPTH = (64, 4, 4) if SMALL else (1536, 24, 16)
BATCH, SIDE, WORDS = (2, 8, 4) if SMALL else (4, 32, 128)
RANK, LATENT = 16, 64
CACHED = 32 if SMALL else 512
WEIGHTS = torch.bfloat16
CONFIG = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_interval": 1 if VARIANT == "a" else 4,
    "learning_rate": 1e-4,
    "validation_steps": 500,
    "log_steps": 100,
}


class LowRankLinear(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, inputs, outputs, rank=RANK):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.down = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class JointBlock(nn.Module):
    """Attention and MLP over image and text tokens, modulated by the time."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.to_qkv = LowRankLinear(width, 3 * width)
        self.to_out = LowRankLinear(width, width)
        self.norm_q = nn.RMSNorm(width // heads)
        self.norm_k = nn.RMSNorm(width // heads)
        self.fc1 = LowRankLinear(width, 4 * width)
        self.fc2 = LowRankLinear(4 * width, width)

    def forward(self, x, condition):
        modulation = self.modulation(F.silu(condition)).unsqueeze(1)
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation.chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.to_qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), v)
        x = x + gate1 * self.to_out(h.transpose(1, 2).flatten(2))
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.fc2(F.gelu(self.fc1(h), approximate="tanh"))


class FlowTransformer(nn.Module):
    """Predicts the velocity of the flow for each latent patch."""

    def __init__(self):
        super().__init__()
        self.patch_in = nn.Linear(LATENT, WIDTH)
        self.text_in = nn.Linear(WIDTH, WIDTH)
        self.time_in = nn.Sequential(nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.position = nn.Parameter(torch.randn(1, SIDE * SIDE + WORDS, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(JointBlock(WIDTH, HEADS) for _ in range(DEPTH))
        self.norm_out = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.patch_out = nn.Linear(WIDTH, LATENT)
        self.checkpointing = False
        self.checkpointing_interval = 1

    def enable_gradient_checkpointing(self, interval):
        self.checkpointing = True
        self.checkpointing_interval = interval

    def time_features(self, t):
        frequencies = torch.exp(torch.arange(128, device=t.device) * (-math.log(10000.0) / 128))
        angles = 1000 * t[:, None].float() * frequencies
        return torch.cat([angles.cos(), angles.sin()], -1).to(WEIGHTS)

    def forward(self, latents, text, t):
        condition = self.time_in(self.time_features(t))
        x = torch.cat([self.text_in(text), self.patch_in(latents)], 1) + self.position
        for index, block in enumerate(self.blocks):
            if self.checkpointing and torch.is_grad_enabled() and index % self.checkpointing_interval == 0:
                x = checkpoint(block, x, condition, use_reentrant=False)
            else:
                x = block(x, condition)
        return self.patch_out(self.norm_out(x[:, WORDS:]))


class LatentCache:
    """Latents and prompts that were encoded before the training, kept on the device."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(1)
        base = torch.randn(count, SIDE * SIDE, LATENT, generator=generator).mul_(0.8)
        self.latents = base.to(WEIGHTS).to(device)
        self.prompts = torch.randn(32, WORDS, WIDTH, generator=generator).to(WEIGHTS).to(device)
        self.count = count
        self.generator = torch.Generator().manual_seed(2)

    def batch(self, size):
        rows = torch.randint(self.count, (size,), generator=self.generator).to(device)
        return self.latents.index_select(0, rows), self.prompts.index_select(0, rows % 32)


def flow_loss(model, latents, text, noise, t):
    """Mean squared error of the velocity at time t."""
    mix = t[:, None, None]
    noisy = (1 - mix) * latents + mix * noise
    velocity = model(noisy, text, t)
    return F.mse_loss(velocity.float(), (noise - latents).float())


@torch.no_grad()
def validate(model, cache):
    """Loss at four fixed times over one batch of the cache."""
    model.eval()
    latents, text = cache.latents[:BATCH], cache.prompts[:BATCH]
    noise = torch.ones_like(latents)
    losses = [
        flow_loss(model, latents, text, noise, torch.full((BATCH,), t, dtype=WEIGHTS, device=device))
        for t in (0.2, 0.4, 0.6, 0.8)
    ]
    model.train()
    return torch.stack(losses).mean().item()


def adapters(model):
    """The trained parameters; everything else is frozen."""
    trained = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".down", ".up")))
        if parameter.requires_grad:
            trained.append(parameter)
    return trained


def main():
    model = FlowTransformer().to(WEIGHTS).to(device)
    trained = adapters(model)
    if CONFIG["gradient_checkpointing"]:
        model.enable_gradient_checkpointing(CONFIG["gradient_checkpointing_interval"])
    cache = LatentCache(CACHED)
    optimizer = torch.optim.AdamW(trained, lr=CONFIG["learning_rate"], weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    model.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        latents, text = cache.batch(BATCH)
        noise = torch.randn_like(latents)
        t = torch.sigmoid(torch.randn(BATCH, device=device)).to(WEIGHTS)
        loss = flow_loss(model, latents, text, noise, t)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 2.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        last = loss.detach()
        if (step + 1) % CONFIG["log_steps"] == 0:
            print(f"step {step + 1} loss {last.item():.4f} lr {schedule.get_last_lr()[0]:.2e}", flush=True)
        if (step + 1) % CONFIG["validation_steps"] == 0:
            print(f"validation {validate(model, cache):.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
