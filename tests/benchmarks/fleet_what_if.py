"""The predicted step without a late rank, beside the measured one, lateness planted: on GPUs, or with gloo.

    python tests/benchmarks/fleet_what_if.py OUT                      # 2 ranks; on GPUs where there are two
    python tests/benchmarks/fleet_what_if.py OUT --ranks 4 --plants input
    python tests/benchmarks/fleet_what_if.py OUT --minutes 6 --ms 10

`fleet_job.py` is run with torchrun. Once per kind of model it switches its plants on and off in turns of 21
steps, so that all steps are measured in one run, on a machine as busy. Then per plant `bottleneck diagnose`
runs it with that plant always on, and the ranks' joint replay predicts the step without it. Compared are
the ratios of both steps. Collections come at random, so the diagnosed steps hold another share of them than
the measured ones: there the measured step without them is divided by the diagnosed step. OUT gets
`what-if.md`, a row per case as it ends, and `runs.tar`: of each case `diagnosis.json`, `report.md`, the
summaries. It ends when the next case may not fit into `--minutes`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch

from torch_bottleneck.diagnose.all_ranks import read_job
from torch_bottleneck.errors import BottleneckError
from torch_bottleneck.ingest.bundle import load

JOB = Path(__file__).with_name("fleet_job.py")
TURN = 21
"""Steps of a turn of the job's, as there."""
CAUSES = {
    "input": ("input",),
    "host": ("host",),
    "gc": ("garbage collection",),
    "compute": ("compute",),
    "device": ("slower device", "compute"),
}
CASES = (
    ("ddp", ("input", "host", "gc", "device", "compute")),
    ("fsdp2", ("host", "compute")),
    ("tensor", ("host", "compute")),
    ("grid", ("input", "host")),
)
HEAD = (
    "| model | ranks | planted | with, ms | without, ms | ratio | predicted | off by | diagnosed, ms | late "
    "| cause |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---|---|"
)


def launch(folder: Path, ranks: int, seconds: float, *arguments: str) -> str:
    """Run something on so many ranks and return what it prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]  # on a free port of its own
    command += ["--nproc-per-node", str(ranks), *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode not in (0, 3):
        raise RuntimeError(f"{process.returncode}: {errors[-3000:]}")
    return told


def row(kind: str, ranks: int, plant: str, measured: dict[str, float], run: Path) -> str:
    """Return a row of the table."""
    fleet = json.loads((run / "diagnosis.json").read_text())["fleet"]
    late = "; ".join(f"{s['kind']} {s['ranks']}" for s in fleet["stragglers"]) or "nobody"
    causes = [s["cause"] for s in fleet["stragglers"] if ranks - 1 in s["ranks"]]
    ratio = measured["off"] / (fleet["step_ms"] if plant == "gc" else measured[plant])
    predicted = fleet["step_without_late_ranks_ms"] / fleet["step_ms"]
    return (
        f"| {kind} | {ranks} | {plant} | {measured[plant]:.1f} | {measured['off']:.1f} | {ratio:.3f} "
        f"| {predicted:.3f} | {100 * (predicted / ratio - 1):+.1f} % | {fleet['step_ms']:.1f} | {late} "
        f"| {', '.join(causes)}{' (right)' if set(causes) & set(CAUSES[plant]) else ''} |"
    )


def keep(out: Path, name: str, run: Path, *, most_bytes: float) -> None:
    """Add what is small of a run to the archive, and its traces to another one while there is room."""
    (run / "summaries.msgpack").write_bytes(msgspec.msgpack.encode(read_job(load(run).ranks).summaries))
    with tarfile.open(out / "runs.tar", "a") as archive:
        for each in ("diagnosis.json", "report.md", "summaries.msgpack"):
            if (run / each).is_file():
                archive.add(run / each, f"{name}/{each}")
    files = [path for path in run.glob("rank*/**/*") if path.is_file()]
    traces = out / "traces.tar"
    kept = traces.stat().st_size if traces.exists() else 0
    if kept + sum(path.stat().st_size for path in files) < most_bytes:
        with tarfile.open(traces, "a") as archive:
            for path in files:
                archive.add(path, f"{name}/{path.relative_to(run)}")


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2])
    parser.add_argument("--models", nargs="*", choices=[kind for kind, _ in CASES], default=None)
    parser.add_argument("--plants", nargs="*", choices=CAUSES, default=None)
    parser.add_argument("--ms", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3, help="turns with each plant, and one to warm up")
    parser.add_argument("--traces", type=float, default=0.0, help="MB of traces to keep, too")
    parser.add_argument("--minutes", type=float, default=600.0)
    wanted = parser.parse_args()
    until = time.monotonic() + 60 * wanted.minutes
    wanted.out.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.is_available()
    longest = 0.0
    usual = [kind for kind, _ in CASES if kind != "grid" or min(wanted.ranks) > 2]

    def tell(text: str) -> None:
        print(text, flush=True)
        with (wanted.out / "what-if.md").open("a") as file:
            file.write(text + "\n")

    tell(HEAD)
    for kind, all_plants in CASES:
        plants = [p for p in all_plants if p in (wanted.plants or CAUSES) and (gpu or p != "device")]
        for ranks in wanted.ranks if plants and kind in (wanted.models or usual) else []:
            with tempfile.TemporaryDirectory() as name, suppressed(tell, f"{kind}, {ranks} ranks"):
                folder = Path(name)
                common = (str(JOB), kind, "--ms", str(wanted.ms))
                steps = 2 * TURN * len(plants) * (wanted.rounds + 1)
                told = launch(
                    folder, ranks, until - time.monotonic(), *common, "--measure", "--steps", str(steps),
                    "--plants", *plants,
                )  # fmt: skip
                measured = json.loads(told.strip().splitlines()[-1])
                tell(f"<!-- {kind} {ranks} {json.dumps(measured)} -->")
                for plant in plants:
                    began = time.monotonic()
                    if began + longest > until:
                        tell(f"<!-- no time left for {kind} {plant} -->")
                        return
                    with suppressed(tell, f"{kind}, {ranks} ranks, {plant}"):
                        run = folder / plant
                        launch(
                            folder, ranks, until - began, "-m", "torch_bottleneck", "diagnose",
                            "--trial-seconds", "0", "--out", str(run), *common, "--plants", plant,
                        )  # fmt: skip
                        tell(row(kind, ranks, plant, measured, run))
                        keep(wanted.out, f"{kind}-{ranks}-{plant}", run, most_bytes=wanted.traces * 1e6)
                    longest = max(longest, time.monotonic() - began)


@contextlib.contextmanager
def suppressed(tell: Callable[[str], None], what: str) -> Iterator[None]:
    """Tell of a case that fails, and go on."""
    try:
        yield
    except (RuntimeError, subprocess.TimeoutExpired, OSError, ValueError, KeyError, BottleneckError) as error:
        tell(f"<!-- {what}: {str(error)[-3000:]} -->")


if __name__ == "__main__":
    main()
