"""Recognition of sung syllables: a convolutional front end, six transformer layers, an alignment loss."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
SMALL = os.environ.get("SMALL") == "1"
STEPS = int(os.environ.get("STEPS", 4 if SMALL else 3200))
WARMUP = 1 if SMALL else 15
device = "cuda" if torch.cuda.is_available() else "cpu"

DIM, HEADS, LAYERS = (32, 2, 1) if SMALL else (512, 8, 6)
BINS, SYLLABLES = (16, 20) if SMALL else (80, 500)
BATCH, FRAMES, LABELS = (4, 64, 5) if SMALL else (320, 400, 24)


class AlignmentFunction(torch.autograd.Function):
    """Costs of the utterances, with their gradients computed on the way forward."""

    @staticmethod
    def forward(ctx, log_probs, targets, frames, labels):
        with torch.enable_grad():
            log_probs = log_probs.detach().requires_grad_(True)
            nll = F.ctc_loss(
                log_probs, targets, frames, labels, blank=0, reduction="none", zero_infinity=True
            )
            (grad,) = torch.autograd.grad(nll.sum(), log_probs)
        ctx.save_for_backward(grad)
        ll_forward = -nll.detach()
        if VARIANT == "a":
            costs = torch.zeros(len(ll_forward))
            for mb in range(len(costs)):
                costs[mb] = -ll_forward[mb]
            costs = costs.to(log_probs.device)
        else:
            costs = torch.neg(ll_forward)
        return costs

    @staticmethod
    def backward(ctx, grad_costs):
        (grad,) = ctx.saved_tensors
        return grad * grad_costs.view(1, -1, 1), None, None, None


class AlignmentLoss(nn.Module):
    def forward(self, logits, targets, frames, labels):
        log_probs = logits.float().log_softmax(-1).transpose(0, 1)
        costs = AlignmentFunction.apply(log_probs, targets, frames, labels)
        return (costs / LABELS).mean()


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(BINS, DIM, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(DIM, DIM, 5, stride=2, padding=2),
            nn.GELU(),
        )
        layer = nn.TransformerEncoderLayer(
            DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, SYLLABLES)

    def forward(self, spectrum):
        x = self.front(spectrum).transpose(1, 2)
        return self.head(self.encoder(x))


def make_songs(count):
    generator = torch.Generator().manual_seed(31)
    spectra = torch.randn(count, BATCH, BINS, FRAMES, generator=generator)
    targets = torch.randint(1, SYLLABLES, (count, BATCH, LABELS), generator=generator)
    return spectra.to(device, torch.float16), targets.to(device)


def main():
    torch.manual_seed(31)
    torch.set_float32_matmul_precision("high")
    model, criterion = Listener().to(device), AlignmentLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=device == "cuda")
    spectra, targets = make_songs(12)
    frames = torch.full((BATCH,), FRAMES // 4, dtype=torch.long)
    labels = torch.full((BATCH,), LABELS, dtype=torch.long)
    total = torch.zeros((), device=device)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == WARMUP:
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        song = step % len(spectra)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(spectra[song].float())
        loss = criterion(logits, targets[song], frames, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - started
    print(f"mean {total.item() / STEPS:.4f}")
    print(f"loss {loss.item():.4f}")
    print(f"{elapsed / max(1, STEPS - WARMUP) * 1000:.2f} ms per step")


if __name__ == "__main__":
    main()
