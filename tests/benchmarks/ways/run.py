"""Holds what each fix of `catalog/ways.py` promises to what it brings, in a small training written for it.

In: train.py beside it. Out: reports/ways.md (reports/ways-gpu.md on a GPU). Both forms are timed in turns
with nothing attached; then the one that the fix finds is diagnosed.

    python tests/benchmarks/ways/run.py [--only sort,bag] [--seconds 3] [--state FILE] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from train import CASES

SCRIPT = Path(__file__).with_name("train.py")
REPOSITORY = SCRIPT.parents[3]
WITHIN = 0.1
SHOWN = 1.05
"""What brings less is no gain on this machine: nothing must be promised."""
HEAD = """\
# Other ways to a call: predicted and measured

{machine}. Written by `python tests/benchmarks/ways/run.py`.

A small training for each way, part of which is written as the fix finds it. Measured: the step as the fix
says as a share of the step as found, in turns, nothing attached. Predicted: of the diagnosed run, in which
the call is tried with its own arguments. Place: of the fix among the suggestions.

**{within} of {told} within 10 %, median error {error:.0%}; {found} of {shown} with a gain of 5 % named,
{first} of them first; {silent} of {without} without a gain not promised one.**

| fix | way | found ms | other ms | measured | predicted | error | place | class |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def measured(case: str, seconds: float) -> list[float]:
    """Return the ms of a step as found, and as the fix says."""
    command = [sys.executable, str(SCRIPT), case, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise SystemExit(f"{case} failed:\n{done.stderr[-2000:]}")
    return [float(each) for each in done.stdout.split()]


def told(case: str, folder: Path) -> dict[str, Any]:
    """Diagnose the training as found; return what matters of what is said."""
    shutil.rmtree(folder / case, ignore_errors=True)
    command = [sys.executable, "-m", "torch_bottleneck", "diagnose", "-q", "--trial-seconds", "0"]
    command += ["--out", str(folder / case), str(SCRIPT), case]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=os.environ)
    stored = folder / case / "diagnosis.json"
    if not stored.is_file():
        raise SystemExit(f"{case} was not diagnosed:\n{done.stderr[-2000:]}")
    diagnosis = json.loads(stored.read_text())
    fixes = [each["fix"] for each in diagnosis["suggestions"]]
    its = next((each for each in diagnosis["suggestions"] if each["fix"] == CASES[case][0]), {})
    return {
        "step": diagnosis["step"]["true_ms"],
        "class": diagnosis["verdict"]["class"],
        "predicted": its.get("predicted_ms"),
        "place": fixes.index(its["fix"]) + 1 if its else None,
    }


def report(state: dict[str, Any]) -> str:
    """Return the report of what was measured and told."""
    rows, errors, gains, losses = [], [], [], []
    for case, its in state["cases"].items():
        own, other = its["measured"]
        share = its["predicted"] / its["step"] if its["predicted"] else None
        (gains if own / other >= SHOWN else losses).append(its["place"])
        error = share / (other / own) - 1 if share else None
        errors += [abs(error)] if error is not None else []
        cells = [
            CASES[case][0], case, f"{own:.2f}", f"{other:.2f}", f"{other / own:.2f}",
            f"{share:.2f}" if share else "-", f"{error:+.0%}" if error is not None else "-",
            str(its["place"] or "-"), its["class"],
        ]  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |\n")
    head = HEAD.format(
        machine=state["machine"], within=sum(each <= WITHIN for each in errors), told=len(errors),
        error=median(errors) if errors else 0.0, found=sum(each is not None for each in gains),
        shown=len(gains), first=gains.count(1), silent=losses.count(None), without=len(losses),
    )  # fmt: skip
    return head + "".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--state", type=Path)
    parser.add_argument("--keep", type=Path)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--out", type=Path, default=REPOSITORY / f"reports/ways{'-gpu' if on_gpu else ''}.md")
    options = parser.parse_args()
    machine = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    state: dict[str, Any] = {"machine": f"{machine}, torch {torch.__version__}", "cases": {}}
    if options.state and options.state.is_file():
        state = json.loads(options.state.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        for case in filter(None, options.only.split(",")):
            state["cases"][case] = {"measured": measured(case, options.seconds), **told(case, folder)}
            print(case, *state["cases"][case].items(), flush=True)
            if options.state:
                options.state.write_text(json.dumps(state, indent=1))
    options.out.write_text(report(state))


if __name__ == "__main__":
    main()
