"""Eight ways to use torch.compile; prints what dynamo counted. `neutral.py CASE`."""

import json
import sys

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
CASE = sys.argv[1]


class Block(torch.nn.Module):
    """Linear, norm, and a graph break in the middle when asked for."""

    def __init__(self, breaks=False):
        super().__init__()
        self.linear, self.norm, self.breaks = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), breaks

    def forward(self, x):
        # A break in a loop leaves the function eager, one outside makes two graphs.
        for _ in range(1 if CASE == "nothing" else 0):
            torch._dynamo.graph_break()
        x = self.linear(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.norm(x).relu() + x


full = CASE in ("model", "in_place", "blocks", "loss")
options = {"backend": "aot_eager", "fullgraph": full}
model = torch.nn.Sequential(*[Block(breaks=CASE == "breaks") for _ in range(3)])
loss = torch.nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters())
update = optimizer.step
if CASE == "in_place":
    model.compile(**options)
elif CASE == "blocks":
    for i in range(3):
        model[i] = torch.compile(model[i], **options)
elif CASE in ("model", "breaks", "nothing"):
    model = torch.compile(model, **options)
elif CASE == "loss":
    loss = torch.compile(torch.nn.functional.mse_loss, **options)
elif CASE == "optimizer":
    update = torch.compile(lambda: optimizer.step(), backend="aot_eager")


def step(x):
    value = loss(model(x), x)
    value.backward()
    update()
    optimizer.zero_grad()
    return value.detach()


if CASE == "step":
    step = torch.compile(step, backend="aot_eager")
data = torch.utils.data.DataLoader(torch.randn(64 * 8, 8), batch_size=8)
losses = [step(x).item() for x in data]
# Another shape: a recompile that is the script's own.
losses += [step(torch.randn(5, 8)).item() for _ in range(3)]

counters = torch._dynamo.utils.counters
print(
    json.dumps(
        {
            "losses": losses,
            "frames": dict(counters["frames"]),
            "stats": dict(counters["stats"]),
            "breaks": sum(counters["graph_break"].values()),
            "recompiles": sum(len(v) for v in torch._dynamo.utils.guard_failures.values()),
            "limit": dict(counters["recompile_limit"]),
        }
    )
)
