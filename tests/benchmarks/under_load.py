"""Runs `bottleneck diagnose` beside busy processes: no hang, and no wrong class that is called sure.

In: twenty scripts that state their planted bottleneck (examples/, trials/), a time limit for each. Out:
reports/under-load.md: one row per script. Two processes that never sleep run all the while. A verdict may
be right, undetermined, or wrong with low confidence; wrong with medium or high confidence, or no end within
the limit, is a failure (exit code 1).

    python tests/benchmarks/under_load.py [--busy N] [--state FILE] [NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from step_times import REPOSITORY
from trials import FOLDER, read_trial

EXAMPLES = {
    "input_bound": ("input-bound",),
    "compute_bound": ("compute-bound",),
    "launch_bound": ("launch-bound",),
    "graph_breaks": ("graph-break-bound",),
    "allocator_thrashing": ("allocator-thrashing",),
}
"""Those whose class exists without a GPU."""
TRIALS = (
    "journal_fsync", "loss_in_numpy", "double_precision", "evaluation_often", "batch_and_metrics",
    "anomaly_mode", "printed_tensors", "short_epochs", "tabular", "ema_by_deepcopy", "replay_deque",
    "gc_collect", "text_stream", "head_loop", "healthy_mlp",
)  # fmt: skip
TIMEOUT_S = 240


@dataclass
class Row:
    """One script, and what came of it."""

    name: str
    accepted: tuple[str, ...]
    verdict: str = "-"
    confidence: str = ""
    quality: str = ""
    step: str = ""
    seconds: float = 0.0
    problem: str = ""

    @property
    def judged(self) -> str:
        """What is said of it in the report."""
        if self.problem:
            return "NO: " + self.problem
        if self.verdict in self.accepted:
            return "right"
        if self.verdict == "undetermined":
            return "left open"
        return "wrong, low confidence" if self.confidence == "low" else "NO: wrong, and sure"


def run(row: Row, script: Path, folder: Path, *options: str) -> None:
    """Diagnose a script and enter what came of it."""
    command = [sys.executable, "-m", "torch_bottleneck", "diagnose", "-q", *options, "--out", str(folder)]
    command.append(str(script))
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        _, said = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        row.problem, row.seconds = f"no end within {TIMEOUT_S} s", time.monotonic() - began
        return
    row.seconds = time.monotonic() - began
    stored = folder / "diagnosis.json"
    if process.returncode not in (0, 3) or not stored.is_file():
        row.problem = f"exit code {process.returncode}: {said.decode(errors='replace').strip()[-200:]}"
        return
    found = json.loads(stored.read_text())
    row.verdict, row.confidence = found["verdict"]["class"], found["verdict"]["confidence"]
    row.quality = found["capture"]["quality"]
    true_ms, interval = found["step"]["true_ms"], found["step"]["true_ci_ms"]
    if true_ms is not None:
        row.step = f"{true_ms:.2f}" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Let so many processes run that never sleep."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10000))"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def render(rows: list[Row], *, busy: int, load: list[float]) -> str:
    """Return the report."""
    failed = [row for row in rows if row.judged.startswith("NO")]
    counts = [f"{sum(row.judged == kind for row in rows)} {kind}" for kind in ("right", "left open")]
    counts.append(f"{sum(row.judged.startswith('wrong') for row in rows)} wrong with low confidence")
    return "\n".join(
        [
            "# Verdicts beside busy processes",
            "",
            f"{os.cpu_count()} cores, torch {torch.__version__}, one thread each, {busy} busy processes "
            "beside it.",
            f"Load average of the machine over the runs: {min(load):.1f} to {max(load):.1f}; what exceeds "
            f"{busy + 1} is other work on it.",
            "Written by `python tests/benchmarks/under_load.py`.",
            "",
            f"**{len(rows)} scripts: {', '.join(counts)}, {len(failed)} failed (a hang, or a wrong "
            "class that is called sure).**",
            "",
            "| script | planted | verdict | judged | capture | step, ms (95 %) | run took, s |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(
                f"| {row.name} | {' or '.join(row.accepted)} | {row.verdict} ({row.confidence or '-'}) "
                f"| {row.judged} | {row.quality or '-'} | {row.step or '-'} | {row.seconds:.0f} |"
                for row in rows
            ),
            "",
        ]
    )


def main() -> int:
    """Run the scripts and write the report after each, so that a stopped run leaves one too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--busy", type=int, default=2, help="processes beside the script")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "reports" / "under-load.md")
    parser.add_argument("--state", type=Path, help="keep rows here as JSON; those in it are not run again")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    scripts = {name: REPOSITORY / "examples" / f"{name}.py" for name in EXAMPLES}
    scripts |= {name: FOLDER / f"{name}.py" for name in TRIALS}
    rows: list[Row] = []
    load: list[float] = []
    if args.state and args.state.is_file():
        kept = json.loads(args.state.read_text())
        rows, load = (
            [Row(**{**row, "accepted": tuple(row["accepted"])}) for row in kept["rows"]],
            kept["load"],
        )
    with busy_processes(args.busy), tempfile.TemporaryDirectory() as scratch:
        for name, script in scripts.items():
            if (args.names and name not in args.names) or name in {row.name for row in rows}:
                continue
            accepted = EXAMPLES.get(name) or read_trial(script).accepted
            row = Row(name, accepted)
            run(row, script, Path(scratch) / name)
            rows.append(row)
            load.append(os.getloadavg()[0])
            if args.state:
                args.state.write_text(json.dumps({"rows": [asdict(r) for r in rows], "load": load}))
            args.out.write_text(render(rows, busy=args.busy, load=load))
            print(
                f"{row.name:22} {row.verdict} {row.confidence} {row.judged} {row.seconds:.0f} s",
                flush=True,
            )
    return any(row.judged.startswith("NO") for row in rows)


if __name__ == "__main__":
    sys.exit(main())
