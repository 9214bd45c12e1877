"""Activations are logged by a hook that each step registers; nobody removes it (--stationary: it is removed)."""

import sys

import torch

STATIONARY = "--stationary" in sys.argv
DEVICE = "cuda" if "--cuda" in sys.argv else "cpu"


class Probe:
    def __init__(self, model):
        self.model = model
        self.means = {}

    def watch(self, layer):
        def note(module, inputs, output):
            self.means[layer] = output.detach().abs().mean()

        return self.model[layer].register_forward_hook(note)  # grows


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probe = Probe(model)
    handle = None
    for step in range(3000):
        if step % 4 == 0:
            if STATIONARY and handle is not None:
                handle.remove()
            handle = probe.watch(0)
        x = torch.randn(16, 32, device=DEVICE)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
