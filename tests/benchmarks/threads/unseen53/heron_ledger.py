"""Pre-train a routed text model; the state of every route is followed in each step."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1200))
GPU = torch.cuda.is_available()
WIDTH, DEPTH = (2048, 12) if GPU else (128, 6)
BATCH, LENGTH = (16, 1024) if GPU else (3, 64)
ROUTES = 384
KINDS = ("share", "load", "peak", "spread", "norm")
VOCAB = 1000
WARM = 5


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, ROUTES)
        self.route = nn.Parameter(0.02 * torch.randn(ROUTES, WIDTH))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        h = self.norm(x)
        gate = self.router(h).float().softmax(-1)
        flat = gate.detach().flatten(0, 1)
        share = torch.bincount(flat.argmax(-1), minlength=ROUTES) / len(flat)
        self.state = torch.stack(
            [share, flat.mean(0), flat.amax(0), flat.std(0), self.route.detach().float().norm(dim=-1)]
        )
        return x + self.mlp(h + gate.to(h.dtype) @ self.route.to(h.dtype))


class Heron(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Routed() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


KEYS = [f"layer_{d}/{kind}/route_{r}" for d in range(DEPTH) for kind in KINDS for r in range(ROUTES)]


def gather_state(model):
    """The mean over the ranks of each number, by its key."""
    numbers = torch.stack([layer.state for layer in model.layers]).flatten()
    world = dist.get_world_size()
    if VARIANT == "a":
        mine = dict(zip(KEYS, numbers.tolist()))
        everyone = [None] * world
        dist.all_gather_object(everyone, mine)
        merged = {}
        for key in KEYS:
            values = [state[key] for state in everyone if key in state]
            merged[key] = sum(values) / len(values)
        return merged
    numbers = numbers.double()
    dist.all_reduce(numbers)
    return dict(zip(KEYS, (numbers / world).tolist()))


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if GPU else "cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(5)
    model = DDP(Heron().to(device), device_ids=[device.index] if GPU else None, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    torch.manual_seed(50 + rank)
    text = torch.randint(0, VOCAB, (512, LENGTH + 1))
    start, loss, ledger = time.perf_counter(), None, {}
    for step in range(STEPS):
        if step == WARM:
            if GPU:
                torch.cuda.synchronize()
            start = time.perf_counter()
        ids = text[torch.randint(0, len(text), (BATCH,))].to(device)
        with torch.autocast("cuda", torch.bfloat16, enabled=GPU):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ledger = gather_state(model.module)
        if rank == 0 and step % 200 == 199:
            print(f"step {step + 1}: highest share {max(ledger[k] for k in KEYS if '/share/' in k):.3f}")
    if GPU:
        torch.cuda.synchronize()
    spent = time.perf_counter() - start
    if rank == 0:
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * spent / (STEPS - WARM):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
