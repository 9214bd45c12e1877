"""Speaker diarization of meetings: who speaks when, with speaker vectors for the clustering."""

import os
import time
from itertools import permutations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 3500))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"

BATCH, FRAMES, MELS, VOICES = (4, 20, 15, 30) if SMALL else (64, 150, 345, 1000)
SPEAKERS, WIDTH, LAYERS, VECTOR = (3, 32, 1, 16) if SMALL else (3, 256, 4, 80)
ORDERS = list(permutations(range(SPEAKERS)))


def to_device(array):
    """Copies an array or a tensor of the host without waiting for the copy."""
    tensor = torch.as_tensor(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device == "cuda" else tensor


class SpeakerTable(nn.Module):
    """A learned vector for each voice of the training set."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOICES, VECTOR)
        self.alpha = nn.Parameter(torch.tensor(1.0))
        self.beta = nn.Parameter(torch.tensor(0.5))

    def forward(self, vectors, voices):
        """Cross-entropy over the voices by distance; vectors (n, V), voices (n,)."""
        table = F.normalize(self.embed.weight, dim=-1)
        distance = 2.0 - 2.0 * vectors @ table.t()
        return F.cross_entropy(-(self.alpha.abs() * distance + self.beta), voices, reduction="none")


class DiarizationModel(nn.Module):
    """Transformer encoder with heads for activity and for speaker vectors."""

    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(MELS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.activity = nn.Linear(WIDTH, SPEAKERS)
        self.vectors = nn.ModuleList([nn.Linear(WIDTH, VECTOR) for _ in range(SPEAKERS)])
        self.speakers = SpeakerTable()

    def forward(self, features):
        hidden = self.encoder(self.norm(self.inputs(features)))
        logits = self.activity(hidden)
        weights = torch.sigmoid(logits).transpose(1, 2)
        per_frame = torch.stack([head(hidden) for head in self.vectors], dim=1)
        pooled = (weights.unsqueeze(2) @ F.normalize(per_frame, dim=-1)).squeeze(2)
        return logits, F.normalize(pooled, dim=-1)


def pit_loss(pred, label):
    """Cross-entropy of one chunk under the best order of the speakers; pred and label (T, C)."""
    label_perms = [label[..., list(p)] for p in ORDERS]
    losses = torch.stack([F.binary_cross_entropy_with_logits(pred, perm.float()) for perm in label_perms])
    best = int(losses.argmin().detach())
    return losses.min() * len(label), best


def chunk_losses(model, logits, vectors, labels, voices, lengths):
    """Activity and speaker losses of a batch, chunk after chunk."""
    activity, speaker = [], []
    for pred, label, vector, voice, length in zip(logits, labels, vectors, voices, lengths):
        loss, best = pit_loss(pred[:length], label[:length])
        ordered = voice[list(ORDERS[best])]
        activity.append(loss)
        speaker.append(model.speakers(vector, ordered).mean())
    return torch.stack(activity).sum() / float(np.sum(lengths)), torch.stack(speaker).mean()


class BatchLosses:
    """Activity and speaker losses of a batch with all orders side by side."""

    def __init__(self):
        self.orders = torch.tensor(ORDERS, device=device)

    def __call__(self, model, logits, vectors, labels, voices, lengths):
        batch, frames, speakers = labels.shape
        sizes = torch.as_tensor(lengths).to(device, non_blocking=True)
        mask = torch.arange(frames, device=device) < sizes[:, None]
        orders = self.orders.flatten()
        ordered = labels.index_select(2, orders).view(batch, frames, len(ORDERS), speakers).float()
        pred = logits.unsqueeze(2).expand_as(ordered)
        entropy = F.binary_cross_entropy_with_logits(pred, ordered, reduction="none").mean(dim=-1)
        losses = (entropy * mask.unsqueeze(-1)).sum(dim=1)
        least, best = losses.min(dim=1)
        voices = voices.gather(1, self.orders[best])
        speaker = model.speakers(vectors.flatten(0, 1), voices.flatten()).view(batch, speakers)
        return least.sum() / float(np.sum(lengths)), speaker.mean()


class Meetings:
    """Simulated chunks of meetings: spliced log-mel features and the activity of three speakers."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.timbre = self.rng.standard_normal((VOICES, MELS), dtype=np.float32)
        chunks = [self._chunk() for _ in range(60 if SMALL else 600)]
        self.features, self.active, self.voices = (
            torch.from_numpy(np.stack(p)).to(device) for p in zip(*chunks)
        )
        self.generator = torch.Generator(device).manual_seed(seed)

    def _chunk(self):
        voices = self.rng.choice(VOICES, SPEAKERS, replace=False)
        turns = self.rng.random((FRAMES // 10 + 1, SPEAKERS)) < 0.45
        active = np.repeat(turns, 10, axis=0)[:FRAMES]
        features = active.astype(np.float32) @ self.timbre[voices]
        return features, active.astype(np.int64), voices

    def batch(self):
        rows = to_device(self.rng.integers(0, len(self.features), BATCH))
        features = self.features.index_select(0, rows)
        noise = torch.randn(features.shape, generator=self.generator, device=device)
        lengths = self.rng.integers(int(FRAMES * 0.8), FRAMES + 1, BATCH)
        parts = (self.active.index_select(0, rows), self.voices.index_select(0, rows))
        return features + 0.5 * noise, *parts, lengths.tolist()


def noam(step, warmup=500):
    """Schedule of the transformer paper."""
    step += 1
    return min(step**-0.5, step * warmup**-1.5) * warmup**0.5


def error_rate(logits, labels):
    """Share of frames with a wrong number of speakers."""
    return ((logits > 0).sum(-1) != labels.sum(-1)).float().mean().item()


def main():
    torch.manual_seed(0)
    data = Meetings(1)
    model = DiarizationModel().to(device)
    losses = chunk_losses if VARIANT == "a" else BatchLosses()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
    warm = min(10, STEPS // 2)
    start, last = time.perf_counter(), None
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        features, labels, voices, lengths = data.batch()
        logits, vectors = model(features)
        activity, speaker = losses(model, logits, vectors, labels, voices, lengths)
        last = 0.97 * activity + 0.03 * speaker
        optimizer.zero_grad(set_to_none=True)
        last.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            print(f"step {step + 1} activity {activity.item():.4f} frames {error_rate(logits, labels):.3f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
