"""Self-distillation of a thin vision transformer on pollen images: a student and its averaged teacher."""

import copy
import math
import os
import time

import torch
import torch.nn.functional as F
from torch import nn

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", "1400"))
BATCH = int(os.environ.get("BATCH", "24"))
DIM = int(os.environ.get("DIM", "192"))
LAYERS = int(os.environ.get("LAYERS", "24"))
HEADS = int(os.environ.get("HEADS", "3"))
IMAGE = int(os.environ.get("IMAGE", "112"))
PROTOTYPES = int(os.environ.get("PROTOTYPES", "4096"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.set_float32_matmul_precision("high")


class PollenBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class PollenViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, DIM, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.randn(1, (IMAGE // 16) ** 2 + 1, DIM) * 0.02)
        self.blocks = nn.ModuleList(PollenBlock(DIM, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.norm(x)[:, 0]


class ProjectionHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(DIM, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 256)
        )
        self.last = nn.Linear(256, PROTOTYPES, bias=False)

    def forward(self, x):
        return self.last(F.normalize(self.mlp(x), dim=-1))


@torch.no_grad()
def update_momentum(model, model_ema, m):
    if VARIANT == "a":
        for p_ema, p in zip(model_ema.parameters(), model.parameters()):
            p_ema.data = p_ema.data * m + p.data * (1.0 - m)
    else:
        torch._foreach_lerp_(list(model_ema.parameters()), list(model.parameters()), 1.0 - m)


torch.manual_seed(0)
backbone, head = PollenViT().to(device), ProjectionHead().to(device)
teacher_backbone, teacher_head = copy.deepcopy(backbone), copy.deepcopy(head)
for p in list(teacher_backbone.parameters()) + list(teacher_head.parameters()):
    p.requires_grad_(False)
center = torch.zeros(1, PROTOTYPES, device=device)
params = list(backbone.parameters()) + list(head.parameters())
optimizer = torch.optim.AdamW(params, lr=2e-4, weight_decay=0.04, fused=device.type == "cuda")
pool = torch.randn(8, 2 * BATCH, 3, IMAGE, IMAGE, device=device)


def distill_loss(student, teacher):
    targets = F.softmax((teacher - center) / 0.04, -1)
    s1, s2 = F.log_softmax(student / 0.1, -1).chunk(2)
    t1, t2 = targets.chunk(2)
    return -0.5 * ((t1 * s2).sum(-1).mean() + (t2 * s1).sum(-1).mean())


warm = min(10, STEPS // 2)
for step in range(STEPS):
    if step == warm:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
    views = pool[step % len(pool)]
    momentum = 1.0 - (1.0 - 0.996) * (math.cos(math.pi * step / STEPS) + 1) / 2
    update_momentum(backbone, teacher_backbone, momentum)
    update_momentum(head, teacher_head, momentum)
    with torch.no_grad():
        teacher = teacher_head(teacher_backbone(views))
    loss = distill_loss(head(backbone(views)), teacher)
    center = center * 0.9 + teacher.mean(0, keepdim=True) * 0.1
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if device.type == "cuda":
    torch.cuda.synchronize()
elapsed = time.perf_counter() - start
print(f"loss {loss.item():.5f}")
print(f"{1000 * elapsed / (STEPS - warm):.2f} ms per step")
