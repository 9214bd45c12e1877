"""Body parts of mice seen from above, with heatmaps and offsets."""

import os
import time

import numpy as np
import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
SIZE, STRIDE, PARTS, ANIMALS, BATCH = 96, 4, 12, 4, 8
SIDE = SIZE // STRIDE


class HeatmapTargets:
    """Discs around the body parts, and the way from each pixel of a disc to the part."""

    def __init__(self, radius=10.0, locref_std=7.2):
        self.radius, self.std = radius, locref_std
        centres = np.arange(SIDE) * STRIDE + STRIDE / 2
        self.grid = np.stack(np.meshgrid(centres, centres, indexing="xy"), 2)

    def __call__(self, keypoints):
        heatmap = np.zeros((len(keypoints), PARTS, SIDE, SIDE), np.float32)
        locref = np.zeros((len(keypoints), 2 * PARTS, SIDE, SIDE), np.float32)
        for b in range(len(keypoints)):
            for animal in keypoints[b]:
                for j, point in enumerate(animal):
                    way = point - self.grid
                    near = np.linalg.norm(way, axis=2) <= self.radius
                    heatmap[b, j][near] = 1
                    locref[b, 2 * j][near] = way[near][:, 0] / self.std
                    locref[b, 2 * j + 1][near] = way[near][:, 1] / self.std
        return torch.from_numpy(heatmap), torch.from_numpy(locref)


class HeatmapBatch(HeatmapTargets):
    def __call__(self, keypoints):
        points = torch.from_numpy(keypoints).float()
        grid = torch.from_numpy(self.grid).float()
        heatmap = torch.zeros(len(points), PARTS, SIDE, SIDE)
        locref = torch.zeros(len(points), PARTS, 2, SIDE, SIDE)
        for animal in points.unbind(1):
            way = (animal[:, :, None, None] - grid).permute(0, 1, 4, 2, 3)
            near = way.norm(dim=2) <= self.radius
            heatmap[near] = 1
            locref = torch.where(near[:, :, None], way / self.std, locref)
        return heatmap, locref.flatten(1, 2)


class PoseModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 20, 3, 2, 1), nn.BatchNorm2d(20), nn.ReLU(),
            nn.Conv2d(20, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 40, 3, 1, 1), nn.BatchNorm2d(40), nn.ReLU(),
        )  # fmt: skip
        self.heatmap, self.locref = nn.Conv2d(40, PARTS, 1), nn.Conv2d(40, 2 * PARTS, 1)
        self.targets = HeatmapTargets() if VARIANT == "a" else HeatmapBatch()

    def forward(self, images):
        features = self.backbone(images)
        return {"heatmap": self.heatmap(features), "locref": self.locref(features)}

    def get_target(self, annotations):
        heatmap, locref = self.targets(annotations)
        return {"heatmap": heatmap, "locref": locref}


class PoseRunner:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(self, batch):
        outputs = self.model(batch["image"])
        target = self.model.get_target(batch["annotations"])
        shown = target["heatmap"].repeat_interleave(2, 1)
        locref = nn.functional.huber_loss(outputs["locref"] * shown, target["locref"])
        loss = nn.functional.binary_cross_entropy_with_logits(outputs["heatmap"], target["heatmap"])
        loss = loss + 0.05 * locref
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    runner = PoseRunner(PoseModel())
    images = torch.rand(64, 3, SIZE, SIZE)
    places = rng.random((64, ANIMALS, PARTS, 2)) * SIZE
    for step in range(STEPS):
        if step == 5:
            start = time.perf_counter()
        rows = rng.integers(0, len(images), BATCH)
        loss = runner.step({"image": images[rows], "annotations": places[rows]})
    print(f"loss {loss:.4f}")
    print(f"{1000 * (time.perf_counter() - start) / (STEPS - 5):.2f} ms per step")


if __name__ == "__main__":
    main()
