"""Fine-tune a small letter model on customer messages with two ranks, one message per forward pass."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DistributedSampler, Sampler

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 380))
GPU = torch.cuda.is_available()
WIDTH, DEPTH, HEADS = (1024, 12, 16) if GPU else (128, 2, 4)
SHORTEST, LONGEST, MU = (128, 8192, 6.7) if GPU else (16, 1024, 4.6)
PER_RANK = 5
MESSAGES = 4096
VOCAB = 2000
WARM = 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.n2(x))


class Courier(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class ParcelSampler(Sampler):
    """Messages of each global batch, dealt out to the ranks by their lengths."""

    def __init__(self, lengths, rank, world, seed):
        self.lengths, self.rank, self.world, self.seed, self.epoch = lengths, rank, world, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.lengths), generator=g).tolist()
        size = PER_RANK * self.world
        for start in range(0, len(order) - size + 1, size):
            hands, loads = [[] for _ in range(self.world)], [0] * self.world
            for i in sorted(order[start : start + size], key=lambda i: -self.lengths[i]):
                to = loads.index(min(loads))
                hands[to].append(i)
                loads[to] += self.lengths[i] * (6 * WIDTH + self.lengths[i])
            yield hands[self.rank]


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if GPU else "cpu")
    torch.cuda.set_device(device) if GPU else torch.set_num_threads(1)
    torch.manual_seed(7)
    lengths = torch.empty(MESSAGES).log_normal_(MU, 1.5).clamp_(SHORTEST, LONGEST - 1).long().tolist()
    messages = [torch.randint(0, VOCAB, (n + 1,)) for n in lengths]
    model = DDP(Courier().to(device), device_ids=[device.index] if GPU else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    if VARIANT == "a":
        sampler = DistributedSampler(range(MESSAGES), world, rank, shuffle=True, seed=11, drop_last=True)
        hands = BatchSampler(sampler, PER_RANK, drop_last=True)
    else:
        sampler = hands = ParcelSampler(lengths, rank, world, seed=11)

    epoch, step, start, seen = 0, 0, 0.0, torch.zeros((), device=device)
    while step < STEPS:
        sampler.set_epoch(epoch)
        for hand in hands:
            if step == WARM:
                if GPU:
                    torch.cuda.synchronize()
                start = time.perf_counter()
            total = torch.tensor(float(sum(lengths[i] for i in hand)), device=device)
            dist.all_reduce(total)
            optimizer.zero_grad()
            seen.zero_()
            for n, i in enumerate(hand):
                ids = messages[i].to(device)[None]
                model.require_backward_grad_sync = n == len(hand) - 1
                with torch.autocast("cuda", torch.bfloat16, enabled=GPU):
                    logits = model(ids[:, :-1])
                    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[0, 1:], reduction="sum")
                (loss * world / total).backward()
                seen += loss.detach() / total
            optimizer.step()
            step += 1
            if step == STEPS:
                break
        epoch += 1
    if GPU:
        torch.cuda.synchronize()
    spent = time.perf_counter() - start
    dist.all_reduce(seen)
    if rank == 0:
        print(f"loss {seen.item():.4f}")
        print(f"{1000 * spent / (STEPS - WARM):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
