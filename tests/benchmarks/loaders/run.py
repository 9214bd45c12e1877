"""Holds what more workers promise to what they bring: ten kinds of dataset with 0, 1, 2 and 4 workers.

In: train.py beside it. Out: reports/loaders.md. Each kind is timed with every number of workers, nothing
attached, in two rounds. Then it is diagnosed with each: what FX101 promises is held to the best step that was
measured with more workers, up to as many as there are cores.

    python tests/benchmarks/loaders/run.py [--only light,heavy] [--seconds 5] [--state FILE] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

SCRIPT = Path(__file__).with_name("train.py")
REPOSITORY = SCRIPT.parents[3]
KINDS = {
    "light": "tensors that are there",
    "python": "1 ms of Python a sample",
    "heavy": "4 ms of Python a sample",
    "waiting": "2 ms of waiting a sample",
    "both": "0.5 ms of Python and 1 ms of waiting a sample",
    "choice": "np.random choice without replacement",
    "many": "40 small tensors a sample",
    "large": "samples of 786 kB",
    "stored": "samples of 197 kB",
    "stream": "an iterable dataset, 1 ms of Python a sample",
    "epochs": "epochs of 12 batches, 0.5 ms of Python a sample",
    "collate": "12 ms of Python a batch in collate_fn",
}
WORKERS = (0, 1, 2, 4)
STEP = re.compile(r"([0-9.]+) ms per step")
SAME = 0.05
"""A gain below this is none that the machine shows."""
WITHIN = 0.15


def timed(kind: str, workers: int, seconds: float) -> float:
    """Return the ms of a step, nothing attached."""
    environment = {**os.environ, "KIND": kind, "WORKERS": str(workers), "SECONDS": str(seconds)}
    command = [sys.executable, str(SCRIPT)]
    printed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    found = STEP.search(printed.stdout)
    assert found is not None
    return float(found[1])


def promised(kind: str, workers: int) -> dict[str, Any]:
    """Return what a diagnosis says: its step, its class, the step with more workers if it suggests them."""
    environment = {**os.environ, "KIND": kind, "WORKERS": str(workers), "SECONDS": "60"}
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        command = [sys.executable, "-m", "torch_bottleneck", "diagnose", "-q", "--trial-seconds", "0"]
        command += ["--max-seconds", "15", "--out", str(run), str(SCRIPT)]
        subprocess.run(command, env=environment, capture_output=True, check=False, timeout=300)
        told = json.loads((run / "diagnosis.json").read_text())
    more = next((s for s in told["suggestions"] if s["fix"] == "FX101" and not s.get("note")), None)
    return {
        "step": told["step"]["true_ms"],
        "class": told["verdict"]["class"],
        "promise": more["predicted_ms"] if more is not None else None,
        "bound": bool(more and more.get("bound")),
    }


def row(kind: str, workers: int, times: dict[int, float], said: dict[str, Any], cores: int) -> list[str]:
    """Return a row of the table: a promise as a share of the step beside the best that was measured."""
    more = [ms for count, ms in times.items() if workers < count <= max(cores, workers + 1)]
    best = min([times[workers], *more]) / times[workers]
    share = said["promise"] / said["step"] if said["promise"] and said["step"] else None
    if share is None:
        judged = "right" if best > 1 - 3 * SAME else "MISSED"
    elif best > 1 - SAME and share < 1 - SAME:
        judged = "NO GAIN"
    else:
        error = share / best - 1
        judged = f"{error:+.0%}" + ("" if abs(error) <= WITHIN or (said["bound"] and error < 0) else " NO")
    told = "-" if share is None else f"{'≥ ' if said['bound'] else ''}{share:.0%}"
    return [kind, str(workers), f"{times[workers]:.1f}", said["class"], told, f"{best:.0%}", judged]


def render(state: dict[str, Any], cores: int) -> str:
    """Return the report."""
    rows = []
    for kind, known in state.items():
        times = {int(count): median(ms) for count, ms in known["times"].items()}
        rows += [
            row(kind, int(n), times, said, cores) for n, said in known["said"].items() if int(n) < max(times)
        ]
    good = sum(not each[-1].endswith(("NO", "MISSED", "NO GAIN")) for each in rows)
    timings = [
        f"| {kind} | {KINDS[kind]} | "
        + " | ".join(f"{median(known['times'][str(n)]):.1f}" for n in WORKERS)
        + " |"
        for kind, known in state.items()
    ]
    return "\n".join(
        [
            "# More workers: promised and measured",
            "",
            f"{cores} cores, torch {torch.__version__}, one intra-op thread; two rounds with nothing "
            "attached, then one diagnosis with each number of workers. Written by "
            "`python tests/benchmarks/loaders/run.py`.",
            "",
            "| kind | dataset | " + " | ".join(f"{n} workers, ms" for n in WORKERS) + " |",
            "| --- | --- |" + " ---: |" * len(WORKERS),
            *timings,
            "",
            "Promised: the step with FX101 as a share of the step; - where it is not suggested. Measured: "
            "the best step with more workers, up to the cores, as a share. NO: off by more than 15 %.",
            "",
            f"**{good} of {len(rows)} hold: promises within 15 %, or none where more workers bring less "
            "than that.**",
            "",
            "| kind | workers | ms | class | promised | measured | |",
            "| --- | ---: | ---: | --- | ---: | ---: | --- |",
            *("| " + " | ".join(each) + " |" for each in rows),
            "",
        ]
    )


def main() -> None:
    """Time and diagnose each kind; the report is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="kinds, separated by commas")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each timing")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "reports" / "loaders.md")
    wanted = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    state: dict[str, Any] = {}
    if wanted.state and wanted.state.is_file():
        state = json.loads(wanted.state.read_text())
    for kind in [k for k in KINDS if not wanted.only or k in wanted.only.split(",")]:
        if kind in state:
            continue
        times: dict[str, list[float]] = {str(n): [] for n in WORKERS}
        for _ in range(2):
            for n in WORKERS:
                times[str(n)].append(timed(kind, n, wanted.seconds))
        state[kind] = {"times": times, "said": {str(n): promised(kind, n) for n in WORKERS[:-1]}}
        print(kind, times, state[kind]["said"], flush=True)
        if wanted.state:
            wanted.state.write_text(json.dumps(state))
        wanted.out.write_text(render(state, cores))


if __name__ == "__main__":
    main()
