"""A detector in two stages: boxes are proposed, thinned out, and looked at again."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 150))
SIDE, CLASSES, BATCH, CELLS, TOP, OVERLAP = 128, 8, 4, 16, 160, 0.5


def box_iou(a, b):
    left, right = torch.maximum(a[:, None, :2], b[:, :2]), torch.minimum(a[:, None, 2:], b[:, 2:])
    inter = (right - left).clamp(min=0).prod(2)
    areas = [(x[:, 2:] - x[:, :2]).prod(1) for x in (a, b)]
    return inter / (areas[0][:, None] + areas[1] - inter)


def nms(boxes, scores, threshold):
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        keep.append(order[0].item())
        overlap = box_iou(boxes[order[:1]], boxes[order[1:]])[0]
        order = order[1:][overlap <= threshold]
    return keep


def thin_out(boxes, scores, labels):
    if VARIANT == "b":
        order = scores.argsort(descending=True)
        apart = boxes[order] + 2 * SIDE * labels[order, None]
        overlap = box_iou(apart, apart).triu(1) > OVERLAP
        keep = torch.ones(len(order), dtype=torch.bool)
        while True:
            again = ~(overlap & keep[:, None]).any(0)
            if torch.equal(again, keep):
                return order[keep].sort().values
            keep = again
    kept = []
    for label in labels.unique():
        where = (labels == label).nonzero()[:, 0]
        kept += [where[i] for i in nms(boxes[where], scores[where], OVERLAP)]
    return torch.stack(kept).sort().values


class Detector(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU(), nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU(),
        )  # fmt: skip
        self.propose = nn.Conv2d(2 * width, 4 + CLASSES, 1)
        self.refine = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        ys, xs = torch.meshgrid(torch.arange(CELLS), torch.arange(CELLS), indexing="ij")
        self.centres = (torch.stack([xs, ys], -1).flatten(0, 1) + 0.5) * SIDE / CELLS

    def forward(self, images):
        features = self.stem(images)
        found = self.propose(features).flatten(2).transpose(1, 2)
        features, outputs = features.flatten(2).transpose(1, 2), []
        for image in range(len(images)):
            middle = self.centres + 8 * found[image, :, :2].tanh()
            size = 10 * torch.exp(found[image, :, 2:4].clamp(-1, 1))
            scores, labels = found[image, :, 4:].sigmoid().max(1)
            best = scores.topk(TOP).indices
            boxes = torch.cat([middle - size, middle + size], 1)
            with torch.no_grad():
                keep = best[thin_out(boxes[best], scores[best], labels[best])]
            outputs.append((keep, boxes[keep], self.refine(features[image, keep])))
        return outputs


def main():
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(32, 3, SIDE, SIDE)
    truth = torch.randint(0, CLASSES, (32, CELLS * CELLS))
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        picked = torch.randint(0, len(images), (BATCH,))
        loss = 0.0
        for i, (keep, boxes, scores) in zip(picked, model(images[picked]), strict=True):
            loss = loss + F.cross_entropy(scores, truth[i, keep]) + 1e-4 * boxes.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
