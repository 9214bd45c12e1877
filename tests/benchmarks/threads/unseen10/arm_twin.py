"""A twin of a robot's arm: a network that maps its joints to markers on it, and moves as they do.

It is fitted to the markers' places and to how they change with each joint.
"""

import math
import os
import time

import torch
from torch import nn
from torch.autograd.functional import jacobian

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2900))
JOINTS, MARKERS, BATCH, POSES = 7, 12, 32, 20_000
LENGTHS = [0.34, 0.0, 0.4, 0.0, 0.39, 0.0, 0.13]
WAY = "reverse-mode"


def turn(angle, about_z):
    """Rotations by the angles of a batch, as 4 x 4 matrices."""
    c, s, o, i = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    rows = [c, -s, o, o, s, c, o, o, o, o, i, o] if about_z else [c, o, s, o, o, i, o, o, -s, o, c, o]
    return torch.stack([*rows, o, o, o, i], -1).view(*angle.shape, 4, 4)


def markers_of(angles):
    """Places of the markers on the real arm."""
    pose = torch.eye(4).expand(len(angles), 4, 4)
    places = []
    for joint, length in enumerate(LENGTHS):
        shift = torch.eye(4)
        shift[2, 3] = length
        pose = pose @ turn(angles[:, joint], joint % 2 == 0) @ shift
        places.append(pose[:, :3, 3] + 0.05 * pose[:, :3, 0])
    for side in (0.05, -0.05):
        for axis in (0, 1):
            places.append(pose[:, :3, 3] + side * pose[:, :3, axis])
    places.append(pose[:, :3, 3])
    return torch.cat(places, 1)


def record_poses():
    """Poses within the joints' limits with the markers and how they move."""
    angles = (torch.rand(POSES, JOINTS) - 0.5) * 1.4 * math.pi
    places = markers_of(angles)
    moves = torch.func.vmap(torch.func.jacfwd(lambda a: markers_of(a[None])[0]), chunk_size=2000)(angles)
    return angles, places, moves


class Twin(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        sizes = [2 * JOINTS] + [width] * depth
        layers = []
        for inputs, outputs in zip(sizes, sizes[1:], strict=False):
            layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        self.body = nn.Sequential(*layers, nn.Linear(width, 3 * MARKERS))

    def forward(self, angles):
        return self.body(torch.cat([angles.cos(), angles.sin()], 1))


def moves_of(model, angles):
    """How each coordinate changes with each joint, for all poses of the batch."""
    together = VARIANT == "b"
    moves = jacobian(lambda a: model(a).sum(0), angles, create_graph=True, vectorize=together, strategy=WAY)
    return moves.transpose(0, 1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(77)
    angles, places, moves = record_poses()
    model = Twin()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, POSES, (BATCH,))
        place_error = (model(angles[rows]) - places[rows]).square().mean()
        move_error = (moves_of(model, angles[rows]) - moves[rows]).square().mean()
        loss = place_error + 0.1 * move_error
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
