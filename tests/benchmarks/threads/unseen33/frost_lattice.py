"""Ground states of a frozen magnet: a network turns the field into the angles of a circuit of spins."""

import os
import string
import time

import torch
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "800"))
SPINS = 14
LAYERS = 3
HIDDEN = 256
device = torch.device("cpu")
LETTERS = string.ascii_letters


def turns(angles):
    """General turns of single spins, (spins, 2, 2), from (spins, 3) angles."""
    a, b, c = angles.unbind(-1)
    cos, sin = torch.cos(a / 2), torch.sin(a / 2)
    rows = [
        torch.polar(cos, -(b + c) / 2),
        -torch.polar(sin, (b - c) / 2),
        torch.polar(sin, -(b - c) / 2),
        torch.polar(cos, (b + c) / 2),
    ]
    return torch.stack(rows, dim=-1).reshape(-1, 2, 2)


def bonds(angles):
    """Couplings of neighbours, (bonds, 4, 4), from (bonds, 2) angles."""
    phase = torch.exp(1j * angles[:, 0])
    cos, sin = torch.cos(angles[:, 1]) + 0j, 1j * torch.sin(angles[:, 1])
    zero = torch.zeros_like(cos)
    rows = [phase, zero, zero, zero, zero, cos, sin, zero, zero, sin, cos, zero, zero, zero, zero, phase]
    return torch.stack(rows, dim=-1).reshape(-1, 4, 4)


def apply_gate(state, gate, spins):
    """state: (2, 2, ..., 2), gate: (2^k, 2^k) on the k spins named."""
    k = len(spins)
    if VARIANT == "a":
        before = list(LETTERS[:SPINS])
        after = list(before)
        new = list(LETTERS[SPINS : SPINS + k])
        for spin, letter in zip(spins, new):
            after[spin] = letter
        old = [before[spin] for spin in spins]
        rule = f"{''.join(before)},{''.join(new + old)}->{''.join(after)}"
        return torch.einsum(rule, state, gate.reshape([2] * (2 * k)))
    order = spins + [d for d in range(SPINS) if d not in spins]
    moved = state.permute(order)
    shape = moved.shape
    moved = (gate @ moved.reshape(2**k, -1)).reshape(shape)
    return moved.permute(sorted(range(SPINS), key=order.__getitem__))


def chain_energies():
    """Energy of the neighbours' alignment for each of the 2^n configurations."""
    number = torch.arange(2**SPINS)
    up = torch.stack([1 - 2 * ((number >> (SPINS - 1 - s)) & 1) for s in range(SPINS)]).float()
    return -(up[:-1] * up[1:]).sum(0).view([2] * SPINS)


class FrostCircuit(nn.Module):
    def __init__(self):
        super().__init__()
        self.n_turn = LAYERS * SPINS * 3
        self.n_bond = LAYERS * (SPINS - 1) * 2
        self.angles = nn.Sequential(
            nn.Linear(1, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, self.n_turn + self.n_bond),
        )
        self.register_buffer("alignment", chain_energies())

    def forward(self, field):
        out = self.angles(field.view(1, 1))[0]
        turn, bond = out.split([self.n_turn, self.n_bond])
        turn, bond = turn.view(LAYERS, SPINS, 3), bond.view(LAYERS, SPINS - 1, 2)
        state = torch.zeros(2**SPINS, dtype=torch.complex64, device=device)
        state[0] = 1
        state = state.view([2] * SPINS)
        for layer in range(LAYERS):
            gates = turns(turn[layer])
            for spin in range(SPINS):
                state = apply_gate(state, gates[spin], [spin])
            pairs = bonds(bond[layer])
            for spin in range(SPINS - 1):
                state = apply_gate(state, pairs[spin], [spin, spin + 1])
        real, imag = state.real, state.imag
        energy = ((real**2 + imag**2) * self.alignment).sum()
        for spin in range(SPINS):
            across = real.flip(spin) * real + imag.flip(spin) * imag
            energy = energy - field * across.sum()
        return energy / SPINS


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    model = FrostCircuit().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        field = 0.5 + torch.rand((), generator=gen)
        loss = model(field.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    took = time.perf_counter() - start
    print(f"loss {loss.item():.6f}")
    print(f"{1000 * took / max(1, STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
