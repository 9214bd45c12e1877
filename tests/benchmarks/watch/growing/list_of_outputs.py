"""A metric over all outputs so far, which a list keeps (--stationary: over the last hundred)."""

import sys

import torch

STATIONARY = "--stationary" in sys.argv
DEVICE = "cuda" if "--cuda" in sys.argv else "cpu"


class Metric:
    def __init__(self):
        self.outputs = []

    def update(self, out):
        self.outputs.append(out.detach())  # grows
        if STATIONARY:
            del self.outputs[:-100]
        return torch.cat(self.outputs).std()


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32)).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters())
metric = Metric()
for step in range(9000 if DEVICE == "cuda" else 3000):
    x = torch.randn(16, 32, device=DEVICE)
    out = model(x)
    loss = (out - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metric.update(out)
