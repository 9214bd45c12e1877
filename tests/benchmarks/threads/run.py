"""Judges the tool on scripts written after public issue threads.

In: the scripts beside this file and truth.py. Out: reports/threads.md, written after each thread, so that a
stopped run leaves one too. With `--set unseen`: truth_unseen.py and reports/threads-unseen.md; `unseen2` and
so on likewise. With `--device gpu` or `ranks` the report's name ends with that.

    python tests/benchmarks/threads/run.py [--only T29,N04] [--minutes 30] [--device cpu|gpu|ranks]
        [--state FILE]

With `--state FILE --minutes 0` the report is written anew from the scores kept there.

For each thread: slow and fixed in turns with nothing attached; then a diagnosis of the slow one, unless the
cause has no effect on this machine. Threads for two ranks run on the CPU, over gloo; with `--device ranks`
on two GPUs, over NCCL. With `--jobs` above 1, each job has two cores of its own; leave it at 1 where the
machine has fewer than four.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import torch
from measure import RunFailedError, diagnose, measure
from render import render
from score import Score, judge, shows
from truth import THREADS, Thread

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
SETS: dict[str, tuple[Thread, ...]] = {"known": THREADS}
for table in sorted(HERE.glob("truth_*.py")):
    name = table.stem.removeprefix("truth_")
    SETS[name] = vars(importlib.import_module(table.stem))[name.upper()]


def run_thread(
    thread: Thread, folder: Path, *, pairs: int, cores: tuple[int, ...], trial_seconds: float
) -> Score:
    """Measure, diagnose and judge one thread."""
    try:
        times = measure(thread, pairs=pairs, cores=cores)
    except RunFailedError as failure:
        return Score(
            id=thread.id, slow_ms=0, fixed_ms=0, gain=0, shown=False, trap=thread.trap, why=str(failure)
        )
    nothing = Score(
        id=thread.id, slow_ms=times.slow, fixed_ms=times.fixed, gain=times.gain, shown=shows(thread, times),
        trap=thread.trap,
    )  # fmt: skip
    if not nothing.shown:
        return nothing
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return judge(thread, times, diagnose(thread, folder, cores=cores, trial_seconds=trial_seconds))
    except RunFailedError as failure:
        nothing.why = str(failure)
        return nothing


def main() -> None:
    """Run the threads that this machine can run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="ids, separated by commas")
    parser.add_argument("--set", choices=SETS, default="known", help="which table of threads")
    parser.add_argument("--device", choices=("cpu", "gpu", "ranks"), default="cpu")
    parser.add_argument("--minutes", type=float, default=60, help="start no further thread after that")
    parser.add_argument("--pairs", type=int, default=3, help="runs of slow and of fixed")
    parser.add_argument(
        "--trial-seconds", type=float, default=0, help="try fixes in the run, as the command does by default"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--state", type=Path, help="keep scores here; threads in it are not run again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    machines = {"gpu": ("G",), "ranks": ("D",), "cpu": ("C2", "D")}[args.device]
    only = {name for name in args.only.split(",") if name}
    threads = SETS[args.set]
    if unknown := only - {thread.id for thread in threads}:
        parser.error(f"no such threads in {args.set}: {', '.join(sorted(unknown))}")
    chosen = [t for t in threads if t.machine in machines and (not only or t.id in only)]
    scores: dict[str, Score] = {}
    if args.state and args.state.is_file():
        scores = {row["id"]: Score(**row) for row in json.loads(args.state.read_text())}
    report = "-".join(
        [
            "threads",
            *([args.set] if args.set != "known" else []),
            *([args.device] if args.device != "cpu" else []),
        ]
    )
    out = args.out or REPOSITORY / "reports" / f"{report}.md"
    cores: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
    available = sorted(os.sched_getaffinity(0))
    for job in range(args.jobs):
        cores.put(tuple(available[2 * job : 2 * job + 2]) if args.device == "cpu" else ())
    until = time.monotonic() + 60 * args.minutes
    device = "CPU, 2 cores" if args.device == "cpu" else torch.cuda.get_device_name(0)
    machine = (
        f"{device}, {torch.get_num_threads()} intra-op threads, torch {torch.__version__}; "
        f"load average {os.getloadavg()[0]:.1f} at the start, {args.pairs} runs of each variant"
    )

    def write() -> None:
        done = [scores[t.id] for t in threads if t.id in scores]
        if args.state:
            args.state.write_text(json.dumps([asdict(each) for each in done], indent=1))
        out.write_text(render(done, threads, machine=machine))

    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        keep = (args.keep or Path(scratch)).resolve()

        def one(thread: Thread) -> Score | None:
            if time.monotonic() > until:
                return None
            mine = cores.get()
            try:
                return run_thread(
                    thread, keep / thread.id, pairs=args.pairs, cores=mine, trial_seconds=args.trial_seconds
                )
            finally:
                cores.put(mine)

        for score in pool.map(one, [t for t in chosen if t.id not in scores]):
            if score is None:
                continue
            scores[score.id] = score
            write()
            figures = f"{score.id:5} {score.slow_ms:8.1f} {score.fixed_ms:8.1f} {score.gain:5.2f}"
            print(figures, score.said or score.why, "missed:", ", ".join(score.missed) or "-", flush=True)
    write()
    print(out.read_text())


if __name__ == "__main__":
    main()
