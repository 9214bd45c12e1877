"""The bubble of a pipeline as it is told, beside what its schedule leaves empty: on GPUs, or with gloo.

    python tests/benchmarks/fleet_pipeline.py OUT                 # 2 stages; on GPUs where there are two
    python tests/benchmarks/fleet_pipeline.py OUT --stages 2 4 --ms 20

Each stage works so many ms in the forward and in the backward of each micro-batch: it sleeps, or its
device multiplies. With p even stages and m micro-batches the schedule leaves (p - 1) / (p - 1 + m) of the
step empty; where one stage has twice the work, (p - 1) / (p - 1 + 2 m). Bare traces of four steps, in OUT.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from torch_bottleneck.diagnose import diagnose_paths

CASES = (("GPipe", 4, False), ("GPipe", 4, True), ("1F1B", 8, False))
"""Schedule, micro-batches, whether the last stage has twice the work."""
WIDTH = 1024


class Work(torch.autograd.Function):
    """Takes as long in the backward as in the forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, products: int, seconds: float) -> torch.Tensor:
        """Return what was given."""
        ctx.amount = (products, seconds)
        _work(x, products, seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Pass the gradient on."""
        _work(grads[0], *ctx.amount)
        return grads[0], None, None


def _work(x: torch.Tensor, products: int, seconds: float) -> None:
    if not products:
        time.sleep(seconds)
    square = x[:1].expand(WIDTH, WIDTH).contiguous() if products else x
    for _ in range(products):
        torch.mm(square, square)


class Stage(nn.Module):
    """A layer, and the work of this stage."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        super().__init__()
        self.net = nn.Linear(WIDTH, WIDTH)
        self.seconds, self.products = seconds, 0
        if device.type == "cuda":
            x = torch.randn(WIDTH, WIDTH, device=device)
            for count in (50, 500):
                torch.cuda.synchronize()
                began = time.perf_counter()
                _work(x, count, 0.0)
                torch.cuda.synchronize()
            self.products = round(500 * seconds / (time.perf_counter() - began))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's result, late."""
        result: torch.Tensor = Work.apply(self.net(x), self.products, self.seconds)
        return result


def train(folder: Path, schedule: str, micro: int, seconds: float) -> None:
    """Run one stage and write its trace."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    model = Stage(device, seconds).to(device)
    kind = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}[schedule]
    loop = kind(
        PipelineStage(model, rank, stages, device),
        n_microbatches=micro,
        loss_fn=lambda result, target: (result - target).square().mean(),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(8 * micro, WIDTH, device=device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if gpu else []
    plan = torch.profiler.schedule(wait=3, warmup=2, active=4)
    with torch.profiler.profile(activities=activities, record_shapes=True, schedule=plan) as profiler:
        for _ in range(9):
            optimizer.zero_grad()
            loop.step(*([x] if rank == 0 else []), **({"target": x} if rank == stages - 1 else {}))
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.pt.trace.json.gz"))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--stages", type=int, nargs="*", default=[2])
    parser.add_argument("--ms", type=float, default=20.0)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.case:
        schedule, micro, twice = wanted.case
        last = os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
        train(wanted.out, schedule, int(micro), wanted.ms / 1e3 * (2 if last and twice == "True" else 1))
        return
    print("| schedule | stages | micro-batches | last stage | step, ms | bubble told | by schedule | waits |")
    print("|---|---:|---:|---|---:|---:|---:|---|", flush=True)
    for stages in wanted.stages:
        for schedule, micro, twice in CASES:
            folder = wanted.out / f"{schedule}-{stages}-{micro}-{'twice' if twice else 'even'}"
            folder.mkdir(parents=True, exist_ok=True)
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(stages)]
            launch += [__file__, str(folder)]
            case = ["--ms", str(wanted.ms), "--case", schedule, str(micro), str(twice)]
            subprocess.run([sys.executable, *launch, *case], check=True, capture_output=True, timeout=300)
            ranks = diagnose_paths([folder]).ranks
            step = max(row.step_ms or 0.0 for row in ranks)
            told = max(row.bubble_ms or 0.0 for row in ranks) / step
            empty = (stages - 1) / (stages - 1 + micro * (2 if twice else 1))
            waits = ", ".join(f"{row.waits_for_others_ms or 0.0:.0f}" for row in ranks)
            row = f"{schedule} | {stages} | {micro} | {'twice' if twice else 'even'}"
            print(f"| {row} | {step:.1f} | {told:.1%} | {empty:.1%} | {waits} ms |", flush=True)


if __name__ == "__main__":
    main()
