"""What the harness costs the program it watches: `python tests/benchmarks/overhead.py [REPORT]`.

1. hooks: a training step with and without the hooks while no profiler runs (target: under 20 us a
   step and under 1 % of a 5 ms step), in processes of their own that take turns: hooks put in and
   out within one process would leave its caches of methods cold, which no user's run has;
2. windows: the step time in each window over that of the baseline.

Prints a table; with a path writes it there as markdown.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from torch_bottleneck.harness.facts.probes import dispatch_ns
from torch_bottleneck.harness.process.agent import Agent
from torch_bottleneck.harness.process.progress import Progress
from torch_bottleneck.harness.process.stopping import Stopper
from torch_bottleneck.model.run import Run
from torch_bottleneck.runs.plan import Plan
from torch_bottleneck.runs.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAIRS = 7
STEPS = 1500
GROUP = 10
ENDLESS = 10**9
STRETCH_US = 4e6
"""Longest stretch of timed steps: a baseline ends by itself after 20 s, however many steps it is to have."""


def make_step(width: int, layers: int, *, spin_ms: float = 0.0) -> Callable[[], None]:
    """Return one whole training step: fetch, zero_grad, forward, loss, backward, optimizer.

    Args:
        width: features of the model.
        layers: pairs of a linear layer and a ReLU.
        spin_ms: Python at work besides, which varies less from run to run than a large matmul.
    """
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers)]
    model = torch.nn.Sequential(*blocks)
    loss = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.utils.data.TensorDataset(torch.randn(64 * 1000, width))
    loader = torch.utils.data.DataLoader(data, batch_size=64)

    def endless() -> Iterator[torch.Tensor]:
        while True:
            for (x,) in loader:
                yield x

    batches = endless()

    def step() -> None:
        x = next(batches)
        optimizer.zero_grad()
        loss(model(x), x).backward()
        optimizer.step()
        until = perf_counter_ns() + int(spin_ms * 1e6)
        while perf_counter_ns() < until:
            pass

    return step


@contextlib.contextmanager
def watched(folder: Path, **wishes: object) -> Iterator[Agent]:
    """Run the block under an agent."""
    plan = Plan(script="overhead.py", quiet=True, run_to_end=True, out=str(folder), **wishes)  # type: ignore[arg-type]
    agent = Agent(plan, Store(folder), Stopper(), Progress(quiet=True))
    agent.install()
    try:
        yield agent
    finally:
        agent.uninstall()


def time_steps(step: Callable[[], None], count: int) -> float:
    """Return the step time in microseconds: the lower quartile, which other processes reach least.

    Of the means of ten steps each, since what the hooks note is looked at every ten steps.
    """
    times = []
    for _ in range(count // GROUP):
        began = perf_counter_ns()
        for _ in range(GROUP):
            step()
        times.append((perf_counter_ns() - began) / GROUP)
    return sorted(times)[len(times) // 4] / 1e3


def alone(width: int, layers: int, spin_ms: float, *, hooks: bool) -> tuple[float, float]:
    """Return the step time in this process, which does nothing else, in microseconds.

    Twice: as the program feels it, and as the tool measures it (the same without the hooks).
    """
    torch.set_num_threads(1)
    step = make_step(width, layers, spin_ms=spin_ms)
    if not hooks:
        count = _affordable(time_steps(step, 150))
        plain = time_steps(step, count)
        return plain, plain
    with (
        tempfile.TemporaryDirectory() as folder,
        # A baseline without end: the window in which every microsecond counts.
        watched(Path(folder) / "run", warmup=1, baseline_steps=ENDLESS) as agent,
    ):
        # Long enough for what is looked at only at the beginning.
        count = _affordable(time_steps(step, 150))
        assert agent.capture.stage == "baseline"
        felt = time_steps(step, count)
        seen = [row.wall_ms * 1e3 for row in agent.capture._book.rows[-count // GROUP * GROUP :]]
        groups = sorted(sum(seen[i : i + GROUP]) / GROUP for i in range(0, len(seen) - GROUP + 1, GROUP))
        return felt, groups[len(groups) // 4]


def _affordable(step_us: float) -> int:
    """Return how many steps fit into the time that a baseline may take, in whole groups."""
    return int(min(STEPS, STRETCH_US / step_us)) // GROUP * GROUP


def hooks_cost(width: int, layers: int, spin_ms: float) -> tuple[float, float, float, float]:
    """Return us: a plain step, what the hooks add, half its spread, and the part in measured steps."""
    plain, added, measured = [], [], []
    for pair in range(PAIRS):
        times = {}
        seen = 0.0
        for hooks in (False, True) if pair % 2 else (True, False):
            call = [
                sys.executable,
                __file__,
                "--alone",
                str(width),
                str(layers),
                str(spin_ms),
                str(int(hooks)),
            ]
            output = subprocess.run(call, capture_output=True, text=True, check=True).stdout.split()
            times[hooks], seen = float(output[0]), float(output[1]) if hooks else seen
        plain.append(times[False])
        added.append(times[True] - times[False])
        measured.append(seen - times[False])
    return median(plain), median(added), (max(added) - min(added)) / 2, median(measured)


def window_ratios(width: int, layers: int) -> dict[str, float]:
    """Return the median step of each window over the baseline's, from one real capture."""
    step = make_step(width, layers)
    time_steps(step, 20)
    with (
        tempfile.TemporaryDirectory() as folder,
        watched(Path(folder) / "run", baseline_steps=40) as agent,
    ):
        while not agent.capture.done:
            step()
        run: Run = agent.capture._store.run
    medians = {w.name: median(w.steps.wall_ms) for w in run.windows if w.steps.wall_ms}
    ratios = {name: value / medians["baseline"] for name, value in medians.items()}
    overhead = run.overhead
    for name in ("profiler_start_ms", "profiler_stop_ms", "trace_export_ms"):
        ratios[name] = getattr(overhead, name) or 0.0
    return ratios


def report() -> str:
    """Measure everything and return the report."""
    torch.set_num_threads(1)
    lines = [
        "# Overhead of the harness",
        "",
        "Made by `python tests/benchmarks/overhead.py reports/overhead.md`; medians over"
        f" {PAIRS} pairs of processes, each of up to {STEPS} steps, one thread.",
        "",
        f"Machine: {platform.processor() or platform.machine()}, torch {torch.__version__},"
        f" Python {platform.python_version()}; load average {os.getloadavg()[0]:.1f} on"
        f" {os.cpu_count()} cores; one small eager operator takes {dispatch_ns():.0f} ns here.",
        "",
        "## Hooks, no profiler running",
        "",
        "| step | plain, us | added, us | +- | added, % | of which in measured steps, us | modules called |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, width, layers, spin_ms in (
        ("small", 64, 4, 0.0),
        ("small, and 4.5 ms of Python", 64, 4, 4.5),
        ("many modules", 64, 100, 0.0),
    ):
        plain, added, spread, measured = hooks_cost(width, layers, spin_ms)
        lines.append(
            f"| {name} | {plain:.0f} | {added:.1f} | {spread:.1f} | {100 * added / plain:.2f} |"
            f" {measured:.1f} | {3 * layers + 2} |"
        )
    lines += [
        "",
        "The targets are 20 us per step, and 1 % of a step of 5 ms.",
        "",
        "## Windows: step time relative to the baseline's",
        "",
        "| step | warm-up | trace | after | start, ms | stop, ms | export, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, width, layers in (("small", 64, 4), ("larger", 512, 8)):
        rows = [window_ratios(width, layers) for _ in range(5)]
        cells = [
            f"{median(row.get(key, float('nan')) for row in rows):.2f}"
            for key in (
                "warm-up",
                "trace",
                "after",
                "profiler_start_ms",
                "profiler_stop_ms",
                "trace_export_ms",
            )
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        wide, deep, spin, hooked = sys.argv[2:]
        print(*alone(int(wide), int(deep), float(spin), hooks=hooked == "1"))
        sys.exit()
    text = report()
    print(text)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
