"""Joint rotations of trotting horses, regressed from keypoint tracks by a temporal transformer."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 800))
BATCH = int(os.environ.get("BATCH", 32))
FRAMES = int(os.environ.get("FRAMES", 1))
WIDTH = int(os.environ.get("WIDTH", 1024))
DEPTH = int(os.environ.get("DEPTH", 12))
JOINTS = 18
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_rotation(raw):
    """The rotation nearest to where nine free numbers point, of each joint."""
    where = raw.device
    if VARIANT == "b":
        raw = raw.cpu()
    q, r = torch.linalg.qr(raw + 2 * torch.eye(3, device=raw.device))
    signs = torch.diagonal(r, dim1=-2, dim2=-1).sign()
    return (q * signs[..., None, :]).to(where)


class TrackNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Linear(64 * JOINTS * 2, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, FRAMES * JOINTS * 9)
        nn.init.normal_(self.out.weight, std=0.01)

    def forward(self, tracks):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            y = self.body(self.inward(tracks.transpose(1, 2).flatten(2)))
            raw = self.out(y.mean(1))
        return to_rotation(raw.float().view(-1, FRAMES, JOINTS, 3, 3))


def geodesic(predicted, wanted):
    cosine = ((predicted * wanted).sum((-1, -2)) - 1) / 2
    return torch.acos(cosine.clamp(-0.999, 0.999)).mean()


def bones(rotations, lengths, axis):
    """Ends of the bones of a chain."""
    return (rotations @ (lengths[:, None] * axis)[..., None])[..., 0].cumsum(-2)


def gallops(count):
    phases = 6.28 * torch.rand(count, 1, 1)
    angles = torch.sin(phases + torch.arange(FRAMES).view(1, -1, 1) * 0.4 + torch.arange(JOINTS) * 0.3)
    rotations = torch.zeros(count, FRAMES, JOINTS, 3, 3)
    rotations[..., 0, 0], rotations[..., 1, 1] = angles.cos(), angles.cos()
    rotations[..., 0, 1], rotations[..., 1, 0] = -angles.sin(), angles.sin()
    rotations[..., 2, 2] = 1
    tracks = torch.randn(count, 64, 128, JOINTS, 2) * 0.1 + phases[..., None, None].sin()
    return tracks, rotations


def main():
    torch.manual_seed(7)
    model = TrackNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    lengths = torch.linspace(0.2, 0.6, JOINTS, device=device)
    axis = torch.tensor([0.0, 1.0, 0.0], device=device)
    batches = [tuple(x.to(device) for x in gallops(BATCH)) for _ in range(4)]
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        tracks, wanted = batches[step % 4]
        predicted = model(tracks)
        loss = geodesic(predicted, wanted)
        loss = loss + F.mse_loss(bones(predicted, lengths, axis), bones(wanted, lengths, axis))
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
