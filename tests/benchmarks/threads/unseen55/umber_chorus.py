"""Policy gradients for a small writer of tunes: groups of answers to each opening, on two ranks.

torchrun --nproc-per-node 2 umber_chorus.py
"""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 1200))
WARM_UP = 4
CUDA = torch.cuda.is_available()

WIDTH = 96 if not CUDA else 768
LAYERS = 2 if not CUDA else 6
SCALE = 1 if not CUDA else 6
LONGEST = 640 * SCALE
NOTES = 128
OPENINGS = 2
ANSWERS = 6


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.notes = nn.Embedding(NOTES, WIDTH)
        self.places = nn.Embedding(LONGEST + 1, WIDTH)
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
                )
                for _ in range(LAYERS)
            ]
        )
        self.head = nn.Linear(WIDTH, NOTES)

    def forward(self, tune):
        length = tune.shape[1]
        x = self.notes(tune) + self.places(torch.arange(length, device=tune.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tune.device)
        for block in self.layers:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def rollout(generator):
    """The answers to some openings, those to one opening side by side, with their advantages."""
    answers = []
    for _ in range(OPENINGS):
        usual = float(torch.empty(1).log_normal_(5.0, 0.8, generator=generator))
        lengths = usual * (0.85 + 0.3 * torch.rand(ANSWERS, generator=generator))
        rewards = torch.randn(ANSWERS, generator=generator)
        rewards = (rewards - rewards.mean()) / rewards.std()
        for length, reward in zip(lengths.tolist(), rewards.tolist()):
            length = int(min(max(length, 24), 640)) * SCALE
            tune = torch.randint(0, NOTES, (1, length), generator=generator)
            answers.append((tune, reward))
    return answers


def in_order(answers, world):
    each = len(answers) // world
    return [answers[i * each : (i + 1) * each] for i in range(world)]


def by_tokens(answers, world):
    each = len(answers) // world
    parts = [[] for _ in range(world)]
    totals = [0] * world
    for answer in sorted(answers, key=lambda item: -item[0].shape[1]):
        open_parts = [i for i in range(world) if len(parts[i]) < each]
        chosen = min(open_parts, key=totals.__getitem__)
        parts[chosen].append(answer)
        totals[chosen] += answer[0].shape[1]
    return parts


DEAL = in_order if VARIANT == "a" else by_tokens


def main():
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if CUDA else "cpu")
    if CUDA:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(11)
    model = DistributedDataParallel(Writer().to(device), device_ids=[device.index] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator().manual_seed(21)
    begun = time.perf_counter()
    for step in range(STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        answers = rollout(generator)
        tokens = sum(tune.shape[1] for tune, _ in answers)
        mine = DEAL(answers, world)[rank]
        total = torch.zeros((), device=device)
        for i, (tune, reward) in enumerate(mine):
            tune = tune.to(device)
            last = i + 1 == len(mine)
            with contextlib.nullcontext() if last else model.no_sync():
                scores = model(tune[:, :-1]).transpose(1, 2)
                surprise = nn.functional.cross_entropy(scores, tune[:, 1:], reduction="sum")
                loss = (1.0 + 0.1 * reward) * surprise * world / tokens
                loss.backward()
            total += loss.detach() / world
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(total)
    final = total.item()
    spent = time.perf_counter() - begun
    if rank == 0:
        print(f"loss {final:.5f}")
        print(f"{1000 * spent / max(STEPS - WARM_UP, 1):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
