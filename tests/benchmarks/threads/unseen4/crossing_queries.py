"""Finds walkers at crossings with a transformer that predicts a set of boxes."""

import os
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 220))
QUERIES, CLASSES, WIDTH, BATCH = 100, 6, 128, 4


class SetDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.ReLU(),
            nn.Conv2d(48, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, WIDTH, 3, 2, 1),
        )  # fmt: skip
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.queries = nn.Parameter(torch.randn(QUERIES, WIDTH))
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 256, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 2)
        self.classes, self.boxes = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 4)

    def forward(self, images):
        memory = self.encoder(self.backbone(images).flatten(2).transpose(1, 2))
        x = self.decoder(self.queries.expand(len(images), -1, -1), memory)
        return self.classes(x), self.boxes(x).sigmoid()


class Matcher:
    @torch.no_grad()
    def costs(self, logits, boxes, targets):
        """For each image, the cost of each query for each of its walkers."""
        numbers = [len(each["labels"]) for each in targets]
        if VARIANT == "b":
            labels = nn.utils.rnn.pad_sequence([each["labels"] for each in targets], batch_first=True)
            places = nn.utils.rnn.pad_sequence([each["boxes"] for each in targets], batch_first=True)
            score = logits.sigmoid().gather(2, labels[:, None].expand(-1, QUERIES, -1))
            cost = 5 * torch.cdist(boxes, places, p=1) - 2 * score
            return [each[:, :number] for each, number in zip(cost, numbers, strict=True)]
        labels = torch.cat([each["labels"] for each in targets])
        places = torch.cat([each["boxes"] for each in targets])
        score = logits.flatten(0, 1).sigmoid()[:, labels]
        cost = 5 * torch.cdist(boxes.flatten(0, 1), places, p=1) - 2 * score
        parts = cost.view(len(logits), QUERIES, -1).split(numbers, 2)
        return [each[image] for image, each in enumerate(parts)]

    def __call__(self, logits, boxes, targets):
        rows, images, columns = [], [], []
        for image, cost in enumerate(self.costs(logits, boxes, targets)):
            chosen = []
            for column in cost.numpy().T.copy():
                column[chosen] = float("inf")
                chosen.append(int(column.argmin()))
            rows += chosen
            images += [image] * len(chosen)
            columns += range(len(chosen))
        return images, rows


def set_loss(matcher, logits, boxes, targets):
    images, rows = matcher(logits, boxes, targets)
    labels = torch.cat([each["labels"] for each in targets])
    truth = torch.zeros_like(logits)
    truth[images, rows, labels] = 1
    loss = nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="sum")
    places = torch.cat([each["boxes"] for each in targets])
    loss = loss + 5 * nn.functional.l1_loss(boxes[images, rows], places, reduction="sum")
    return loss / len(labels)


def main():
    torch.manual_seed(0)
    model, matcher = SetDetector(), Matcher()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        images, targets = torch.rand(BATCH, 3, 96, 128), []
        for number in torch.randint(1, 8, (BATCH,)).tolist():
            targets.append({"labels": torch.randint(0, CLASSES, (number,)), "boxes": torch.rand(number, 4)})
        loss = set_loss(matcher, *model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
