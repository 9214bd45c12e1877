"""Would compiling help? Diagnoses eager loops, then measures the same loops compiled.

In: the kinds of would_compile.py and the machine this runs on. Out, per kind: tests/recorded/compile-KIND/
with the eager run (its trace cut to two steps), CASE.md, and truth.json:

    fix    FX414 (default mode), slow_ms and fixed_ms: eager and compiled steps in turns, one process
    also   {"FX412": {"slow_ms": [...], "fixed_ms": [...]}} for the kinds measured with CUDA graphs too

    python tests/benchmarks/record_compile.py [--out FOLDER] [--keep FOLDER] [--seconds 400] [KIND ...]

`--keep` also diagnoses the compiled forms, whose traces tell what is left. Compilers are warmed up first,
all kinds side by side, so that the measuring runs find inductor's cache filled.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from gallery import record, write_truth
from step_times import REPOSITORY, StepTimes
from would_compile import DEVICE as KIND_OF_DEVICE
from would_compile import KINDS

SCRIPT = "tests/benchmarks/would_compile.py"
WITH_GRAPHS = ("mlp", "recurrent")
"""Kinds small enough that their launches count: also measured with CUDA graphs."""
FIX = {"default": "FX414", "reduce-overhead": "FX412"}
DEVICE = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "a CPU"
_PAIRS = re.compile(r"^step_ms=.* pairs=(\S+)", re.MULTILINE)


def call(*arguments: str, limit_s: float = 200) -> str | None:
    """Run Python in the repository; its stdout, or None (said why) where it failed."""
    try:
        ended = subprocess.run(
            [sys.executable, *arguments],
            cwd=REPOSITORY, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{' '.join(arguments)}: longer than {limit_s:.0f} s", flush=True)
        return None
    if ended.returncode:
        print(f"{' '.join(arguments)}: exit code {ended.returncode}\n{ended.stderr[-1500:]}", flush=True)
        return None
    return ended.stdout


def modes_of(kind: str) -> list[str]:
    return ["default", *(["reduce-overhead"] if kind in WITH_GRAPHS else [])]


def diagnose(folder: Path, *arguments: str) -> bool:
    """Run the tool on one form; whether a diagnosis came out."""
    tool = ("-m", "torch_bottleneck", "diagnose", "--quiet", "--no-memory", "--out", str(folder))
    call(*tool, SCRIPT, *arguments, limit_s=120)
    return (folder / "diagnosis.json").is_file()


def timed(kind: str, mode: str, steps: int) -> StepTimes:
    """Measure eager and compiled steps in turns."""
    told = call(SCRIPT, kind, "--compile", mode, "--turns", "3", "--steps", str(steps))
    found = _PAIRS.search(told or "")
    times = StepTimes(kind)
    for pair in found[1].split(",") if found else ():
        eager, compiled = pair.split(":")
        times.slow_ms.append(float(eager))
        times.fixed_ms.append(float(compiled))
    return times


def write_both(target: Path, kind: str, by_mode: dict[str, StepTimes]) -> None:
    """Write truth.json and CASE.md."""
    also = {
        FIX[mode]: {"slow_ms": times.slow_ms, "fixed_ms": times.fixed_ms}
        for mode, times in by_mode.items()
        if mode != "default" and times.fixed_ms
    }
    write_truth(
        target,
        by_mode["default"],
        fix=FIX["default"],
        what="torch.compile of the model (or of both models), nothing else",
        command=f"python {SCRIPT} {kind} --turns 3 --compile default",
        device=DEVICE,
        **({"also": also} if also else {}),
    )
    (target / "CASE.md").write_text(
        f"# {SCRIPT} {kind}\n\n| key | value |\n| --- | --- |\n"
        f"| device | {DEVICE} |\n| torch | {torch.__version__} |\n\n"
        f"    python -m torch_bottleneck diagnose {SCRIPT} {kind}\n\n"
        "The eager form; the trace is cut to two steps. Measured in truth.json: blocks of eager and of\n"
        "compiled steps in turns, in one process, with nothing attached.\n"
        "Written by tests/benchmarks/record_compile.py.\n"
    )


def main() -> None:
    """Record what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests" / "recorded")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--steps", type=int, default=60, help="steps of a block")
    parser.add_argument("--keep", type=Path, help="keep the whole run folders of both forms here")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds

    forms = [(kind, mode) for kind in args.kinds for mode in modes_of(kind)]
    began = time.monotonic()
    with ThreadPoolExecutor(len(forms) if KIND_OF_DEVICE == "cuda" else 1) as side_by_side:
        list(
            side_by_side.map(lambda form: call(SCRIPT, form[0], "--compile", form[1], "--steps", "4"), forms)
        )
    print(f"compilers warm after {time.monotonic() - began:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for kind in args.kinds:
            began = time.monotonic()
            if began > end:
                print(f"{kind}: no time left", flush=True)
                continue
            folder = (args.keep or Path(scratch)) / kind
            if not diagnose(folder, kind):
                print(f"{kind}: no diagnosis", flush=True)
                continue
            by_mode = {mode: timed(kind, mode, args.steps) for mode in modes_of(kind)}
            target = args.out / f"compile-{kind.replace('_', '-')}"
            shutil.rmtree(target, ignore_errors=True)
            record(folder, target)
            write_both(target, kind, by_mode)
            told = json.dumps({mode: [t.slow_ms, t.fixed_ms] for mode, t in by_mode.items()})
            print(f"{kind}: {time.monotonic() - began:.0f} s {told}", flush=True)
        for kind, mode in forms if args.keep else ():
            if time.monotonic() + 30 < end:
                began = time.monotonic()
                found = diagnose(args.keep / f"{kind}-{mode}", kind, "--compile", mode)
                print(f"{kind} {mode} diagnosed: {found}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
