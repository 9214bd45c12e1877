"""Fits the taste marks of wines with a network of learned curves, some of which may become formulas."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 400))
WINES, TRAITS, BATCH = 20_000, 11, 4096
GRID, REACH = 20, 3.0


def make_wines():
    g = torch.Generator().manual_seed(31)
    traits = torch.randn(WINES, TRAITS, generator=g)
    mark = traits[:, 0].sin() + 0.5 * traits[:, 1].square() - (0.3 * traits[:, 2] * traits[:, 3]).tanh()
    return traits, (mark + 0.05 * torch.randn(WINES, generator=g))[:, None]


class Curves(nn.Module):
    """One sum of bumps for each pair of an input and an output."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("centres", torch.linspace(-REACH, REACH, GRID))
        self.heights = nn.Parameter(0.1 * torch.randn(inputs * GRID, outputs) / inputs**0.5)
        self.base = nn.Linear(inputs, outputs)
        self.width = 2 * REACH / (GRID - 1)

    def forward(self, x):
        bumps = torch.exp(-(((x[..., None] - self.centres) / self.width) ** 2))
        return bumps.flatten(1) @ self.heights + self.base(F.silu(x))


class Formulas(nn.Module):
    """The formulas c * f(a * x + b) + d of those pairs which were fixed to one."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.functions = [[torch.zeros_like] * inputs for _ in range(outputs)]
        self.affine = nn.Parameter(torch.tensor([1.0, 0, 1, 0]).repeat(outputs, inputs, 1))
        self.register_buffer("fixed", torch.zeros(outputs, inputs))

    def fix(self, output, given, function):
        self.functions[output][given] = function
        self.fixed[output, given] = 1

    def forward(self, x):
        columns = []
        for output in range(self.outputs):
            total = 0
            for given in range(self.inputs):
                a, b, c, d = self.affine[output, given]
                value = c * self.functions[output][given](a * x[:, given] + b) + d
                total = total + self.fixed[output, given] * value
            columns.append(total)
        return torch.stack(columns, 1)


class CurveNet(nn.Module):
    def __init__(self, widths, formulas_on=True):
        super().__init__()
        pairs = list(zip(widths[:-1], widths[1:], strict=True))
        self.curves = nn.ModuleList(Curves(*pair) for pair in pairs)
        self.formulas = nn.ModuleList(Formulas(*pair) for pair in pairs)
        self.formulas_on = formulas_on

    def forward(self, x):
        for curves, formulas in zip(self.curves, self.formulas, strict=True):
            y = curves(x)
            if self.formulas_on:
                y = y + formulas(x)
            x = y
        return x


def main():
    torch.manual_seed(31)
    traits, marks = make_wines()
    model = CurveNet([TRAITS, 12, 6, 1], formulas_on=VARIANT == "a")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    warm = min(10, STEPS // 2)
    for step in range(STEPS):
        if step == warm:
            start = time.perf_counter()
        rows = torch.randint(0, WINES, (BATCH,))
        loss = F.mse_loss(model(traits[rows]), marks[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    elapsed = time.perf_counter() - start
    print(f"loss {loss.item():.4f}")
    print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")


if __name__ == "__main__":
    main()
