"""What `bottleneck watch` costs the program it watches: `watch_overhead.py [--write] [--lanes N]`.

In: nothing. Out: a section of reports/overhead.md, and the same on stdout. All in processor time, as waiting
for a core on a shared machine is none of ours, and each in one process:

1. A step: blocks of steps take turns in which the hooks are in, and in which torch has its own functions
   back. The difference of neighbouring blocks, by the clock of the training thread, is what a step costs that
   is only counted; the same between blocks without hooks says how sure that is.
2. A cycle: steps between two countings, of which all events are noted, beyond what the counted ones take.
3. The other thread, by its own clock: it holds the interpreter's lock for no longer than that.

The watched process writes a real record, as under the command. With `--lanes N` so many processes measure at
once, each on two cores of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from statistics import fmean, median, stdev
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from torch.optim import optimizer as optim_module
from torch.utils.data import DataLoader, TensorDataset

from torch_bottleneck.harness.job.series import FIRST_LOOK
from torch_bottleneck.harness.job.steps import WORTH_COUNTING_MS
from torch_bottleneck.harness.process.watched import WatchedRun
from torch_bottleneck.runs.plan import Plan

REPORT = Path(__file__).parents[2] / "reports" / "overhead.md"
HEADING = "## `bottleneck watch`"
TARGET = 0.005
STEPS_MS = (1.0, 2.0, 5.0, 10.0, 50.0)
AGES_S = (0.0, 3600.0)
BLOCK = 40
"""Steps of a block."""
UNSETTLED = 10
"""Of them, in which the interpreter learns again what it knew of the functions."""
BLOCKS = {1.0: 600, 5.0: 200}
"""Turns, by the ms of a step."""
CYCLES = 40
SECONDS = 20.0
"""For which the other thread is looked at."""
MISSING = object()


def steps_of(ms: float) -> Iterator[None]:
    """Train for ever on a model of some ms a step; yields before each step."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    # One epoch without an end: what an epoch's end costs is another question.
    loader = DataLoader(TensorDataset(torch.randn(16, 64)), batch_sampler=repeat(range(16)))
    # A megabyte: it takes the caches of a core, as other steps do, and not those that others share.
    filler = torch.zeros(250_000)
    began = thread_time_ns()
    for _ in range(20):
        filler.add_(1.0)
    fills = max(1, round(ms * 1e6 / ((thread_time_ns() - began) / 20)))
    for (x,) in loader:
        yield
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        for _ in range(fills):
            filler.add_(1.0)


class Switch:
    """Takes the hooks out and puts them in again, as they are."""

    def __init__(self, run: WatchedRun) -> None:
        assert run.steps is not None
        self._hooks = run.steps._hooks
        self._ours: list[tuple[Any, str, Any]] = []
        self._tables: list[dict[Any, Any]] = [
            optim_module._global_optimizer_pre_hooks,
            optim_module._global_optimizer_post_hooks,
        ]
        self._entries: list[dict[Any, Any]] = []

    def off(self) -> None:
        """Torch has its own functions."""
        entries = [*self._hooks._narrowed.entries, *self._hooks._replaced.entries]
        self._ours = [(e.owner, e.name, vars(e.owner).get(e.name, MISSING)) for e in entries]
        # What was replaced first, and so comes last here, is torch's.
        for entry in entries:
            if entry.own:
                setattr(entry.owner, entry.name, entry.original)
            elif entry.name in vars(entry.owner):
                delattr(entry.owner, entry.name)
        self._entries = [dict(table) for table in self._tables]
        for table in self._tables:
            table.clear()

    def on(self) -> None:
        """The hooks are in."""
        for owner, name, ours in self._ours:
            if ours is not MISSING:
                setattr(owner, name, ours)
        for table, entries in zip(self._tables, self._entries, strict=True):
            table.update(entries)


def mean_us(steps: Iterator[None], count: int) -> float:
    """Return what a step takes of the processor, on average."""
    at = thread_time_ns()
    for _ in range(count):
        next(steps)
    return (thread_time_ns() - at) / 1e3 / count


def robust_mean(values: list[float]) -> tuple[float, float]:
    """Return the mean without the outermost tenths, and half of its 95 % interval."""
    cut = len(values) // 10
    kept = sorted(values)[cut : len(values) - cut]
    return fmean(kept), 1.96 * 1.3 * stdev(kept) / math.sqrt(len(kept))


def watched() -> tuple[WatchedRun, tempfile.TemporaryDirectory[str]]:
    """Return a run that watches this process."""
    folder = tempfile.TemporaryDirectory()
    run = WatchedRun(Plan(script="train.py", out=folder.name, quiet=True, watch=True))
    run.arm()
    return run, folder


def until_counting(run: WatchedRun, steps: Iterator[None]) -> None:
    """Train until steps are only counted, for ten seconds at a time."""
    assert run.steps is not None
    for _ in steps:
        if run.steps.buffer.counting and run._job.has_baseline:
            return


def alone_step(ms: float) -> dict[str, float]:
    """Measure 1 and 2 in this process, which does nothing else."""
    run, folder = watched()
    steps = steps_of(ms)
    until_counting(run, steps)
    assert run.steps is not None
    buffer, switch = run.steps.buffer, Switch(run)
    differences, controls, counted_us, plain_us = [], [], [], []
    while len(differences) < BLOCKS[ms]:
        next(steps)
        if not buffer.counting:
            continue
        sides: dict[str, float] = {}
        order = ("on", "off", "off again") if len(differences) % 2 else ("off", "off again", "on")
        for side in order:
            if side != "on":
                switch.off()
            for _ in range(UNSETTLED):
                next(steps)
            sides[side] = mean_us(steps, BLOCK - UNSETTLED)
            if side != "on":
                switch.on()
        if buffer.counting:
            differences.append(sides["on"] - (sides["off"] + sides["off again"]) / 2)
            controls.append(sides["off again"] - sides["off"])
            counted_us.append(sides["on"])
            plain_us.append(sides["off"])
    usual_us = median(counted_us)
    cycles: list[float] = []
    while len(cycles) < CYCLES:
        # As if ten seconds had passed.
        run.steps._counts_until_ns = buffer.count_until_ns = 0
        extra, after = 0.0, 0
        while after < UNSETTLED:
            at = thread_time_ns()
            next(steps)
            extra += (thread_time_ns() - at) / 1e3 - usual_us
            after = after + 1 if buffer.counting else 0
        cycles.append(extra)
        usual_us = mean_us(steps, BLOCK)
    problem = run._job.problem
    run.close(None)
    folder.cleanup()
    assert not problem, problem
    hooks, sure = robust_mean(differences)
    none, none_sure = robust_mean(controls)
    return {
        "us": hooks,
        "sure_us": sure,
        "none_us": none,
        "none_sure_us": none_sure,
        "plain_us": median(plain_us),
        "cycle_us": median(cycles),
    }


def alone_thread(ms: float, age_s: float) -> dict[str, float]:
    """Measure 3 in this process."""
    run, folder = watched()
    run._job.began_ns -= int(age_s * 1e9)
    steps = steps_of(ms)
    # Until growth was looked for once, too: a module is imported for that, once in a job.
    series = run._job.series
    if ms < WORTH_COUNTING_MS:
        until_counting(run, steps)
    while series._look_at == FIRST_LOOK or series._change_at == FIRST_LOOK:
        next(steps)
    threads = {path.name: thread_ms(path) for path in Path("/proc/self/task").iterdir()}
    began = perf_counter_ns()
    while (passed_ms := (perf_counter_ns() - began) / 1e6) < SECONDS * 1e3:
        next(steps)
    ours = sum(
        thread_ms(path) - threads.get(path.name, 0.0)
        for path in Path("/proc/self/task").iterdir()
        if int(path.name) != os.getpid()
    )
    problem = run._job.problem
    run.close(None)
    folder.cleanup()
    assert not problem, problem
    return {"share": ours / passed_ms}


def thread_ms(task: Path) -> float:
    """Return for how long a thread has had the processor."""
    return int((task / "schedstat").read_text().split()[0]) / 1e6


def run_alone(free: list[int], *words: str) -> dict[str, float]:
    """Measure in a process of its own, which takes one of the lanes that are free."""
    lane = free.pop()
    cores = [] if lane < 0 else ["taskset", "-c", f"{2 * lane},{2 * lane + 1}"]
    call = [*cores, sys.executable, __file__, "--alone", *words]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    free.append(lane)
    if done.returncode:
        raise RuntimeError(done.stderr)
    print(*words, done.stdout, file=sys.stderr, flush=True)
    got: dict[str, float] = json.loads(done.stdout)
    return got


def report(lanes: int) -> str:
    """Measure everything and return the section."""
    load = os.getloadavg()[0]
    free = list(range(lanes)) if lanes > 1 else [-1]
    with ThreadPoolExecutor(lanes) as pool:
        steps = {ms: pool.submit(run_alone, free, "step", str(ms)) for ms in BLOCKS}
        threads = {
            (age_s, ms): pool.submit(run_alone, free, "thread", str(ms), str(age_s))
            for age_s in AGES_S
            for ms in STEPS_MS
        }
    step = {ms: future.result() for ms, future in steps.items()}
    rows = []
    for (age_s, ms), future in threads.items():
        got = step[min(step, key=lambda known, ms=ms: abs(known - ms))]
        hooks, cycle = max(0.0, got["us"]) / ms / 1e3, got["cycle_us"] / 10e6
        thread = future.result()["share"]
        rows.append(
            f"| {ms:.0f} | {'one hour' if age_s else 'seconds'} | {hooks:.3%} | {cycle:.3%} |"
            f" {thread:.3%} | **{hooks + cycle + thread:.2%}** |"
        )
    turns = " and ".join(map(str, BLOCKS.values()))
    return "\n".join(
        [
            HEADING,
            "",
            f"Made by `python tests/benchmarks/watch_overhead.py --write`, by processor time."
            f" {platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}; load"
            f" average {load:.1f} before and {os.getloadavg()[0]:.1f} after on {os.cpu_count()} cores.",
            "",
            "| step, ms | a step that is counted, us more | blocks without hooks beside each other, us |"
            " each ten seconds, us |",
            "|---|---|---|---|",
            *(
                f"| {got['plain_us'] / 1e3:.1f} | {got['us']:+.2f} ± {got['sure_us']:.2f} |"
                f" {got['none_us']:+.2f} ± {got['none_sure_us']:.2f} | {got['cycle_us']:.0f} |"
                for got in step.values()
            ),
            "",
            f"{turns} turns of {BLOCK - UNSETTLED} steps each; ±: 95 %. Each ten seconds: steps of which all"
            f" events are noted, and changing to them and back; median of {CYCLES}.",
            "",
            "| step, ms | age of the job | the steps | each ten seconds | the other thread | together |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            "Shares of one processor; the other thread's as if the program stood still while it runs. Steps"
            " of 20 ms and more are not counted, but all their events noted: less than 40 us of each."
            f" The target is {TARGET:.1%} of the step.",
            "",
        ]
    )


def main() -> None:
    """Measure, print, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Put the section into reports/overhead.md.")
    parser.add_argument("--lanes", type=int, default=1, help="Processes that measure at once.")
    parser.add_argument("--alone", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        what, *numbers = options.alone
        got = (alone_step if what == "step" else alone_thread)(*map(float, numbers))
        print(json.dumps(got))
        return
    section = report(options.lanes)
    print(section)
    if options.write:
        before, _, after = REPORT.read_text().partition(HEADING)
        _, _, after = after.partition("\n## ")
        REPORT.write_text(f"{before.rstrip()}\n\n{section}" + (f"\n## {after}" if after else ""))


if __name__ == "__main__":
    main()
