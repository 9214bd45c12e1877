"""ViT-like model; accuracy, loss and gradient norms are read back with .item() in each step. Harmless: the GPU is busy.

Meant to be healthy.
"""

import os
import sys
import time
import torch
from torch import nn

TRUTH = "compute-bound"
NEEDS_GPU = True
layer = nn.TransformerEncoderLayer(
    768, 12, 3072, batch_first=True, norm_first=True, dropout=0.0, activation="gelu"
)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 768, 16, 16)
        self.enc = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
        self.head = nn.Linear(768, 100)

    def forward(self, x):
        return self.head(self.enc(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


net = ViT().cuda()
opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
N = 80
log = []
for it in range(N):
    if it == 15:
        torch.cuda.synchronize()
        t0 = time.perf_counter()
    x = torch.randn(64, 3, 224, 224, device="cuda")
    y = torch.randint(0, 100, (64,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    g = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    log.append((loss.item(), (out.argmax(1) == y).float().mean().item(), g.item()))
torch.cuda.synchronize()
print(f"step_ms={(time.perf_counter() - t0) * 1000 / (N - 15):.3f}")
