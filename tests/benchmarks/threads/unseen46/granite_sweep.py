"""Vehicles in laser scans: pillars, a bird's-eye backbone and a head for centres and boxes."""

import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 6000))
SMALL = os.environ.get("SMALL") == "1"
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)

GRID, PILLARS, POINTS = (32, 60, 4) if SMALL else (256, 6_000, 20)
BATCH, FRAMES = (3, 6) if SMALL else (32, 64)
FEATURES, OBJECTS, CLASSES = 64, 24, 3
STRIDE = 4
CELL = 0.4
WIDTHS = (16, 24) if SMALL else (64, 128)


class PillarFeatures(nn.Module):
    """The largest feature over the points of each pillar."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(9, FEATURES, bias=False)
        self.norm = nn.BatchNorm1d(FEATURES)

    def forward(self, batch_dict):
        points, counts, coords = batch_dict["points"], batch_dict["counts"], batch_dict["coords"]
        inside = (torch.arange(POINTS, device=points.device) < counts[:, None]).unsqueeze(-1)
        mean = (points[..., :3] * inside).sum(1, keepdim=True) / counts[:, None, None]
        centre = (coords[:, 2:].flip(1).float() + 0.5) * CELL
        offset = points[..., :2] - centre.unsqueeze(1)
        decorated = torch.cat([points, points[..., :3] - mean, offset], -1) * inside
        x = self.linear(decorated)
        x = F.relu(self.norm(x.flatten(0, 1)).view_as(x))
        batch_dict["pillar_features"] = x.max(1).values
        return batch_dict


class PillarScatter(nn.Module):
    """Puts the features of the pillars where they belong on the ground plane."""

    def __init__(self, features, nx, ny):
        super().__init__()
        self.features, self.nx, self.ny = features, nx, ny

    def forward(self, batch_dict):
        pillar_features, coords = batch_dict["pillar_features"], batch_dict["coords"]
        batch_size = coords[:, 0].max().int().item() + 1
        if VARIANT == "a":
            canvas = self.first_form(pillar_features, coords, batch_size)
        else:
            canvas = self.second_form(pillar_features, coords, batch_size)
        batch_dict["spatial_features"] = canvas.view(batch_size, self.features, self.ny, self.nx)
        return batch_dict

    def first_form(self, pillar_features, coords, batch_size):
        canvases = []
        for batch_idx in range(batch_size):
            spatial_feature = torch.zeros(
                self.features, self.nx * self.ny, dtype=pillar_features.dtype, device=pillar_features.device
            )
            batch_mask = coords[:, 0] == batch_idx
            this_coords = coords[batch_mask, :]
            indices = this_coords[:, 1] + this_coords[:, 2] * self.nx + this_coords[:, 3]
            indices = indices.type(torch.long)
            pillars = pillar_features[batch_mask, :]
            spatial_feature[:, indices] = pillars.t()
            canvases.append(spatial_feature)
        return torch.stack(canvases, 0)

    def second_form(self, pillar_features, coords, batch_size):
        cells = self.nx * self.ny
        canvas = torch.zeros(
            batch_size * cells, self.features, dtype=pillar_features.dtype, device=pillar_features.device
        )
        indices = coords[:, 0] * cells + coords[:, 1] + coords[:, 2] * self.nx + coords[:, 3]
        canvas[indices.long()] = pillar_features
        return canvas.view(batch_size, cells, self.features).transpose(1, 2).contiguous()


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Backbone(nn.Module):
    """Two stages; the coarser one is made larger again and added."""

    def __init__(self):
        super().__init__()
        first, second = WIDTHS
        self.stage1 = nn.Sequential(conv(FEATURES, first, 2), conv(first, first, 2), conv(first, first))
        self.stage2 = nn.Sequential(conv(first, second, 2), conv(second, second), conv(second, second))
        self.up = nn.ConvTranspose2d(second, first, 2, stride=2)

    def forward(self, x):
        fine = self.stage1(x)
        return fine + self.up(self.stage2(fine))


class CentreDetector(nn.Module):
    """Pillars, scatter, backbone and head."""

    def __init__(self):
        super().__init__()
        self.features = PillarFeatures()
        self.scatter = PillarScatter(FEATURES, GRID, GRID)
        self.backbone = Backbone()
        self.shared = conv(WIDTHS[0], WIDTHS[0])
        self.heat = nn.Conv2d(WIDTHS[0], CLASSES, 1)
        self.box = nn.Conv2d(WIDTHS[0], 8, 1)
        nn.init.constant_(self.heat.bias, -2.2)

    def forward(self, batch_dict):
        batch_dict = self.scatter(self.features(batch_dict))
        x = self.shared(self.backbone(batch_dict["spatial_features"]))
        return self.heat(x).float(), self.box(x).float()


class Scans:
    """Voxelised frames with their targets, on the device; each frame is full of pillars."""

    def __init__(self):
        generator = torch.Generator(device=device).manual_seed(9)
        new = {"generator": generator, "device": device}
        cells = torch.rand(FRAMES, GRID * GRID, **new).argsort(1)[:, :PILLARS]
        self.coords = torch.stack([torch.zeros_like(cells), cells // GRID, cells % GRID], -1).int()
        corner = torch.stack([cells % GRID, cells // GRID], -1).float() * CELL
        points = torch.rand(FRAMES, PILLARS, POINTS, 4, **new)
        points[..., :2] = points[..., :2] * CELL + corner.unsqueeze(2)
        self.points = points
        self.counts = torch.randint(1, POINTS + 1, (FRAMES, PILLARS), **new)
        side = GRID // STRIDE
        self.places = torch.randint(side * side, (FRAMES, OBJECTS), **new)
        kinds = torch.randint(CLASSES, (FRAMES, OBJECTS), **new)
        heat = torch.zeros(FRAMES, CLASSES * side * side, device=device)
        heat.scatter_(1, kinds * side * side + self.places, 1.0)
        heat = F.max_pool2d(heat.view(FRAMES, CLASSES, side, side), 3, 1, 1) * 0.6 + heat.view(
            FRAMES, CLASSES, side, side
        )
        self.heat = heat.clamp(max=1.0)
        self.boxes = torch.randn(FRAMES, OBJECTS, 8, **new)
        self.order = torch.Generator().manual_seed(10)

    def batch(self):
        rows = torch.randint(FRAMES, (BATCH,), generator=self.order).to(device)
        frame = torch.arange(BATCH, dtype=torch.int32, device=device).repeat_interleave(PILLARS)
        coords = torch.cat([frame.unsqueeze(1), self.coords[rows].flatten(0, 1)], 1)
        inputs = {
            "points": self.points[rows].flatten(0, 1),
            "counts": self.counts[rows].flatten(0, 1),
            "coords": coords,
        }
        return inputs, (self.heat[rows], self.places[rows], self.boxes[rows])


def detection_loss(heat, box, targets):
    """Penalty-reduced focal loss of the centres and L1 of the boxes."""
    wanted, places, boxes = targets
    score = torch.sigmoid(heat).clamp(1e-4, 1 - 1e-4)
    positive = wanted.eq(1).float()
    at_centre = torch.log(score) * (1 - score).square() * positive
    elsewhere = torch.log(1 - score) * score.square() * (1 - wanted).pow(4) * (1 - positive)
    heat_loss = -(at_centre + elsewhere).sum() / positive.sum().clamp(min=1)
    found = box.flatten(2).gather(2, places.unsqueeze(1).expand(-1, 8, -1)).transpose(1, 2)
    return heat_loss + 0.25 * F.l1_loss(found, boxes), heat_loss


def main():
    model = CentreDetector().to(device)
    scans = Scans()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=max(STEPS, 2) + 1)
    model.train()
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        inputs, targets = scans.batch()
        with torch.autocast(device, dtype=torch.bfloat16):
            heat, box = model(inputs)
        loss, heat_loss = detection_loss(heat, box, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        last = loss.detach()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {last.item():.4f} heat {heat_loss.item():.4f}", flush=True)
    if device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {last.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
