"""Learn a control policy for a kiln by rolling the closed loop out over a horizon."""

import os
import time

import torch
import torch.nn as nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "400"))
HORIZON = int(os.environ.get("HORIZON", "128"))
BATCH = int(os.environ.get("BATCH", "6144"))
STATES = int(os.environ.get("STATES", "48"))
INPUTS = int(os.environ.get("INPUTS", "16"))
HIDDEN = int(os.environ.get("HIDDEN", "128"))

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Node(nn.Module):
    def __init__(self, block, input_keys, output_keys):
        super().__init__()
        self.block, self.input_keys, self.output_keys = block, input_keys, output_keys

    def forward(self, data):
        output = self.block(*[data[k] for k in self.input_keys])
        output = output if isinstance(output, tuple) else (output,)
        return dict(zip(self.output_keys, output))


class KilnPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * STATES, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, INPUTS))

    def forward(self, x, r):
        return torch.tanh(self.net(torch.cat([x, r], dim=-1)))


class KilnModel(nn.Module):
    def __init__(self):
        super().__init__()
        gen = torch.Generator().manual_seed(1)
        drift = 0.01 * torch.randn(STATES, STATES, generator=gen)
        self.register_buffer("A", 0.95 * torch.eye(STATES) + drift)
        self.register_buffer("B", 0.2 * torch.randn(INPUTS, STATES, generator=gen))

    def forward(self, x, u):
        return torch.tanh(x @ self.A + u @ self.B)


class System(nn.Module):
    def __init__(self, nodes, nsteps):
        super().__init__()
        self.nodes, self.nsteps = nn.ModuleList(nodes), nsteps

    def cat(self, data3d, data2d):
        for k in data2d:
            if k not in data3d:
                data3d[k] = data2d[k][:, None, :]
            else:
                data3d[k] = torch.cat([data3d[k], data2d[k][:, None, :]], dim=1)
        return data3d

    def forward(self, data):
        data = dict(data)
        for i in range(self.nsteps):
            for node in self.nodes:
                indata = {k: data[k][:, i] for k in node.input_keys}
                data = self.cat(data, node(indata))
        return data


class RolloutBuffer:
    def __init__(self, given=None):
        self.given = [] if given is None else list(given.unbind(1))

    def __getitem__(self, i):
        return self.given[i]

    def append(self, value):
        self.given.append(value)

    def collapse(self):
        return torch.stack(self.given, dim=1)


class BufferedSystem(System):
    def forward(self, data):
        buffers = {k: RolloutBuffer(v) for k, v in data.items()}
        for i in range(self.nsteps):
            for node in self.nodes:
                indata = {k: buffers[k][i] for k in node.input_keys}
                for k, value in node(indata).items():
                    buffers.setdefault(k, RolloutBuffer()).append(value)
        return {k: b.collapse() for k, b in buffers.items()}


def main():
    torch.manual_seed(0)
    nodes = [Node(KilnPolicy(), ["x", "r"], ["u"]), Node(KilnModel(), ["x", "u"], ["x"])]
    system = (System if VARIANT == "a" else BufferedSystem)(nodes, HORIZON).to(device)
    opt = torch.optim.AdamW(system.parameters(), lr=1e-3)
    x0 = torch.rand(4, BATCH, 1, STATES, device=device)
    ref = torch.rand(4, BATCH, 1, STATES, device=device).expand(-1, -1, HORIZON, -1) - 0.5
    warm = min(10, STEPS // 2)
    start = time.perf_counter()
    for step in range(STEPS):
        if step == warm:
            if device.type == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        out = system({"x": x0[step % 4], "r": ref[step % 4]})
        tracking = (out["x"][:, 1:] - out["r"]).square().mean()
        loss = tracking + 0.01 * out["u"].square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.5f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
