"""Holds the price of graph breaks to loops that were measured with their break and without.

In: scripts that are compiled and take --fixed (atom_energies.py: VARIANT=b). Out: reports/breaks.md
(reports/breaks-gpu.md on a GPU): the step without its seams as a share of the step, predicted and measured.

    python tests/benchmarks/breaks.py [--only NAME,NAME] [--pairs 3] [--keep DIR]

With and without in turns and with nothing attached, then a diagnosis of the one with its break.
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

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LOOPS = {
    "graph_breaks": REPOSITORY / "examples/graph_breaks.py",
    "breaks_in_loop": HERE / "cases/breaks_in_loop.py",
    "nested_breaks": HERE / "cases/nested_breaks.py",
    "compiled_branches": HERE / "trials/compiled_branches.py",
    "print_in_compiled": HERE / "trials/print_in_compiled.py",
    "atom_energies": HERE / "threads/unseen/atom_energies.py",
}
STEP = re.compile(r"step_ms=([0-9.]+)|([0-9.]+) ms per step")
TIMEOUT_S = 600
HEAD = """\
# Graph breaks: predicted and measured

{machine}; {pairs} runs with and without, in turns. Written by `python tests/benchmarks/breaks.py`.

Predicted: the step of the diagnosed run without its seams, as a share of that step. Measured: the step of the
mended loop as a share of the one with its break, nothing attached. What one graph fuses beyond the
seams is not priced, so a prediction errs upwards where the pieces are long.

| loop | with ms | without ms | class | predicted | measured | error | of the saving |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


def run_ms(script: Path, *, fixed: bool) -> float:
    """Return the step time that a script prints."""
    command = [sys.executable, str(script), *(["--fixed"] if fixed else [])]
    environment = {**os.environ, "VARIANT": "b" if fixed else "a"}
    done = subprocess.run(
        command, cwd=script.parent, env=environment, text=True, capture_output=True, timeout=TIMEOUT_S
    )
    found = STEP.search(done.stdout)
    if done.returncode or not found:
        raise SystemExit(f"{script.name} failed:\n{done.stderr[-2000:]}")
    return float(found.group(1) or found.group(2))


def diagnose(script: Path, folder: Path) -> dict[str, Any]:
    """Diagnose the loop with its break."""
    options = ["-q", "--trial-seconds", "0", "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "torch_bottleneck", "diagnose", *options, str(script)],
        cwd=script.parent, env={**os.environ, "VARIANT": "a"}, text=True, capture_output=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    stored = folder / "diagnosis.json"
    if not stored.is_file():
        raise SystemExit(f"{script.name} was not diagnosed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(stored.read_text())
    return found


def row(name: str, slow: float, fixed: float, diagnosis: dict[str, Any]) -> str:
    """Return one line of the table."""
    saves = next((q["saves_ms"] for q in diagnosis["what_ifs"] if q["question"] == "seams-gone"), 0.0)
    predicted, measured = 1 - saves / diagnosis["step"]["true_ms"], fixed / slow
    part = (1 - predicted) / (1 - measured) if measured < 1 else float("nan")
    verdict = diagnosis["verdict"]
    return (
        f"| {name} | {slow:.2f} | {fixed:.2f} | {verdict['class']} ({verdict['confidence']}) "
        f"| {predicted:.0%} | {measured:.0%} | {predicted / measured - 1:+.0%} | {part:.0%} |"
    )


def main() -> None:
    """Measure, diagnose, compare; the report is written after each loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if gpu else f"CPU, {torch.get_num_threads()} threads"
    load = f"load average {os.getloadavg()[0]:.1f} at the start"
    head = HEAD.format(machine=f"{device}, torch {torch.__version__}; {load}", pairs=args.pairs)
    out = args.out or REPOSITORY / "reports" / ("breaks-gpu.md" if gpu else "breaks.md")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in [each for each in args.only.split(",") if each] or LOOPS:
            script = LOOPS[name]
            turns = [(run_ms(script, fixed=False), run_ms(script, fixed=True)) for _ in range(args.pairs)]
            slow, fixed = (median(times) for times in zip(*turns, strict=True))
            rows.append(row(name, slow, fixed, diagnose(script, (args.keep or Path(scratch)) / name)))
            print(rows[-1], flush=True)
            out.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
