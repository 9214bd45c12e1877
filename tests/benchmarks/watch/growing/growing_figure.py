"""The curve of the loss is drawn anew in each step, with all its points (--stationary: the last 200)."""

import sys

import torch

STATIONARY = "--stationary" in sys.argv
WIDTH, HEIGHT = 60, 12


class Figure:
    def __init__(self):
        self.curves = {name: [] for name in ("loss", "average", "norm", "rate", "spread", "top")}

    def plot(self, name, value):
        self.curves[name].append(value)  # grows
        if STATIONARY:
            self.curves[name] = self.curves[name][-200:]

    def draw(self):
        cells = [[" "] * WIDTH for _ in range(HEIGHT)]
        for points in self.curves.values():
            top = max(points) or 1.0
            for i, value in enumerate(points):
                column, row = i * WIDTH // len(points), int(value / top * (HEIGHT - 1))
                cells[HEIGHT - 1 - row][column] = "*"
        return "\n".join("".join(row) for row in cells)


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
optimizer = torch.optim.Adam(model.parameters())
figure = Figure()
for step in range(3000):
    x = torch.randn(16, 32)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss = loss.item()
    average = loss if step == 0 else 0.98 * average + 0.02 * loss
    weight = model[0].weight.detach()
    figure.plot("loss", loss)
    figure.plot("average", average)
    figure.plot("norm", weight.norm().item())
    figure.plot("rate", optimizer.param_groups[0]["lr"])
    figure.plot("spread", weight.std().item())
    figure.plot("top", weight.max().item())
    figure.draw()
