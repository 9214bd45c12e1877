"""A robot arm in an orchard that writes its next moves as text, after a picture and an order."""

import os
import re
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 130))
BATCH = int(os.environ.get("BATCH", 16))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 20))
HIGH, WIDE, SIDE, PATCH, LENGTH, WORDS = 480, 640, 224, 14, 80, 4000
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FRUITS = ["apple", "pear", "plum", "cherry", "quince", "peach"]
WAYS = ["gently", "with care", "and put it into the left basket", "and put it into the crate behind you"]


class Processor:
    """Makes what the model reads of texts and of pictures."""

    def __init__(self):
        self.known = {"<pad>": 0}
        self.mean = torch.tensor([0.48, 0.46, 0.41]).view(1, 3, 1, 1)
        self.spread = torch.tensor([0.27, 0.26, 0.28]).view(1, 3, 1, 1)

    def tokens(self, text):
        return [self.known.setdefault(w, len(self.known) % WORDS) for w in re.findall(r"\w|[^\w\s]", text)]

    def patches(self, picture):
        x = F.interpolate(picture[None].float() / 255, (SIDE, SIDE), mode="bicubic", antialias=True)
        x = (x.clamp(0, 1) - self.mean) / self.spread
        return F.unfold(x, PATCH, stride=PATCH).transpose(1, 2).contiguous()

    def __call__(self, texts, pictures):
        rows = [self.tokens(text)[:LENGTH] for text in texts]
        mask = torch.tensor([[1] * len(r) + [0] * (LENGTH - len(r)) for r in rows])
        words = torch.tensor([r + [0] * (LENGTH - len(r)) for r in rows])
        return {"words": words, "mask": mask, "patches": torch.cat([self.patches(p) for p in pictures])}


class ArmModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.processor = Processor()
        self.see, self.read = nn.Linear(3 * PATCH * PATCH, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.place = nn.Embedding((SIDE // PATCH) ** 2 + LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            max(1, WIDTH // 64),
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.write = nn.Linear(WIDTH, WORDS)

    def lengths(self, orders, pictures):
        if VARIANT == "b":
            return torch.tensor([len(self.processor.tokens(o)[:LENGTH]) for o in orders])
        return torch.stack([self.processor([o], [p])["mask"].sum() for o, p in zip(orders, pictures)])

    def forward(self, orders, moves, pictures):
        batch = self.processor([o + m for o, m in zip(orders, moves)], pictures)
        known = self.lengths(orders, pictures).unsqueeze(1)
        at = torch.arange(LENGTH)
        goal = batch["words"].masked_fill((at < known) | (batch["mask"] == 0), -1).to(device)
        words, patches = batch["words"].to(device), batch["patches"].to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            x = torch.cat([self.see(patches), self.read(words)], 1) + self.place.weight
            scores = self.write(self.layers(x)[:, -LENGTH:])
        return F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), goal[:, 1:].flatten(), ignore_index=-1)


def days(count):
    pictures = list(torch.randint(0, 256, (count, 3, HIGH, WIDE), dtype=torch.uint8))
    picks = torch.randint(0, 1000, (count, 10)).tolist()
    orders = [f"Pick the {FRUITS[p[0] % 6]} {WAYS[p[1] % 4]}. " for p in picks]
    return orders, [" ".join(str(v) for v in p[2:8]) for p in picks], pictures


def main():
    torch.manual_seed(61)
    model = ArmModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=device.type == "cuda")
    data = days(8 * BATCH)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        loss = model(*(part[step % 8 * BATCH : (step % 8 + 1) * BATCH] for part in data))
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
