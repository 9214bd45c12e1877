"""A detector with object queries: plain vision transformer, three decoder layers, matched losses."""

import os
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 260))
BATCH = int(os.environ.get("BATCH", 16))
SIDE, WIDTH, DEPTH = int(os.environ.get("SIDE", 640)), 1024, int(os.environ.get("DEPTH", 16))
QUERIES, CLASSES = 300, 80
device = torch.device(os.environ.get("DEVICE", "cuda"))


class Layer(nn.Module):
    def __init__(self, cross=False):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3 if cross else 2)])
        self.q, self.kv, self.out = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, memory=None):
        b, t, d = x.shape
        y = self.norms[0](x)
        source = y if memory is None else self.norms[2](memory)
        q = self.q(y).view(b, t, -1, 64).transpose(1, 2)
        k, v = self.kv(source).view(b, source.shape[1], 2, -1, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norms[1](x))


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.places = nn.Parameter(0.02 * torch.randn((SIDE // 16) ** 2, WIDTH))
        self.encoder = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.queries = nn.Parameter(0.02 * torch.randn(QUERIES, WIDTH))
        self.decoder = nn.ModuleList([Layer(cross=True) for _ in range(3)])
        self.classes, self.boxes = nn.Linear(WIDTH, CLASSES + 1), nn.Linear(WIDTH, 4)

    def forward(self, images):
        memory = self.encoder(self.patches(images).flatten(2).transpose(1, 2) + self.places)
        x, levels = self.queries.expand(len(images), -1, -1), []
        for layer in self.decoder:
            x = layer(x, memory)
            levels.append((self.classes(x).float(), self.boxes(x).float().sigmoid()))
        return levels


@torch.no_grad()
def match(logits, boxes, targets):
    """For each image the queries that its objects got, and the objects in their order."""
    labels, wanted = torch.cat([t["labels"] for t in targets]), torch.cat([t["boxes"] for t in targets])
    distance = (boxes.flatten(0, 1)[:, None] - wanted[None]).abs().sum(-1)
    cost = 5 * distance - logits.flatten(0, 1).softmax(-1)[:, labels]
    cost = cost.view(len(targets), QUERIES, -1).cpu().numpy()
    indices, first = [], 0
    for i, target in enumerate(targets):
        count = len(target["labels"])
        block = cost[i, :, first : first + count].copy()
        first += count
        queries = np.empty(count, dtype=np.int64)
        for j in range(count):
            queries[j] = block[:, j].argmin()
            block[queries[j]] = np.inf
        indices.append((torch.from_numpy(queries), torch.arange(count)))
    return indices


def level_loss(logits, boxes, targets):
    indices = match(logits, boxes, targets)
    image = torch.cat([torch.full_like(q, i) for i, (q, _) in enumerate(indices)])
    query = torch.cat([q for q, _ in indices])
    if VARIANT == "b":
        sizes = np.cumsum([0] + [len(q) for q, _ in indices[:-1]])
        object_ = torch.cat([o + int(n) for n, (_, o) in zip(sizes, indices, strict=True)])
        image, query, object_ = torch.stack([image, query, object_]).to(logits.device)
        labels = torch.cat([t["labels"] for t in targets])[object_]
        wanted = torch.cat([t["boxes"] for t in targets])[object_]
    else:
        labels = torch.cat([t["labels"][o] for t, (_, o) in zip(targets, indices, strict=True)])
        wanted = torch.cat([t["boxes"][o] for t, (_, o) in zip(targets, indices, strict=True)])
    classes = torch.full(logits.shape[:2], CLASSES, device=logits.device)
    classes[image, query] = labels
    loss = F.cross_entropy(logits.transpose(1, 2), classes)
    return loss + 5 * F.l1_loss(boxes[image, query], wanted)


def main():
    torch.manual_seed(0)
    model = Detector().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    images = torch.randn(2, BATCH, 3, SIDE, SIDE, device=device)
    counts = torch.randint(3, 12, (BATCH,)).tolist()
    targets = [
        {"labels": torch.randint(0, CLASSES, (n,)).to(device), "boxes": torch.rand(n, 4).to(device)}
        for n in counts
    ]
    warm = min(20, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            levels = model(images[step % 2])
        loss = sum(level_loss(logits, boxes, targets) for logits, boxes in levels)
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
