"""A job of DistributedDataParallel that `fleet_buckets.py` starts with torchrun.

In: sizes of buckets. Out: with `--measure` rank 0 prints the step with each size, in turns of one run, as
JSON; without it all steps have the first size, for `bottleneck diagnose`.

Without a GPU each layer sleeps in its backward instead of computing, so that gradients come one after the
other and the ranks do not compete with gloo for the cores of a small machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS, LEFT_OUT = 12, 4
"""Of a turn, and those at its beginning that are not counted: DDP lays out its buckets in them."""


class Pause(torch.autograd.Function):
    """Sleeps in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        """Return what was given."""
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Sleep."""
        time.sleep(ctx.seconds)
        return gradients[0], None


class Layer(nn.Module):
    """A product, and a pause in its backward."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.product, self.seconds = nn.Linear(width, width, bias=False), seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        out = torch.relu(self.product(x))
        return Pause.apply(out, self.seconds) if self.seconds else out


class Trainer:
    """One model and its optimizer; the wrapper with buckets of a size is made anew for each turn."""

    def __init__(self, wanted: argparse.Namespace, device: torch.device) -> None:
        seconds = 0.0 if device.type == "cuda" else wanted.ms / 1e3
        layers = [Layer(wanted.width, seconds) for _ in range(wanted.layers)]
        self._model = nn.Sequential(*layers).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-4)
        self._batch = torch.randn(wanted.batch, wanted.width, device=device)
        self._device = device
        self._wrapped: nn.Module = self._model

    def wrap(self, bucket_cap_mb: int) -> None:
        """Send gradients in buckets of this size from now on."""
        for parameter in self._model.parameters():
            parameter.grad = None
        # 25 is asked for as nearly everybody does, by saying nothing: the first bucket is then one of 1 MB.
        asked = {} if bucket_cap_mb == 25 else {"bucket_cap_mb": bucket_cap_mb}
        self._wrapped = nn.parallel.DistributedDataParallel(self._model, **asked)

    def step(self) -> None:
        """Train one step."""
        loss = self._wrapped(self._batch).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def wait(self) -> None:
        """Wait for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def measure(trainer: Trainer, sizes: list[int], rounds: int) -> dict[int, list[float]]:
    """Return the milliseconds of a step with each size, one figure per turn."""
    found: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            trainer.wrap(size)
            for step in range(STEPS):
                if step == LEFT_OUT:
                    trainer.wait()
                    dist.barrier()
                    began = time.perf_counter()
                trainer.step()
            trainer.wait()
            dist.barrier()
            found[size].append(1e3 * (time.perf_counter() - began) / (STEPS - LEFT_OUT))
    return found


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--buckets", nargs="+", type=int, default=[25], help="MiB")
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8192 if torch.cuda.is_available() else 4)
    parser.add_argument("--ms", type=float, default=8.0, help="pause of a layer, without a GPU")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    wanted = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)
    trainer = Trainer(wanted, device)
    if wanted.measure:
        found = measure(trainer, wanted.buckets, wanted.rounds)
        if dist.get_rank() == 0:
            print(json.dumps({size: statistics.median(each) for size, each in found.items()}))
    else:
        trainer.wrap(wanted.buckets[0])
        for _ in range(wanted.steps):
            trainer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
