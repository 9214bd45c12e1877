"""What `bottleneck watch` costs the program it watches: `watch_overhead.py [--write] [--lanes N]`.

In: nothing. Out: a section of reports/overhead.md, and the same on stdout. Three ways, since a step of some
milliseconds on a shared machine scatters by more than what is looked for:

1. In the steps themselves: every function of torch that is watched takes the processor time of its thread
   when it is entered and when it is left, and so does the loop around its calls. What lies between the two is
   what a call costs beside its work; the same without the watch is taken off.
2. The other thread: its processor time by its own clock, over the time that passed. It holds the interpreter
   lock for no longer than that.
3. As the program feels it: pairs of processes that take turns, by processor time of the whole process.

The watched process writes a real record, as under the command. A job that is old is looked at less often:
each length of step is measured with a job that has just begun, and with one that believes to be an hour old.
With `--lanes N` so many rows are measured at once, each on two cores of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.harness import torch_private
from torch_bottleneck.harness.process.watched import WatchedRun
from torch_bottleneck.runs.plan import Plan

REPORT = Path(__file__).parents[2] / "reports" / "overhead.md"
HEADING = "## `bottleneck watch`"
TARGET = 0.005
STEPS_MS = (2.0, 5.0, 10.0, 50.0)
AGES_S = (0.0, 3600.0)
SECONDS = 22.0
"""Of each run, after its first steps: twice as long as steps are counted before some are noted again."""
FIRST_SECONDS = 16.0
"""As long as the baseline of run.json takes: then the job is as it is for hours."""
OUTLIER_US = 20_000
"""A step with more beside its work has lost the processor, or was looked into once and for all."""
PAIRS = 3

INNER = [0]
"""Ns inside the functions of torch that are watched, as they see it themselves."""


def timed(original: Any) -> Any:
    """Return the function with its time added to `INNER`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        began = thread_time_ns()
        try:
            return original(*args, **kwargs)
        finally:
            INNER[0] += thread_time_ns() - began

    return call


class Timed(torch.optim.SGD):
    """An optimizer whose step is counted, within the hooks around it."""

    @timed
    def step(self) -> None:  # type: ignore[override]
        """As SGD, without what SGD has around it."""
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad, alpha=-1e-4)


def time_inside() -> None:
    """Have the watched functions take their time, beneath whatever is put around them later."""
    torch.nn.Module.__call__ = timed(torch.nn.Module.__call__)  # type: ignore[method-assign]
    owner, name = torch_private.engine_owner() or (None, "")
    setattr(owner, name, timed(getattr(owner, name)))
    torch_private.LoaderIterator.__next__ = timed(torch_private.LoaderIterator.__next__)
    torch.optim.Optimizer.zero_grad = timed(torch.optim.Optimizer.zero_grad)  # type: ignore[method-assign]


def work(ms: float, size: torch.Tensor) -> None:
    """Spend the rest of a step in tensors and Python, so that caches are as cold as in any step."""
    until = perf_counter_ns() + int(ms * 1e6)
    while perf_counter_ns() < until:
        size.add_(1.0)


def train(step_ms: float) -> dict[str, float]:
    """Train for a while; return ms and us per step."""
    torch.set_num_threads(1)
    # One module, as only what the program calls itself is watched: nested ones would take time twice.
    model = torch.nn.Linear(32, 1)
    optimizer = Timed(model.parameters(), lr=1e-4)
    loader = DataLoader(TensorDataset(torch.randn(16 * 400, 32)), batch_size=16)
    filler = torch.zeros(1_000_000)
    beside_ns: list[int] = []
    since = used = 0
    began = perf_counter_ns()
    while perf_counter_ns() - began < (FIRST_SECONDS + SECONDS) * 1e9:
        batches = iter(loader)
        for _ in range(len(loader)):
            if not since and perf_counter_ns() - began > FIRST_SECONDS * 1e9:
                beside_ns.clear()
                since, used = perf_counter_ns(), time.process_time_ns()
            INNER[0] = 0
            at = thread_time_ns()
            (x,) = next(batches)
            optimizer.zero_grad()
            beside = thread_time_ns() - at
            at = thread_time_ns()
            out = model(x)
            beside += thread_time_ns() - at
            loss = out.square().mean()
            at = thread_time_ns()
            loss.backward()
            optimizer.step()
            beside += thread_time_ns() - at - INNER[0]
            work(step_ms, filler)
            beside_ns.append(beside)
    steps = len(beside_ns)
    usual = [ns for ns in beside_ns if ns < OUTLIER_US * 1e3]
    return {
        "beside_us": sum(usual) / 1e3 / len(usual),
        "step_ms": (perf_counter_ns() - since) / 1e6 / steps,
        "cpu_us": (time.process_time_ns() - used) / 1e3 / steps,
        "steps": steps,
    }


def alone(step_ms: float, age_s: float, *, watched: bool) -> dict[str, float]:
    """Train in this process, which does nothing else."""
    time_inside()
    if not watched:
        return train(step_ms)
    with tempfile.TemporaryDirectory() as folder:
        run = WatchedRun(Plan(script="train.py", out=folder, quiet=True, watch=True))
        run.arm()
        run._job.began_ns -= int(age_s * 1e9)
        threads = {int(path.name): _thread_ms(path) for path in Path("/proc/self/task").iterdir()}
        began = perf_counter_ns()
        got = train(step_ms)
        passed_ms = (perf_counter_ns() - began) / 1e6
        ours = _sampler_ms(threads)
        problem, seen = run._job.problem, run._job.account.steps
        run.close(None)
        assert not problem, problem
        return {**got, "sampler_share": ours / passed_ms, "seen": seen}


def _thread_ms(task: Path) -> float:
    # The first figure of schedstat is the ns that the thread has run.
    return int((task / "schedstat").read_text().split()[0]) / 1e6


def _sampler_ms(before: dict[int, float]) -> float:
    """Return the processor time that threads but the main one have had."""
    return sum(
        _thread_ms(path) - before.get(int(path.name), 0.0)
        for path in Path("/proc/self/task").iterdir()
        if int(path.name) != os.getpid()
    )


def run_alone(step_ms: float, age_s: float, lane: int | None, *, watched: bool) -> dict[str, float]:
    """Run `alone` in a process of its own; in a lane: on two cores."""
    kind = "watched" if watched else "plain"
    call = [sys.executable, __file__, "--alone", str(step_ms), str(age_s), kind]
    if lane is not None:
        call = ["taskset", "-c", f"{2 * lane},{2 * lane + 1}", *call]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    got: dict[str, float] = json.loads(done.stdout)
    return got


def measure(step_ms: float, age_s: float, lane: int | None) -> str:
    """Return the row of a table."""
    beside, shares, ratios, lengths = [], [], [], []
    for pair in range(PAIRS):
        order = (False, True) if pair % 2 else (True, False)
        runs = {watched: run_alone(step_ms, age_s, lane, watched=watched) for watched in order}
        beside.append(runs[True]["beside_us"] - runs[False]["beside_us"])
        shares.append(runs[True]["sampler_share"])
        ratios.append(runs[True]["step_ms"] / runs[False]["step_ms"])
        lengths.append(runs[False]["step_ms"])
    step_us = step_ms * 1e3
    hooks, sampler = median(beside), median(shares)
    together = hooks / step_us + sampler
    return (
        f"| {step_ms:.0f} | {'one hour' if age_s else 'seconds'} | {median(lengths):.1f} |"
        f" {hooks:.1f} ({min(beside):.1f} to {max(beside):.1f}) | {sampler * 1e3:.2f}"
        f" ({min(shares) * 1e3:.2f} to {max(shares) * 1e3:.2f}) | **{together:.2%}** |"
        f" {median(ratios) - 1:+.2%} ({min(ratios) - 1:+.2%} to {max(ratios) - 1:+.2%}) |"
    )


def report(lanes: int) -> str:
    """Measure everything and return the section."""
    load = os.getloadavg()[0]
    cases = [(step_ms, age_s) for age_s in AGES_S for step_ms in STEPS_MS]
    with ThreadPoolExecutor(lanes) as pool:
        free = list(range(lanes))

        def taken(case: tuple[float, float]) -> str:
            lane = free.pop()
            try:
                return measure(*case, lane if lanes > 1 else None)
            finally:
                free.append(lane)

        rows = list(pool.map(taken, cases))
    return "\n".join(
        [
            HEADING,
            "",
            f"Made by `python tests/benchmarks/watch_overhead.py --write`: medians over {PAIRS} pairs of"
            f" processes that take turns, {SECONDS:.0f} s each, in brackets the smallest and the largest."
            f" {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}; load"
            f" average {load:.1f} before and {os.getloadavg()[0]:.1f} after on {os.cpu_count()} cores;"
            f" {lanes} {'pair' if lanes == 1 else 'pairs'} at once.",
            "",
            "| work of a step, ms | age of the job | with waiting for a core | the hooks, us a step |"
            " the other thread, ms a second | together | as the program feels it |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "The hooks: what the calls of torch that are watched cost beside their work, less what they cost"
            " without the watch; hand-overs of events included. The other thread: its processor time."
            " Together: both as a share of a step of that length, as if the program stood still while the"
            " other thread runs. As the program feels it: step time over step time of the pair.",
            f"The target is {TARGET:.1%} of the step.",
            "",
        ]
    )


def main() -> None:
    """Measure, print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Put the section into reports/overhead.md.")
    parser.add_argument("--lanes", type=int, default=1, help="Rows to measure at once.")
    parser.add_argument("--alone", nargs=3, metavar=("MS", "AGE", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        step_ms, age_s, kind = options.alone
        print(json.dumps(alone(float(step_ms), float(age_s), watched=kind == "watched")))
        return
    section = report(options.lanes)
    print(section)
    if options.write:
        before, _, after = REPORT.read_text().partition(HEADING)
        _, _, after = after.partition("\n## ")
        REPORT.write_text(f"{before.rstrip()}\n\n{section}" + (f"\n## {after}" if after else ""))


if __name__ == "__main__":
    main()
