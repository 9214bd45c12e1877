"""Train a letter model with hand-written causal attention on two ranks."""

import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 550))
GPU = torch.cuda.is_available()
WIDTH, DEPTH, HEADS = (768, 24, 12) if GPU else (128, 8, 4)
BLOCK, LENGTH, BATCH = (4096, 512, 8) if GPU else (1024, 64, 4)
VOCAB = 96
WARM = 5


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("past", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(self.past[:, :, :t, :t] == 0, float("-inf"))
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCAB)
        if VARIANT != "a":
            kept = [name for name, _ in self.named_buffers() if name.endswith("attention.past")]
            self._ddp_params_and_buffers_to_ignore = kept

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if GPU else "cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(21)
    model = DDP(Letters().to(device), device_ids=[device.index] if GPU else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    torch.manual_seed(210 + rank)
    text = torch.randint(0, VOCAB, (200_000,))
    start, loss = time.perf_counter(), None
    for step in range(STEPS):
        if step == WARM:
            if GPU:
                torch.cuda.synchronize()
            start = time.perf_counter()
        at = torch.randint(0, len(text) - LENGTH - 1, (BATCH,))
        ids = torch.stack([text[i : i + LENGTH + 1] for i in at.tolist()]).to(device)
        with torch.autocast("cuda", torch.bfloat16, enabled=GPU):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if GPU:
        torch.cuda.synchronize()
    spent = time.perf_counter() - start
    if rank == 0:
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * spent / (STEPS - WARM):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
