"""Step times of slow scripts and their fixed twins, measured with no tool attached.

In: scripts that print `step_ms=...` and take `--fixed`. Out: per script the step times of both, in
interleaved repeats, so that a drift of the machine falls on both alike.

    python tests/benchmarks/step_times.py [--repeats 3] [--steps N] [--out FILE] [SCRIPT ...]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"

STEP_LINE = re.compile(r"^step_ms=([0-9.]+)", re.MULTILINE)


class ScriptFailedError(RuntimeError):
    """A script ended without its `step_ms=` line."""


@dataclass
class StepTimes:
    """Step times of one script in ms, one entry per repeat."""

    script: str
    slow_ms: list[float] = field(default_factory=list)
    fixed_ms: list[float] = field(default_factory=list)

    @property
    def gain(self) -> float:
        """Median slow over median fixed step time."""
        return statistics.median(self.slow_ms) / statistics.median(self.fixed_ms)


def run_once(script: Path, arguments: Sequence[str] = (), *, timeout_s: float = 300) -> float:
    """Run a script and return the step time it printed, in ms."""
    try:
        ended = subprocess.run(
            [sys.executable, str(script), *arguments],
            capture_output=True, text=True, timeout=timeout_s, check=False, cwd=REPOSITORY,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        raise ScriptFailedError(f"{script.name}: longer than {timeout_s:.0f} s") from late
    found = STEP_LINE.search(ended.stdout)
    if ended.returncode or not found:
        tail = ended.stderr.strip().splitlines()[-3:]
        raise ScriptFailedError(f"{script.name}: exit code {ended.returncode}: {' | '.join(tail)}")
    return float(found.group(1))


def measure(
    script: Path, *, repeats: int = 3, arguments: Sequence[str] = (), timeout_s: float = 300
) -> StepTimes:
    """Run slow, fixed, slow, fixed, ..."""
    times = StepTimes(script.stem)
    for _ in range(repeats):
        times.slow_ms.append(run_once(script, arguments, timeout_s=timeout_s))
        times.fixed_ms.append(run_once(script, [*arguments, "--fixed"], timeout_s=timeout_s))
    return times


def main() -> None:
    """Measure the named scripts, by default every example, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", type=Path, default=sorted(EXAMPLES.glob("*.py")))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    steps = [] if args.steps is None else ["--steps", str(args.steps)]
    rows: list[StepTimes] = []
    for script in args.scripts:
        try:
            row = measure(script, repeats=args.repeats, arguments=steps)
        except ScriptFailedError as failure:
            print(failure, flush=True)
            continue
        rows.append(row)
        slow, fixed = statistics.median(row.slow_ms), statistics.median(row.fixed_ms)
        print(
            f"{row.script:24} slow {slow:9.3f} ms  fixed {fixed:9.3f} ms  gain {row.gain:5.2f}x"
            f"  slow {row.slow_ms}  fixed {row.fixed_ms}",
            flush=True,
        )
        if args.out:
            args.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
