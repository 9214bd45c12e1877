"""Trains a set of queries to find people; each box is given to the query that fits it best."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 120))
SIDE, WIDTH, QUERIES, LAYERS, PEOPLE, BATCH = 384, 256, 1500, 4, 24, 8


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.queries = nn.Parameter(torch.randn(QUERIES, WIDTH) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.score, self.box = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 4)

    def forward(self, images):
        memory = self.patches(images).flatten(2).transpose(1, 2)
        hidden = self.queries.expand(len(images), -1, -1)
        for layer in self.layers:
            hidden = layer(hidden, memory)
            yield self.score(hidden)[..., 0], self.box(hidden).sigmoid()


@torch.no_grad()
def match(scores, boxes, truth):
    """The best query for each box, by score and by distance."""
    found, wanted = boxes.flatten(0, 1), truth.flatten(0, 1)
    if VARIANT == "b":
        apart = torch.zeros(len(found), len(wanted), device=found.device)
        for part in range(4):
            apart += (found[:, None, part] - wanted[:, part]).abs()
    else:
        apart = torch.cdist(found, wanted, p=1)
    apart = apart.view(BATCH, QUERIES, BATCH, PEOPLE)
    own = torch.arange(BATCH, device=found.device)
    cost = 5 * apart[own, :, own] - 2 * scores.sigmoid()[..., None]
    return cost.argmin(1)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Detector().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.rand(8, BATCH, 3, SIDE, SIDE, device=device)
    people = torch.rand(8, BATCH, PEOPLE, 4, device=device)
    for step in range(STEPS):
        if step == 15:
            torch.cuda.synchronize()
            start = time.perf_counter()
        truth, loss = people[step % 8], 0.0
        with torch.autocast("cuda", torch.bfloat16):
            outputs = list(model(images[step % 8]))
        for scores, boxes in outputs:
            scores, boxes = scores.float(), boxes.float()
            best = match(scores, boxes, truth)
            wanted = torch.zeros_like(scores).scatter(1, best, 1.0)
            near = boxes.gather(1, best[..., None].expand(-1, -1, 4))
            loss = loss + F.binary_cross_entropy_with_logits(scores, wanted) + 5 * F.l1_loss(near, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 15):.2f} ms per step")


if __name__ == "__main__":
    main()
