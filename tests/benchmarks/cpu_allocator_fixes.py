"""What the fixes of a thrashing CPU allocator bring, on the network of PyTorch's MNIST example.

    python tests/benchmarks/cpu_allocator_fixes.py [--rounds 3] [--steps 30] [--out reports/cpu-allocator.md]

In: tests/benchmarks/cpu_allocator.py and this machine. Out: a table of step time, page faults and system
time, plain and with each fix, in turns; above it what `bottleneck diagnose` says of the plain run. Fixes
whose library is not installed are left out, and said so. Without --out it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from ctypes.util import find_library
from pathlib import Path

import torch

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = "tests/benchmarks/cpu_allocator.py"
LINE = re.compile(r"step_ms=(\S+) faults=(\d+) system_ms=(\S+) cpu_ms=(\S+)")
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
_BUSY = 1.3
RECORDED = (
    "On 16 idle cores the same run was recorded with its fix: `cpu-allocator-16-cores` in "
    "[accuracy.md](accuracy.md)."
)
BUSY = """
The machine was busy, as the step times' ends show: compare the processor time, which others do not lengthen.
"""
PRELOAD = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}


def kinds() -> dict[str, dict[str, str] | None]:
    """Return the environment of each way to run; None where its library is missing."""
    jemalloc, tcmalloc = find_library("jemalloc"), find_library("tcmalloc_minimal")
    return {
        "glibc as it comes": {},
        "FX205 MALLOC_MMAP_MAX_=0, no trimming": KEEP,
        "FX206 jemalloc, pages kept": {**PRELOAD, "LD_PRELOAD": jemalloc} if jemalloc else None,
        "FX206 tcmalloc": {"LD_PRELOAD": tcmalloc} if tcmalloc else None,
        "FX208 THP_MEM_ALLOC_ENABLE=1": {"THP_MEM_ALLOC_ENABLE": "1"},
    }


def run(steps: int, environment: dict[str, str]) -> tuple[float, ...]:
    """Return step time, faults, system time and processor time per step of one run."""
    ended = subprocess.run(
        [sys.executable, SCRIPT, "--steps", str(steps)], cwd=REPOSITORY, env={**os.environ, **environment},
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    found = LINE.search(ended.stdout)
    assert found is not None, ended.stdout
    return tuple(map(float, found.groups()))


def diagnose() -> str:
    """Return what the tool says of the plain script."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "torch_bottleneck",
            "diagnose",
            "--quiet",
            "--out",
            f"{scratch}/run",
            SCRIPT,
        ]
        subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=600, check=False)
        said = json.loads((Path(scratch) / "run" / "diagnosis.json").read_text())
    finding = next((f for f in said["findings"] if f["code"] == "BN203"), None)
    step = said["step"]["true_ms"]
    price = "no finding of page faults"
    if finding is not None:
        price = f"BN203, {finding['cost_ms']:.0f} ms of {step:.0f} ms ({finding['cost_ms'] / step:.0%})"
        faults = next(e["text"] for e in finding["evidence"])
        price += f": {faults}"
    return f"Verdict **{said['verdict']['class']}**; {price}."


def main() -> None:
    """Run everything in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    taken: dict[str, list[tuple[float, ...]]] = {}
    for _ in range(args.rounds):
        for name, environment in kinds().items():
            if environment is not None:
                taken.setdefault(name, []).append(run(args.steps, environment))
    lines = []
    plain = statistics.median(row[0] for row in taken["glibc as it comes"])
    for name, rows in taken.items():
        step, faults, system, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        spread = f"{min(row[0] for row in rows):.0f} to {max(row[0] for row in rows):.0f}"
        times = f"{step:.0f} | {spread} | {plain / step:.2f}x"
        lines.append(f"| {name} | {times} | {cpu:.0f} | {system:.0f} | {faults:.0f} |")
    missing = [name for name, environment in kinds().items() if environment is None]
    threads = torch.get_num_threads()
    text = (
        "# A thrashing CPU allocator, and what its fixes bring\n\n"
        "The network of PyTorch's MNIST example (pytorch/examples/mnist) with a batch of 1024: its feature\n"
        "maps of 88 and 151 MB are mapped, faulted in, zeroed and unmapped in every step.\n\n"
        f"{diagnose()}\n\n"
        f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}, "
        f"{platform.libc_ver()[0]} {platform.libc_ver()[1]}; median of {args.rounds} rounds in turns, "
        f"{args.steps} steps each; figures per step.\n"
        "Made by `python tests/benchmarks/cpu_allocator_fixes.py`.\n\n"
        "| malloc | step, ms | from, to | gain | processor time, ms | of it system, ms | page faults |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n" + "\n".join(lines) + "\n"
    )
    if any(max(row[0] for row in rows) > _BUSY * min(row[0] for row in rows) for rows in taken.values()):
        text += BUSY
    if missing:
        text += "\nNot installed here: " + ", ".join(missing) + ".\n"
    text += f"\n{RECORDED}\n"
    print(text)
    if args.out is not None:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
