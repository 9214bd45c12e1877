"""Train an emulator of ocean surface fields on two ranks, with a validation after each short epoch."""

import os
import time
import zlib

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 960))
GPU = torch.cuda.is_available()
CHANNELS, BATCH = (256, 48) if GPU else (24, 4)
ROWS, COLUMNS = (180, 360) if GPU else (45, 90)
EPOCH_STEPS, CHECKS = 8, 1
MAPS_EVERY = 1 if VARIANT == "a" else 13
FIELDS = ("speed_east", "speed_north", "salt", "heat", "height", "ice")
SCALE = 3 if GPU else 13
WARM = 8


def emulator():
    c = CHANNELS
    return nn.Sequential(
        nn.Conv2d(len(FIELDS), c, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(c, c, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(c, c, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(c, len(FIELDS), 3, padding=1),
    )


def draw_map(field):
    """A coloured map as a packed picture, between the 2nd and the 98th percentile."""
    low, high = np.percentile(field, (2, 98))
    level = np.clip((field - low) / (high - low + 1e-6), 0, 1)
    level = np.kron(level, np.ones((SCALE, SCALE)))
    colours = np.stack([level, 1 - np.abs(2 * level - 1), 1 - level], -1)
    return zlib.compress((255 * colours).astype(np.uint8).tobytes(), 6)


def validate(model, fields, truth, device, with_maps):
    """The error of each field over all ranks, and maps of what was expected, foretold and missed."""
    errors, maps = torch.zeros(len(FIELDS), device=device), {}
    model.eval()
    with torch.no_grad():
        for n in range(CHECKS):
            part = slice(n * BATCH, (n + 1) * BATCH)
            foretold = model.module(fields[part])
            errors += (foretold - truth[part]).pow(2).mean((0, 2, 3))
    model.train()
    dist.all_reduce(errors)
    logs = dict(zip(FIELDS, (errors / CHECKS / dist.get_world_size()).tolist()))
    if with_maps:
        expected, got = truth[part][0].cpu().numpy(), foretold[0].cpu().numpy()
        for n, name in enumerate(FIELDS):
            maps[f"{name}/expected"] = draw_map(expected[n])
            maps[f"{name}/foretold"] = draw_map(got[n])
            maps[f"{name}/missed"] = draw_map(got[n] - expected[n])
    return logs, maps


def main():
    dist.init_process_group("nccl" if GPU else "gloo")
    rank = dist.get_rank()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if GPU else "cpu")
    if GPU:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    torch.manual_seed(31)
    model = DDP(emulator().to(device), device_ids=[device.index] if GPU else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    torch.manual_seed(310 + rank)
    noise = torch.randn(4 * BATCH, len(FIELDS), ROWS, COLUMNS, device=device)
    fields = F.avg_pool2d(noise, 5, 1, 2) * 5
    truth = fields.roll(1, -1) * 0.9 + fields.roll(1, 1) * 0.1
    start, loss, book = time.perf_counter(), None, {}
    for step in range(STEPS):
        if step == WARM:
            if GPU:
                torch.cuda.synchronize()
            start = time.perf_counter()
        pick = torch.randint(0, len(fields), (BATCH,), device=device)
        loss = F.mse_loss(model(fields[pick]), truth[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % EPOCH_STEPS == 0:
            epoch = (step + 1) // EPOCH_STEPS
            book = validate(model, fields, truth, device, rank == 0 and epoch % MAPS_EVERY == 0)
    if GPU:
        torch.cuda.synchronize()
    spent = time.perf_counter() - start
    if rank == 0:
        print(f"salt error {book[0]['salt']:.4f}")
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * spent / (STEPS - WARM):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
