"""Trains a graph network that predicts blocks of the Hamiltonian of silica glasses in an orbital basis."""

import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1200"))
CRYSTALS = int(os.environ.get("CRYSTALS", "4"))
ATOMS = int(os.environ.get("ATOMS", "14"))
NEIGHBOURS = int(os.environ.get("NEIGHBOURS", "4"))
WIDTH = int(os.environ.get("WIDTH", "192"))
LAYERS = int(os.environ.get("LAYERS", "6"))
GLASSES = int(os.environ.get("GLASSES", "200"))
ORDERS = 4
MAX_ORBITALS = 19
ORBITALS = {1: 5, 8: 13, 11: 14, 13: 13, 14: 13, 20: 19}

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.radial = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, ORDERS * WIDTH))
        self.bring = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(ORDERS))
        self.keep = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(ORDERS))
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(ORDERS))

    def forward(self, feats, radial, angular, sender, receiver):
        count = receiver.max().item() + 1 if VARIANT == "a" else feats[0].shape[0]
        weights = self.radial(radial).view(-1, ORDERS, WIDTH)
        out = []
        for order in range(ORDERS):
            message = self.bring[order](feats[order]).index_select(0, sender)
            message = message * weights[:, order] * angular[:, order : order + 1]
            total = torch.zeros(count, WIDTH, device=message.device).index_add_(0, receiver, message)
            out.append(feats[order] + self.norm[order](F.silu(self.keep[order](total))))
        return out


class OrbitalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.element = nn.Embedding(21, WIDTH)
        self.rounds = nn.ModuleList(Mixing() for _ in range(LAYERS))
        self.onsite = nn.Linear(ORDERS * WIDTH, MAX_ORBITALS * MAX_ORBITALS)
        self.offsite = nn.Linear(2 * ORDERS * WIDTH, MAX_ORBITALS * MAX_ORBITALS)

    def forward(self, z, distance, angular, sender, receiver):
        centres = torch.linspace(0, 6, 16, device=z.device)
        radial = torch.exp(-((distance[:, None] - centres) ** 2))
        feats = [self.element(z)] * ORDERS
        for mixing in self.rounds:
            feats = mixing(feats, radial, angular, sender, receiver)
        atoms = torch.cat(feats, 1)
        pairs = torch.cat([atoms.index_select(0, sender), atoms.index_select(0, receiver)], 1)
        return self.onsite(atoms), self.offsite(pairs)


def basis_share(z, sender, receiver, sizes):
    """Share of the padded blocks that belongs to orbitals the elements really have."""
    whole = (z.shape[0] + sender.shape[0]) * MAX_ORBITALS**2
    if VARIANT == "a":
        used = 0
        for atom in range(z.shape[0]):
            used += ORBITALS[z[atom].item()] ** 2
        for edge in range(sender.shape[0]):
            first, second = z[sender[edge]].item(), z[receiver[edge]].item()
            used += ORBITALS[first] * ORBITALS[second]
        return used / whole
    size = sizes[z]
    used = (size * size).sum() + (size.index_select(0, sender) * size.index_select(0, receiver)).sum()
    return used.double() / whole


def make_batch(glasses, mask_of, pick):
    z = glasses["z"].index_select(0, pick).view(-1)
    sender = (
        glasses["sender"].index_select(0, pick) + torch.arange(len(pick), device=device)[:, None] * ATOMS
    ).view(-1)
    receiver = torch.arange(len(pick) * ATOMS * NEIGHBOURS, device=device) // NEIGHBOURS
    distance = glasses["distance"].index_select(0, pick).view(-1)
    angular = torch.cos(distance[:, None] * torch.arange(ORDERS, device=device))
    mask = mask_of.index_select(0, z)
    first, second = mask.index_select(0, sender), mask.index_select(0, receiver)
    on_mask = (mask[:, :, None] * mask[:, None, :]).flatten(1)
    off_mask = (first[:, :, None] * second[:, None, :]).flatten(1)
    return z, sender, receiver, distance, angular, on_mask, off_mask


def main():
    torch.manual_seed(17)
    kinds = torch.tensor(sorted(ORBITALS), device=device)
    sizes = torch.tensor([ORBITALS.get(number, 0) for number in range(21)], device=device)
    mask_of = (torch.arange(MAX_ORBITALS, device=device) < sizes[:, None]).float()
    glasses = {
        "z": kinds[torch.randint(0, len(ORBITALS), (GLASSES, ATOMS), device=device)],
        "sender": torch.randint(0, ATOMS, (GLASSES, ATOMS * NEIGHBOURS), device=device),
        "distance": torch.rand(GLASSES, ATOMS * NEIGHBOURS, device=device) * 5 + 1,
    }
    net = OrbitalNet().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=device.type == "cuda")
    warm = min(10, STEPS // 2)
    started = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        pick = torch.randint(0, GLASSES, (CRYSTALS,), device=device)
        z, sender, receiver, distance, angular, on_mask, off_mask = make_batch(glasses, mask_of, pick)
        on, off = net(z, distance, angular, sender, receiver)
        on_true = torch.sin(z[:, None] * torch.linspace(0, 3, on.shape[1], device=device))
        off_true = torch.exp(-distance)[:, None].expand_as(off)
        error = ((on - on_true) * on_mask).abs().mean() + ((off - off_true) * off_mask).abs().mean()
        loss = error / basis_share(z, sender, receiver, sizes)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    spent = time.perf_counter() - started
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * spent / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
