"""A job of several ranks, the last of which is late: what `fleet_what_if.py` starts with torchrun.

In: how the model is divided (ddp, fsdp2, tensor, or grid: tensor in pairs, fsdp2 over the pairs), what is
planted, and by how many ms. Out: with `--measure` rank 0 prints the step with and without each plant, in
turns of 21 steps of one run; without it the plant is always on, for `bottleneck diagnose`.

    input      the late rank sleeps while it makes a batch
    host       it sleeps in its loop
    gc         it collects garbage in one of each three steps, drawn at random, for three times as long
    compute    it multiplies a matrix of its own in the forward
    device     another process computes on its GPU, so that each kernel takes longer: as a lower clock does,
               which only root may set
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

TURN = 21
SPIN = """
import sys, threading, time, torch
on = threading.Event()
def listen():
    for line in sys.stdin:
        on.set() if line.strip() == "on" else on.clear()
    on.set()
    ended.append(True)
ended = []
threading.Thread(target=listen, daemon=True).start()
a = torch.randn(2048, 2048, device=f"cuda:{sys.argv[1]}")
while not ended:
    on.wait()
    a @ a
    torch.cuda.synchronize(a.device)
"""


class Front(nn.Module):
    """What comes before the layers: the work of its own that the late rank may have.

    On the CPU all ranks sleep here for most of a step, so that they do not compete for the cores of a small
    machine: where they do, a rank that is no longer late slows the others down, which no replay knows.
    """

    def __init__(self, plants: Plants, *, sleeps: bool) -> None:
        super().__init__()
        self._plants, self._sleeps = plants, sleeps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what was given."""
        if self._sleeps:
            time.sleep(0.04)
        self._plants("forward")
        return x


def model_for(kind: str, device: torch.device, plants: Plants) -> nn.Module:
    """Return the model, divided over the ranks."""
    width, depth = (1024, 8) if device.type == "cuda" else (64, 4)
    blocks = [
        nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        for _ in range(depth)
    ]
    model = nn.Sequential(Front(plants, sleeps=device.type == "cpu"), *blocks).to(device)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    shape: tuple[int, ...] = (dist.get_world_size(),)
    if grid := kind == "grid":
        shape = (shape[0] // 2, 2)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor")[: len(shape)])
    if kind != "fsdp2":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        for block in blocks:
            parallelize_module(
                block, mesh["tensor"] if grid else mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
            )
    if kind != "tensor":
        from torch.distributed.fsdp import fully_shard

        for each in (*blocks, model):
            fully_shard(each, mesh=mesh["data"] if grid else mesh)
    return model


class Plants:
    """What makes this rank late, if it is the last one."""

    def __init__(self, wanted: argparse.Namespace, device: torch.device) -> None:
        self.ms, self.names, self.measure = wanted.ms, wanted.plants, wanted.measure
        self._late = dist.get_rank() == dist.get_world_size() - 1
        self._kept: list[Any] = []
        self._spinner: subprocess.Popen[str] | None = None
        self._matrix = torch.randn(2048 if device.type == "cuda" else 256, device=device).diag()
        self._products, self._step, self._plant = 0, -1, "off"
        if self._late and "gc" in self.names:
            objects = 200_000
            for _ in range(3):  # the time of a collection is not quite in proportion
                self._kept = [[i] for i in range(objects)]
                objects = int(objects * 3 * self.ms / 1e3 / _seconds(gc.collect))
        if self._late and "compute" in self.names:
            self._products = (
                round(10 * self.ms / 1e3 / _seconds(self._multiply_and_wait)) if device.type == "cuda" else 4
            )
        if self._late and "device" in self.names:
            command = [sys.executable, "-c", SPIN, str(device.index)]
            self._spinner = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._matrix, self._matrix)

    def _multiply_and_wait(self) -> None:
        self._multiply(10)
        if self._matrix.is_cuda:
            torch.cuda.synchronize()

    def of(self, step: int) -> str:
        """Return what is planted in a step; on all ranks, whoever is late."""
        if not self.measure:
            return str(self.names[0])
        turn = step // TURN
        return "off" if turn % 2 else str(self.names[turn // 2 % len(self.names)])

    def begin(self, step: int) -> None:
        """Switch to what is planted in this step."""
        self._step, self._plant = step, self.of(step)
        if self._spinner is not None and self._spinner.stdin is not None:
            self._spinner.stdin.write("on\n" if self._plant == "device" else "off\n")
            self._spinner.stdin.flush()

    def __call__(self, where: str) -> None:
        """Be late: in the batch, which is made before its step begins, in the forward, or in the loop."""
        if not self._late:
            return
        if where == "batch":
            if self.of(self._step + 1) == "input":
                time.sleep(self.ms / 1e3)
        elif where == "forward":
            # On a busy CPU no number of products is right for long.
            until = time.thread_time() + self.ms / 1e3
            while self._plant == "compute":
                self._multiply(self._products)
                if self._matrix.is_cuda or time.thread_time() >= until:
                    break
        elif self._plant == "host":
            time.sleep(self.ms / 1e3)
        elif self._plant == "gc" and random.Random(self._step // 3).randrange(3) == self._step % 3:
            gc.collect()


def _seconds(work: Callable[[], object]) -> float:
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Batches(torch.utils.data.Dataset[torch.Tensor]):
    """Batches that are ready, as many as there are steps."""

    def __init__(self, steps: int, plants: Plants, device: torch.device) -> None:
        self.steps, self.plants = steps, plants
        self.pool = torch.randn(4, 2048, 1024) if device.type == "cuda" else torch.randn(4, 16, 64)

    def __len__(self) -> int:
        """Return the number of steps."""
        return self.steps

    def __getitem__(self, i: int) -> torch.Tensor:
        """Return a batch, late or not."""
        self.plants("batch")
        return self.pool[i % 4]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kind", choices=("ddp", "fsdp2", "tensor", "grid"))
    parser.add_argument(
        "--plants", nargs="+", required=True, choices=("input", "host", "gc", "compute", "device")
    )
    parser.add_argument("--ms", type=float, default=40.0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--measure", action="store_true")
    wanted = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    else:  # ranks that take each other's core are late in turns
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)
    gc.disable()
    gc.collect()
    gc.freeze()
    plants = Plants(wanted, device)
    model = model_for(wanted.kind, device, plants)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dist.barrier()
    turns: dict[str, list[float]] = {}
    began = 0.0
    loader = torch.utils.data.DataLoader(Batches(wanted.steps, plants, device), batch_size=None)
    for step, batch in enumerate(loader):
        plants.begin(step)
        # A batch is made before its step: the first and the last steps of a turn are left out. One of each
        # three that are left has a collection.
        if wanted.measure and step % TURN in (3, TURN - 3):
            if gpu:
                torch.cuda.synchronize()
            if step % TURN == 3:
                began = time.perf_counter()
            elif step > TURN:
                turns.setdefault(plants.of(step), []).append((time.perf_counter() - began) / (TURN - 6))
        loss = model(batch.to(device, non_blocking=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plants("loop")
    if wanted.measure and dist.get_rank() == 0:
        print(json.dumps({plant: 1e3 * statistics.fmean(each) for plant, each in turns.items()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
