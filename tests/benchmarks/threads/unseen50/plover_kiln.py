"""Train a sparse mixer on small pictures: the forward pass uses few weights, the gradients reach some more.

The weights of largest size in each layer make the forward mask; a wider mask says which weights learn.  All
weights of the wider mask are drawn towards zero, those outside the forward mask more strongly.
"""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 5000))
SMALL = os.environ.get("SMALL", "0") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

PICTURES = 256 if SMALL else 12000
SIDE, PATCH = (16, 4) if SMALL else (64, 8)
CLASSES = 10 if SMALL else 100
BATCH = 16 if SMALL else 128
WIDTH = 32 if SMALL else 768
HIDDEN = 64 if SMALL else 3072
LAYERS = 2 if SMALL else 12
PRINT_EVERY = 10 if SMALL else 200
VALIDATE_EVERY = 20 if SMALL else 1000
FORWARD_SPARSITY, BACKWARD_SPARSITY = 0.9, 0.8
DECAY = 1e-4
PLACES = (SIDE // PATCH) ** 2


class Pictures:
    """Pictures of classes that differ in a faint pattern, kept on the device as bytes."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        patterns = torch.randint(0, 60, (CLASSES, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(7))
        self.labels = torch.randint(0, CLASSES, (count,), generator=g)
        noise = torch.randint(0, 190, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=g)
        self.pixels = noise.to(device) + patterns.to(torch.uint8).to(device)[self.labels.to(device)]
        self.labels = self.labels.to(device)

    def batch(self, chosen):
        """Normalised pictures and their labels."""
        return self.pixels[chosen].float() / 127.5 - 1, self.labels[chosen]


class Block(nn.Module):
    """Mix the places, then the channels."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.place1, self.place2 = nn.Linear(PLACES, 2 * PLACES), nn.Linear(2 * PLACES, PLACES)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.channel1, self.channel2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        y = self.norm1(x).transpose(1, 2)
        x = x + self.mix(self.place2(F.gelu(self.place1(y))).transpose(1, 2))
        return x + self.channel2(F.gelu(self.channel1(self.norm2(x))))


class Mixer(nn.Module):
    """Patches, blocks and a head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


class MaskCreator:
    """Unstructured masks: a weight stays if its size is above the quantile of its layer."""

    def create(self, scores, sparsity):
        masks = []
        for score in scores:
            ordered, _ = torch.sort(score.flatten())
            threshold = ordered[round(sparsity * (score.numel() - 1))]
            masks.append((score > threshold).to(score.dtype))
        return masks


class SparseTrainer:
    """Holds the masks, swaps the masked weights in for a pass, and masks the gradients."""

    def __init__(self, model, refresh_every):
        self.weights = [m.weight for m in model.blocks.modules() if isinstance(m, nn.Linear)]
        self.refresh_every, self.creator = refresh_every, MaskCreator()
        self.forward_masks = self.backward_masks = self.penalties = None
        self.kept = [torch.empty_like(w) for w in self.weights]

    @torch.no_grad()
    def refresh(self):
        """Make both masks from the sizes of the weights."""
        scores = [w.abs() for w in self.weights]
        self.forward_masks = self.creator.create(scores, FORWARD_SPARSITY)
        self.backward_masks = self.creator.create(scores, BACKWARD_SPARSITY)
        near = torch._foreach_sub(self.backward_masks, self.forward_masks)
        torch._foreach_mul_(near, DECAY / (1 - FORWARD_SPARSITY))
        self.penalties = torch._foreach_add(near, torch._foreach_mul(self.forward_masks, DECAY))

    @torch.no_grad()
    def before_forward(self, step):
        """Keep the dense weights and leave only those of the forward mask."""
        if step % self.refresh_every == 0:
            self.refresh()
        torch._foreach_copy_(self.kept, self.weights)
        torch._foreach_mul_(self.weights, self.forward_masks)

    @torch.no_grad()
    def after_backward(self):
        """Put the dense weights back, add the decay and mask the gradients."""
        torch._foreach_copy_(self.weights, self.kept)
        grads = [w.grad for w in self.weights]
        torch._foreach_mul_(grads, self.backward_masks)
        torch._foreach_addcmul_(grads, self.weights, self.penalties)


class Averages:
    """Mean loss and accuracy, kept on the device until printed."""

    def __init__(self):
        self.sums, self.count = torch.zeros(2, device=device), 0

    def update(self, loss, logits, labels):
        right = (logits.argmax(1) == labels).float().mean()
        self.sums += torch.stack([loss.detach().float(), right])
        self.count += 1

    def show(self, title):
        loss, right = (self.sums / self.count).tolist()
        print(f"{title} loss {loss:.4f} accuracy {right:.4f}")
        self.sums.zero_()
        self.count = 0


def validate(model, pictures, sparse, step):
    """Accuracy of the sparse network on other pictures."""
    averages = Averages()
    model.eval()
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        torch._foreach_copy_(sparse.kept, sparse.weights)
        torch._foreach_mul_(sparse.weights, sparse.forward_masks)
        for start in range(0, len(pictures.labels), BATCH):
            x, labels = pictures.batch(slice(start, start + BATCH))
            logits = model(x)
            averages.update(F.cross_entropy(logits, labels), logits, labels)
        torch._foreach_copy_(sparse.weights, sparse.kept)
    model.train()
    averages.show(f"step {step} validation")


def main():
    train, other = Pictures(PICTURES, 1), Pictures(8 * BATCH, 2)
    model = Mixer().to(device)
    sparse = SparseTrainer(model, refresh_every=1 if VARIANT == "a" else 100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0, fused=device == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(STEPS, 1000), eta_min=5e-6)
    g = torch.Generator().manual_seed(3)
    averages = Averages()
    warm = min(10, STEPS // 2)
    begin = 0.0
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
        x, labels = train.batch(torch.randint(0, PICTURES, (BATCH,), generator=g).to(device))
        sparse.before_forward(step)
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(x)
            last = F.cross_entropy(logits, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        last.backward()
        sparse.after_backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        averages.update(last, logits, labels)
        if step % PRINT_EVERY == PRINT_EVERY - 1:
            averages.show(f"step {step + 1}")
        if step % VALIDATE_EVERY == VALIDATE_EVERY - 1:
            validate(model, other, sparse, step + 1)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
