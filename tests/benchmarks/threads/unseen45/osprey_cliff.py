"""Self-supervised training of a speech encoder: hidden frames are to be told from codebook targets."""

import math
import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 4500))

FEATURES = 80
BATCH = 32
FRAMES = 800
CODES = 256
EVALUATE_EVERY = 200


class FeatureBlockMasker(nn.Module):
    """Hides blocks of frames behind an embedding; blocks may overlap."""

    def __init__(self, features, block_size=32, start_probability=0.04):
        super().__init__()
        self.block_size = block_size
        self.start_probability = start_probability
        self.embedding = nn.Parameter(0.1 * torch.randn(features), requires_grad=False)

    def draw_starts(self, lengths, frames):
        """Frames (batch, frames) at which a block begins, inside of each recording."""
        draws = torch.rand(lengths.shape[0], frames)
        inside = torch.arange(frames)[None, :] < (lengths - self.block_size)[:, None]
        return (draws < self.start_probability) & inside

    def forward(self, features, lengths):
        """In: features (batch, features, frames). Out: hidden features and the masks, same shape."""
        starts = self.draw_starts(lengths, features.shape[2])
        if VARIANT == "a":
            masks = torch.zeros_like(features)
            hidden = features.clone()
            value = self.embedding.unsqueeze(-1)
            for index in range(features.shape[0]):
                for begin in starts[index].nonzero().flatten():
                    end = begin + self.block_size
                    masks[index, :, begin:end] = 1.0
                    hidden[index, :, begin:end] = value
            return hidden, masks
        weights = torch.zeros(starts.shape[0], starts.shape[1] + 1)
        weights[:, :-1] += starts
        weights[:, self.block_size :] -= starts[:, : starts.shape[1] + 1 - self.block_size].float()
        covered = weights.cumsum(1)[:, :-1] > 0.5
        masks = covered[:, None, :].expand_as(features)
        hidden = torch.where(masks, self.embedding[None, :, None], features)
        return hidden, masks.float()


class RandomProjectionQuantizer(nn.Module):
    """Frozen projection and codebook that give each group of frames a number."""

    def __init__(self, features, stack, size=16):
        super().__init__()
        self.stack = stack
        self.register_buffer("projection", torch.randn(features * stack, size) / math.sqrt(features * stack))
        self.register_buffer("codebook", nn.functional.normalize(torch.randn(CODES, size), dim=-1))

    @torch.no_grad()
    def forward(self, features):
        """In: features (batch, features, frames). Out: numbers (batch, frames / stack)."""
        batch, size, frames = features.shape
        grouped = features.transpose(1, 2).reshape(batch, frames // self.stack, size * self.stack)
        vectors = nn.functional.normalize(grouped @ self.projection, dim=-1)
        return (vectors @ self.codebook.T).max(dim=-1).indices


class ConvolutionBlock(nn.Module):
    """Pre-norm convolution and feed-forward layer of the encoder."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.depthwise = nn.Conv1d(width, width, 5, padding=2, groups=width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)

    def forward(self, x):
        inside = self.depthwise(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.outer(nn.functional.silu(self.inner(inside)))


class SpeechEncoder(nn.Module):
    """Subsampling by eight, blocks, and a head over the codes."""

    def __init__(self, width=96, depth=1):
        super().__init__()
        self.subsample = nn.Sequential(
            nn.Conv1d(FEATURES, width, 5, stride=4, padding=2),
            nn.SiLU(),
            nn.Conv1d(width, width, 3, stride=2, padding=1),
            nn.SiLU(),
        )
        self.blocks = nn.ModuleList(ConvolutionBlock(width) for _ in range(depth))
        self.head = nn.Linear(width, CODES)

    def forward(self, features):
        x = self.subsample(features).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class UtterancePool:
    """Made-up recordings: long waves with noise, of different lengths."""

    def __init__(self, count=160):
        times = torch.arange(FRAMES)[None, None, :] / 40.0
        speed = 0.5 + torch.rand(count, FEATURES, 1)
        self.features = torch.sin(times * speed + 6.0 * torch.rand(count, FEATURES, 1))
        self.features += 0.3 * torch.randn(count, FEATURES, FRAMES)
        self.lengths = torch.randint(FRAMES // 2, FRAMES + 1, (count,))

    def batch(self):
        """A batch of recordings, silent after their ends."""
        rows = torch.randint(0, self.features.shape[0], (BATCH,))
        lengths = self.lengths[rows]
        inside = torch.arange(FRAMES)[None, None, :] < lengths[:, None, None]
        return self.features[rows] * inside, lengths


def masked_prediction_loss(scores, codes, masks):
    """Cross entropy where most frames of a group were hidden."""
    groups = masks[:, 0, :].reshape(masks.shape[0], -1, 8).mean(-1)
    weights = (groups > 0.5).float()
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), codes, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1.0)


def learning_rate(step):
    """Warm-up, then decay by the root."""
    return min((step + 1) / 50.0, math.sqrt(50.0 / (step + 1)))


@torch.no_grad()
def evaluate(model, quantizer, pool):
    """Share of the codes found in recordings without hidden frames."""
    model.eval()
    features = pool.features[:BATCH]
    found = (model(features).max(-1).indices == quantizer(features)).float().mean().item()
    model.train()
    return found


def main():
    torch.manual_seed(0)
    pool = UtterancePool()
    masker = FeatureBlockMasker(FEATURES)
    quantizer = RandomProjectionQuantizer(FEATURES, 8)
    model = SpeechEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        features, lengths = pool.batch()
        codes = quantizer(features)
        hidden, masks = masker(features, lengths)
        loss = masked_prediction_loss(model(hidden), codes, masks)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            print(f"step {step + 1}: codes found {evaluate(model, quantizer, pool):.3f}")
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
