"""Records the cases of tests/benchmarks/cases: diagnoses each, then measures what its fix brings.

In: the scripts of that folder and the machine this runs on. Out: per case a folder with the run
(run.json, loader.json, compile.json, its trace cut to two steps), CASE.md, and truth.json:

    {"case": ..., "fix": "FX404", "what": "...", "slow_ms": [...], "fixed_ms": [...], "without_ms": {...},
     "device": ..., "torch": ..., "command": "python tests/benchmarks/cases/....py [--fixed]"}

    python tests/benchmarks/record_cases.py [--out tests/recorded] [--seconds 450] [CASE ...]

Every case is diagnosed and measured once, slow and fixed in turns; what is left of `--seconds` goes
into repeats. Nothing is selected: a case that fails says so and the others go on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from gallery import record, write_truth
from step_times import REPOSITORY, ScriptFailedError, StepTimes, run_once

from torch_bottleneck.catalog.registry import by_id

CASES = Path(__file__).with_name("cases")
DEVICE = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "a CPU"


@dataclass(frozen=True)
class Plan:
    """One case: the fix that its `--fixed` carries out, in words and by number."""

    script: str
    fix: str
    what: str
    steps: int = 120
    fixes: tuple[str, ...] = ()
    """Where `--fixed` carries out several, which answer one question together."""
    parts: tuple[tuple[str, str], ...] = ()
    """Values of `--without`, each of which mends one cause of several, and that cause's kind of break."""


PLANS = (
    Plan("breaks_in_loop", "FX403", "no clock read in the loop over the layers"),
    Plan(
        "nested_breaks",
        "FX403",
        "no disabled function, no logger call",
        fixes=("FX403", "FX417"),
        parts=(("rope", "disabled"), ("log", "print")),
    ),
    Plan("cudagraph_skip", "FX413", "no tensor of the model left on the CPU"),
    Plan("for_loop_optimizer", "FX311", "fused=True", steps=100),
    Plan("fp32_products", "FX301", 'float32 matmul precision "high"', steps=60),
    Plan("attention_by_hand", "FX306", "scaled_dot_product_attention", steps=60),
    Plan("recompiles_by_shape", "FX408", "lengths padded to multiples of 64", steps=50),
)


@dataclass
class Times(StepTimes):
    """Step times of one case, and of each part mended alone, one entry per repeat."""

    without_ms: dict[str, list[float]] = field(default_factory=dict)


def diagnose(plan: Plan, folder: Path) -> bool:
    """Run the tool on the slow script; whether a diagnosis came out."""
    command = [
        sys.executable, "-m", "torch_bottleneck", "diagnose", "--quiet", "--out", str(folder),
        f"tests/benchmarks/cases/{plan.script}.py",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    if not (folder / "diagnosis.json").is_file():
        print(f"{plan.script}: exit code {ended.returncode}\n{ended.stderr[-2000:]}", flush=True)
        return False
    return True


def time_once(plan: Plan, times: Times) -> None:
    """Add one run of the slow script, of the fixed one, and of each part mended alone."""
    script, steps = CASES / f"{plan.script}.py", ["--steps", str(plan.steps)]
    try:
        slow = run_once(script, steps)
        fixed = run_once(script, [*steps, "--fixed"])
        parts = {part: run_once(script, [*steps, "--without", part]) for part, _ in plan.parts}
    except ScriptFailedError as failure:
        print(failure, flush=True)
        return
    times.slow_ms.append(slow)
    times.fixed_ms.append(fixed)
    for part, value in parts.items():
        times.without_ms.setdefault(part, []).append(value)


def write_both(target: Path, plan: Plan, times: Times) -> None:
    """Write truth.json and CASE.md."""
    more: dict[str, object] = {}
    if plan.fixes:
        more |= {"fixes": plan.fixes, "question": by_id(plan.fix).what_if}
    if times.without_ms:
        more |= {"without_ms": times.without_ms, "parts": dict(plan.parts)}
    write_truth(
        target,
        times,
        fix=plan.fix,
        what=plan.what,
        command=f"python tests/benchmarks/cases/{plan.script}.py [--fixed]",
        device=DEVICE,
        **more,
    )
    (target / "CASE.md").write_text(
        f"# tests/benchmarks/cases/{plan.script}.py\n\n| key | value |\n| --- | --- |\n"
        f"| device | {DEVICE} |\n| torch | {torch.__version__} |\n\n"
        f"    python -m torch_bottleneck diagnose tests/benchmarks/cases/{plan.script}.py\n\n"
        f"The trace is cut to two steps. The fix measured in truth.json: {plan.what}.\n"
        "Written by tests/benchmarks/record_cases.py.\n"
    )


def main() -> None:
    """Record what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=[plan.script for plan in PLANS])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests" / "recorded")
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--keep", type=Path, help="keep the whole run folders here")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    kept: dict[str, tuple[Plan, Path, Times]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for plan in PLANS:
            if plan.script not in args.names or time.monotonic() > end:
                continue
            began = time.monotonic()
            folder = (args.keep or Path(scratch)) / plan.script
            if not diagnose(plan, folder):
                continue
            target = args.out / f"case-{plan.script.replace('_', '-')}"
            shutil.rmtree(target, ignore_errors=True)
            record(folder, target)
            times = Times(plan.script)
            time_once(plan, times)
            write_both(target, plan, times)
            kept[plan.script] = (plan, target, times)
            print(f"{plan.script}: {time.monotonic() - began:.0f} s, {times}", flush=True)
    longest = 0.0
    while kept and time.monotonic() + longest < end:
        began = time.monotonic()
        plan, target, times = min(kept.values(), key=lambda entry: len(entry[2].slow_ms))
        time_once(plan, times)
        write_both(target, plan, times)
        longest = max(longest, time.monotonic() - began)


if __name__ == "__main__":
    main()
