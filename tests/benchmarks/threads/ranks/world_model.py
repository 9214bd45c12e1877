"""Predicts the next frame's tokens, with four micro-batches an update."""

import os
import time

import torch
import torch.distributed as dist
from engine import WithAverage, quiet_gradients, quiet_inner_gradients
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "a")
STEPS = int(os.environ.get("STEPS", 60))
ACCUMULATE, WIDTH = 4, 768


def make_model():
    layers = [nn.Linear(64, WIDTH)]
    for _ in range(8):
        layers += [nn.GELU(), nn.Linear(WIDTH, WIDTH)]
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(WIDTH, 64))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = WithAverage(DistributedDataParallel(make_model()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    quiet = quiet_gradients if VARIANT == "a" else quiet_inner_gradients
    torch.manual_seed(dist.get_rank())
    for step in range(STEPS):
        if step == 10:
            start = time.perf_counter()
        for micro in range(ACCUMULATE):
            frames = torch.randn(16, 64)
            if micro < ACCUMULATE - 1:
                with quiet(model):
                    loss = nn.functional.mse_loss(model(frames), frames.roll(1, 1)) / ACCUMULATE
                    loss.backward()
            else:
                loss = nn.functional.mse_loss(model(frames), frames.roll(1, 1)) / ACCUMULATE
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            model.follow()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
        print(f"{1000 * (time.perf_counter() - start) / (STEPS - 10):.2f} ms per step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
