"""Time and memory of `bottleneck analyze` on the traces of many ranks, by number of processes.

    python tests/benchmarks/fleet_make.py FOLDER --ranks 64 --steps 5 --late 17 --cause input
    python tests/benchmarks/fleet_read.py FOLDER --jobs 1 2 --rounds 2

    python tests/benchmarks/fleet_read.py FOLDER --jobs --dask 2 --rounds 1

Each number of processes has its turn in each round, with no summary kept from before; the last line is the
same folder again, with the summaries that the last turn left. Memory is the largest sum over the processes,
with what they share counted once; it and the time of the processor are looked at five times a second. The
load is how many others had work for the processors (an average of the minute at the end).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def processes_of(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
            except (ProcessLookupError, PermissionError):
                continue
    return found


def look(session: int, spent: dict[int, float]) -> float:
    """Return the memory of a session's processes in MB, shared pages counted once; note their processor
    time."""
    total = 0
    for process in processes_of(session):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)
        spent[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total / 1024


def measure(folder: Path, jobs: int, *more: str) -> tuple[float, float, float, str]:
    """Return seconds by the clock, seconds of processor, MB, and who was late."""
    spent: dict[int, float] = {}
    began = time.monotonic()
    command = [sys.executable, "-m", "torch_bottleneck", "analyze", str(folder), "--jobs", str(jobs), *more]
    most = 0.0
    with subprocess.Popen(
        [*command, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        text = b""
        while process.poll() is None:
            most = max(most, look(process.pid, spent))
            text += process.stdout.read() or b""
            time.sleep(0.2)
        text += process.stdout.read() or b""
    late = json.loads(text)["fleet"]["stragglers"]
    told = "; ".join(
        f"{each['ranks']} {each['kind']} {each['cause']} {each['late_ms']:.1f} ms" for each in late
    )
    return time.monotonic() - began, sum(spent.values()), most, told


def forget(folder: Path) -> None:
    """Remove the summaries that were kept."""
    for path in folder.glob(".*.rank-summary"):
        path.unlink()


def main() -> None:
    """Print a row per turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--dask", type=int, nargs="*", default=[], help="workers of a LocalCluster")
    wanted = parser.parse_args()
    ranks = len(list(wanted.folder.glob("*.json.gz")))
    print("| ranks | processes | seconds | of processor | load | MB | late |")
    print("|---:|---:|---:|---:|---:|---:|---|")

    def turn(told: str, jobs: int, *more: str) -> None:
        seconds, spent, most, late = measure(wanted.folder, jobs, *more)
        load = os.getloadavg()[0]
        print(
            f"| {ranks} | {told} | {seconds:.1f} | {spent:.1f} | {load:.1f} | {most:.0f} | {late} |",
            flush=True,
        )

    for _ in range(wanted.rounds):
        for jobs in wanted.jobs:
            forget(wanted.folder)
            turn(str(jobs), jobs)
        for jobs in wanted.dask:
            forget(wanted.folder)
            turn(f"Dask, {jobs} workers", jobs, "--scheduler", "local")
    turn("kept summaries", 1)


if __name__ == "__main__":
    main()
