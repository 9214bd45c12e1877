"""Trains a network that finds joint angles with which a long crane arm reaches given points."""

import os
import time

import torch
import torch.nn as nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 2000))
BATCH = int(os.environ.get("BATCH", 4096))
JOINTS = int(os.environ.get("JOINTS", 14))
WIDTH = int(os.environ.get("WIDTH", 2048))
BLOCKS = int(os.environ.get("BLOCKS", 6))


class Joint:
    """One joint: an axis to turn about and the offset to the next joint."""

    def __init__(self, axis, offset):
        self.axis = axis
        self.offset = offset

    def rotation(self, angle):
        half = 0.5 * angle
        w = torch.cos(half)
        x, y, z = (torch.sin(half)[:, None] * self.axis).unbind(-1)
        rows = torch.stack(
            [
                1 - 2 * (y * y + z * z),
                2 * (x * y - z * w),
                2 * (x * z + y * w),
                2 * (x * y + z * w),
                1 - 2 * (x * x + z * z),
                2 * (y * z - x * w),
                2 * (x * z - y * w),
                2 * (y * z + x * w),
                1 - 2 * (x * x + y * y),
            ],
            dim=-1,
        )
        return rows.view(-1, 3, 3)


class CraneArm:
    def __init__(self, device):
        axes = nn.functional.normalize(torch.randn(JOINTS, 3), dim=-1).to(device)
        offsets = 0.3 * nn.functional.normalize(torch.randn(JOINTS, 3), dim=-1).to(device)
        self.joints = [Joint(a, o) for a, o in zip(axes, offsets)]
        self.axes = axes
        self.offsets = offsets
        zero = torch.zeros(JOINTS, device=device)
        ax, ay, az = axes.unbind(-1)
        self.cross = torch.stack([zero, -az, ay, az, zero, -ax, -ay, ax, zero], dim=-1).view(JOINTS, 3, 3)
        self.cross2 = self.cross.matmul(self.cross)
        self.eye = torch.eye(3, device=device)

    def rotations(self, angles):
        if VARIANT == "a":
            return [joint.rotation(angles[:, i]) for i, joint in enumerate(self.joints)]
        sin, cos = torch.sin(angles)[..., None, None], torch.cos(angles)[..., None, None]
        return (self.eye + sin * self.cross + (1 - cos) * self.cross2).unbind(1)

    def tip(self, angles):
        """Where the arm ends, and which way it points there."""
        turn, place = None, 0.0
        for rotation, joint in zip(self.rotations(angles), self.joints):
            turn = rotation if turn is None else torch.bmm(turn, rotation)
            place = place + turn.matmul(joint.offset)
        return place, turn[..., 2]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(nn.functional.silu(self.inner(self.norm(x))))


class Reach(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, WIDTH)
        self.blocks = nn.Sequential(*[Residual(WIDTH) for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, JOINTS)

    def forward(self, goal):
        return torch.tanh(self.head(self.blocks(self.embed(goal)))) * 3.1


def main():
    torch.manual_seed(3)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    arm = CraneArm(device)
    model = Reach().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    with torch.no_grad():
        place, point = arm.tip(6 * torch.rand(16 * BATCH, JOINTS, device=device) - 3)
        goals = torch.cat([place, point], dim=-1).view(16, BATCH, 6)

    def sync():
        if device.type == "cuda":
            torch.cuda.synchronize()

    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            sync()
            start = time.perf_counter()
        goal = goals[step % 16]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            angles = model(goal)
        place, point = arm.tip(angles.float())
        loss = (place - goal[:, :3]).square().mean() + 0.2 * (point - goal[:, 3:]).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    sync()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
