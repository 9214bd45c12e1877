"""Deep narrow network; exponential average of weights kept parameter by parameter with new tensors.

Planted: launch-bound (the line is marked). --fixed: torch._foreach_lerp_.
"""

import copy
import sys
import time

import torch
from torch import nn

TRUTH = "launch-bound"
ACCEPT = ("host-bound",)
FIXED = "--fixed" in sys.argv
DEV = "cuda" if torch.cuda.is_available() else "cpu"


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        if FIXED:
            torch._foreach_lerp_(
                list(self.shadow.values()), list(model.state_dict().values()), 1 - self.decay
            )
            return
        for name, value in model.state_dict().items():
            self.shadow[name] = (
                self.decay * self.shadow[name] + (1.0 - self.decay) * value.detach().clone()
            )  # planted


net = nn.Sequential(
    *[nn.Sequential(nn.Linear(48, 48), nn.LayerNorm(48), nn.SiLU()) for _ in range(60)], nn.Linear(48, 2)
).to(DEV)
ema = EMA(net)
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
N = 160
for it in range(N):
    if it == 20:
        t0 = time.perf_counter()
    x, y = torch.randn(16, 48, device=DEV), torch.randint(0, 2, (16,), device=DEV)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update(net)
if DEV == "cuda":
    torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 20):.3f}")
