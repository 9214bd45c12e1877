"""Trains a detector whose decoder refines its boxes layer by layer, on made-up pictures of birds."""

import os
import time

import torch
from torch import nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 900))
SMALL = os.environ.get("SMALL") == "1"

device = "cuda" if torch.cuda.is_available() else "cpu"

SIDE = 64 if SMALL else 1152
BATCH = 2 if SMALL else 8
POOL = 4 if SMALL else 24
DEPTHS = (1, 1, 1, 1) if SMALL else (3, 4, 23, 3)
BASE = 8 if SMALL else 64
WIDTH = 32 if SMALL else 256
QUERIES = 20 if SMALL else 300
LAYERS = 2 if SMALL else 3
CLASSES = 5
MOST_BIRDS = 5
LOG_EVERY = 50

torch.backends.cudnn.benchmark = True


class Colony:
    """A pool of pictures, kept on the device as bytes, with the boxes and kinds of their birds."""

    def __init__(self):
        generator = torch.Generator().manual_seed(12)
        shape = (POOL, 3, SIDE, SIDE)
        self.pictures = torch.randint(0, 60, shape, generator=generator, dtype=torch.uint8)
        self.targets = []
        for picture in self.pictures:
            birds = int(torch.randint(2, MOST_BIRDS + 1, (1,), generator=generator))
            sizes = 0.08 + 0.12 * torch.rand(birds, 2, generator=generator)
            centres = 0.15 + 0.7 * torch.rand(birds, 2, generator=generator)
            kinds = torch.randint(0, CLASSES, (birds,), generator=generator)
            for kind, centre, size in zip(kinds, centres, sizes):
                (x0, y0), (x1, y1) = ((centre - size / 2) * SIDE).int(), ((centre + size / 2) * SIDE).int()
                picture[int(kind) % 3, y0:y1, x0:x1] = 120 + 25 * int(kind)
            boxes = torch.cat([centres, sizes], dim=1)
            self.targets.append({"boxes": boxes.to(device), "labels": kinds.to(device)})
        self.pictures = self.pictures.to(device, memory_format=torch.channels_last)
        self.generator = generator

    def draw(self):
        chosen = torch.randperm(POOL, generator=self.generator)[:BATCH]
        pictures = self.pictures.index_select(0, chosen.to(device))
        pictures = pictures.contiguous(memory_format=torch.channels_last).float() / 255
        return pictures, [self.targets[i] for i in chosen.tolist()]


class Squeeze(nn.Module):
    """The block of a deep residual network."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        out = 4 * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.conv3 = nn.Conv2d(channels, out, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.norm3 = nn.BatchNorm2d(out)
        self.skip = nn.Identity()
        if stride != 1 or channels_in != out:
            shortcut = nn.Conv2d(channels_in, out, 1, stride, bias=False)
            self.skip = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        out = F.relu(self.norm2(self.conv2(out)), inplace=True)
        return F.relu(self.norm3(self.conv3(out)) + self.skip(x), inplace=True)


class RefiningDetector(nn.Module):
    """A residual backbone and a decoder; each layer of it gives kinds and boxes of all queries."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, BASE, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(BASE), nn.ReLU(True)]
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        channels_in = BASE
        for stage, depth in enumerate(DEPTHS):
            for block in range(depth):
                layers.append(Squeeze(channels_in, BASE * 2**stage, 2 if stage and not block else 1))
                channels_in = 4 * BASE * 2**stage
        self.backbone = nn.Sequential(*layers)
        self.reduce = nn.Conv2d(channels_in, WIDTH, 1)
        self.queries = nn.Parameter(torch.randn(QUERIES, WIDTH) * 0.1)
        self.anchors = nn.Parameter(torch.randn(QUERIES, 4))
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.kinds = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(LAYERS))
        self.moves = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(LAYERS))

    def forward(self, pictures):
        memory = self.reduce(self.backbone(pictures)).flatten(2).transpose(1, 2)
        x = self.queries.expand(len(pictures), -1, -1)
        boxes = self.anchors.expand(len(pictures), -1, -1)
        outputs = []
        for layer, kind, move in zip(self.decoder, self.kinds, self.moves):
            x = layer(x, memory)
            boxes = boxes + move(x).float()
            outputs.append({"logits": kind(x).float(), "boxes": boxes.sigmoid()})
            boxes = boxes.detach()
        return outputs


class RefiningCriterion(nn.Module):
    """Kinds by the matches of each layer; boxes by the union of the matches of all layers."""

    @torch.no_grad()
    def match(self, output, targets):
        """For each bird of each picture the query that costs least."""
        pairs = []
        for logits, boxes, target in zip(output["logits"], output["boxes"], targets):
            cost = 5 * torch.cdist(boxes, target["boxes"], p=1) - 2 * logits.sigmoid()[:, target["labels"]]
            pairs.append((cost.argmin(dim=0), torch.arange(len(target["labels"]), device=device)))
        return pairs

    def union_of_matches(self, matches):
        """Pairs of query and bird that any layer chose, the most frequent first, each query once."""
        results = []
        for pairs in zip(*matches):
            both = torch.cat([torch.stack(pair, dim=1) for pair in pairs])
            unique, counts = torch.unique(both, return_counts=True, dim=0)
            unique = unique[torch.argsort(counts, descending=True)]
            row_to_column = {}
            if VARIANT == "a":
                for pair in unique:
                    row, column = pair[0].item(), pair[1].item()
                    if row not in row_to_column:
                        row_to_column[row] = column
            else:
                for row, column in unique.tolist():
                    if row not in row_to_column:
                        row_to_column[row] = column
            rows = torch.tensor(list(row_to_column.keys()), device=device)
            results.append((rows, torch.tensor(list(row_to_column.values()), device=device)))
        return results

    def forward(self, outputs, targets):
        matches = [self.match(output, targets) for output in outputs]
        union = self.union_of_matches(matches)
        owners = torch.cat([torch.full_like(rows, i) for i, (rows, _) in enumerate(union)])
        rows = torch.cat([rows for rows, _ in union])
        truth = torch.cat([target["boxes"][columns] for target, (_, columns) in zip(targets, union)])
        birds = sum(len(target["labels"]) for target in targets)
        total = 0.0
        for output, pairs in zip(outputs, matches):
            wanted = torch.zeros_like(output["logits"])
            for i, ((chosen, columns), target) in enumerate(zip(pairs, targets)):
                wanted[i, chosen, target["labels"][columns]] = 1.0
            weight = torch.where(wanted > 0, 1.0, 0.25 * output["logits"].detach().sigmoid().square())
            scores = F.binary_cross_entropy_with_logits(output["logits"], wanted, weight, reduction="sum")
            boxes = F.l1_loss(output["boxes"][owners, rows], truth, reduction="sum")
            total = total + scores / birds + 5 * boxes / len(rows)
        return total


def main():
    torch.manual_seed(0)
    colony, criterion = Colony(), RefiningCriterion()
    model = RefiningDetector().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4, fused=device == "cuda")
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        pictures, targets = colony.draw()
        with torch.autocast(device, dtype=torch.bfloat16):
            outputs = model(pictures)
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.detach()
        if (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: loss {last.item():.4f}")
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
