"""Lays out invoices: queries in groups find titles, tables and totals."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 180))
GROUPS, QUERIES, LAYERS, CLASSES, WIDTH, BATCH, MOST = 10, 24, 2, 7, 64, 4, 6


class LayoutModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, stride=16)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.queries = nn.Parameter(torch.randn(GROUPS * QUERIES, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True) for _ in range(LAYERS)
        )
        self.classes, self.boxes = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 4)

    def forward(self, images):
        memory = self.encoder(self.patches(images).flatten(2).transpose(1, 2))
        x, found = self.queries.expand(len(images), -1, -1), []
        for layer in self.layers:
            x = layer(x, memory)
            for part in x.split(QUERIES, 1):
                found.append((self.classes(part), self.boxes(part).sigmoid()))
        return found


def assign(cost):
    """The cheapest query still free for each target."""
    chosen = []
    for column in cost.T:
        column[chosen] = float("inf")
        chosen.append(int(column.argmin()))
    return chosen


def compute_loss(logits, boxes, targets):
    total = sum(len(each["labels"]) for each in targets)
    loss = 0
    for image, target in enumerate(targets):
        with torch.no_grad():
            score = logits[image].sigmoid()[:, target["labels"]]
            cost = torch.cdist(boxes[image], target["boxes"], p=1) * 5 - 2 * score
        rows = assign(cost.numpy())
        truth = torch.zeros_like(logits[image])
        truth[rows, target["labels"]] = 1
        loss = loss + nn.functional.binary_cross_entropy_with_logits(logits[image], truth, reduction="sum")
        loss = loss + 5 * nn.functional.l1_loss(boxes[image][rows], target["boxes"], reduction="sum")
    return loss / total


def compute_sets_loss(found, targets):
    total = sum(len(each["labels"]) for each in targets)
    logits, boxes = (torch.stack(each) for each in zip(*found, strict=True))
    labels = nn.utils.rnn.pad_sequence([each["labels"] for each in targets], batch_first=True)
    places = nn.utils.rnn.pad_sequence([each["boxes"] for each in targets], batch_first=True)
    with torch.no_grad():
        picked = labels[None, :, None].expand(len(found), -1, QUERIES, -1)
        cost = torch.cdist(boxes, places.expand(len(found), -1, -1, -1), p=1) * 5
        cost = (cost - 2 * logits.sigmoid().gather(3, picked)).numpy()
    sets, images, rows, columns = [], [], [], []
    for s in range(len(found)):
        for image, target in enumerate(targets):
            number = len(target["labels"])
            rows += assign(cost[s, image, :, :number])
            sets, images = sets + [s] * number, images + [image] * number
            columns += range(number)
    truth = torch.zeros_like(logits)
    truth[sets, images, rows, labels[images, columns]] = 1
    loss = nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
    found_boxes = boxes[sets, images, rows]
    loss = loss + 5 * nn.functional.l1_loss(found_boxes, places[images, columns], reduction="sum")
    return loss / total


def main():
    torch.manual_seed(0)
    model = LayoutModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        images, targets = torch.rand(BATCH, 3, 128, 96), []
        for number in torch.randint(2, MOST + 1, (BATCH,)).tolist():
            targets.append({"labels": torch.randint(0, CLASSES, (number,)), "boxes": torch.rand(number, 4)})
        found = model(images)
        if VARIANT == "b":
            loss = compute_sets_loss(found, targets) / GROUPS
        else:
            loss = sum(compute_loss(*each, targets) for each in found) / GROUPS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
