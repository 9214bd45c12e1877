"""Diagnoses every memory case on a GPU, measures it and its mended twin, and keeps what is needed.

In: memory_cases.py and the machine this runs on. Out, under --out:

    <case>/run/            the run folder as captured (trace and snapshot included)
    <case>/diagnosis.json  as the tool judged it then
    <case>/truth.json      keys case, fix, slow_ms, fixed_ms, device, command; and peak and growth

    python tests/benchmarks/record_memory.py --out FOLDER [--seconds 450] [CASE ...]

Step time and peak are measured with nothing attached, slow and mended in turns. Cases that do not
begin within `--seconds` are left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from memory_cases import CASES

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
SCRIPT = "tests/benchmarks/memory_cases.py"
LINE = re.compile(r"step_ms=(\S+) peak_bytes=(\d+) grown_bytes=(-?\d+) batch=(\d+)")

FIXES = {
    "empty-cache": "FX204",
    "variable-lengths": "FX201",
    "lengths-near-cap": "FX201",
    "leak": "FX211",
    "gradients-kept": "FX210",
    "vocabulary": "FX217",
    "optimizer-state": "FX216",
    "activations": "FX213",
    "recompute": "FX214",
    "spike": "FX212",
    "small-batch": "FX221",
    "oom-fragmented": "FX201",
}
"""The fix that `--fixed` carries out; cases without one have no mended twin."""
OTHER_FIXES = {"lengths-near-cap": ("FX202", "FX203")}
"""Further fixes of a case, by `--fixed FX...`."""


def measure(case: str, *fixed: str) -> dict[str, float] | None:
    """Run a case with nothing attached; None if it failed, as some are meant to."""
    command = [sys.executable, SCRIPT, case, *fixed, "--steps", "50"]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    found = LINE.search(ended.stdout)
    if not found:
        print(f"{case} {' '.join(fixed)}: {ended.stderr.strip()[-400:]}", flush=True)
        return None
    step_ms, peak, grown, batch = map(float, found.groups())
    return {"step_ms": step_ms, "peak_bytes": peak, "grown_bytes": grown, "batch": batch}


def record(case: str, out: Path, *, repeats: int) -> None:
    """Diagnose and measure one case."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = [
        sys.executable, "-m", "torch_bottleneck", "diagnose", "--out", str(out / "run"), SCRIPT, case,
        "--steps", "400",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    (out / "diagnose.txt").write_text(f"{ended.stdout}\n--- stderr\n{ended.stderr}\nrc={ended.returncode}\n")
    stored = out / "run" / "diagnosis.json"
    if stored.is_file():
        shutil.copy(stored, out / "diagnosis.json")
    slow, fixed = [], []
    others: dict[str, list[dict[str, float] | None]] = {fix: [] for fix in OTHER_FIXES.get(case, ())}
    for _ in range(repeats if case in FIXES else 0):
        slow.append(measure(case))
        fixed.append(measure(case, "--fixed"))
        for fix, rows in others.items():
            rows.append(measure(case, "--fixed", fix))
    truth: dict[str, Any] = {
        "case": case,
        "fix": FIXES.get(case),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "command": f"python -m torch_bottleneck diagnose {SCRIPT} {case} --steps 400",
    }
    for name, rows in (("slow", [r for r in slow if r]), ("fixed", [r for r in fixed if r])):
        for key, unit in (("step_ms", "ms"), ("peak_bytes", "peak_bytes"), ("grown_bytes", "grown_bytes")):
            if rows:
                truth[f"{name}_{unit}"] = statistics.median(row[key] for row in rows)
        if rows:
            truth[f"{name}_batch"] = rows[0]["batch"]
    if others:
        truth["other_fixes_ms"] = {
            fix: statistics.median(row["step_ms"] for row in measured) if measured else None
            for fix, measured in ((fix, [row for row in rows if row]) for fix, rows in others.items())
        }
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    print(json.dumps(truth), flush=True)


def main() -> None:
    """Record the named cases, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    begin = time.monotonic()
    for case in args.cases:
        spent = time.monotonic() - begin
        if spent > args.seconds:
            print(f"{case}: left out after {spent:.0f} s", flush=True)
            continue
        try:
            record(case, args.out / case, repeats=args.repeats)
        except subprocess.TimeoutExpired as late:
            print(f"{case}: {late}", flush=True)
        print(f"{case}: {time.monotonic() - begin - spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
