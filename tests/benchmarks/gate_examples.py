"""The gate over our own examples, on counters alone; CI runs it with the committed baselines.

    python tests/benchmarks/gate_examples.py               # all examples; exit 1 if one has become worse
    python tests/benchmarks/gate_examples.py --update      # write reports/baselines/*.json anew
    python tests/benchmarks/gate_examples.py sync_bound    # one of them

In: examples/*.py and reports/baselines/*.json. Out: a line per example, the whole report of those that
fail, and with --update the baselines. Counters are exact on any CPU; step times of a shared machine
are not, and are left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300


def gate(root: Path, name: str, *, update: bool) -> subprocess.CompletedProcess[str]:
    """Run one example through the gate."""
    words = ["gate", "--times", "off", "--baseline", f"reports/baselines/{name}.json"]
    words += ["--update-baseline"] if update else []
    return subprocess.run(
        [sys.executable, "-m", "torch_bottleneck", *words, f"examples/{name}.py"],
        cwd=root,
        env={"OMP_NUM_THREADS": "1", **os.environ},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Gate the examples on their counters.")
    parser.add_argument("names", nargs="*", metavar="EXAMPLE")
    parser.add_argument("--update", action="store_true", help="write the baselines anew")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder with examples/ and reports/")
    options = parser.parse_args()
    names = options.names or sorted(path.stem for path in (options.root / "examples").glob("*.py"))
    worst = 0
    for name in names:
        began = time.monotonic()
        done = gate(options.root, name, update=options.update)
        seconds = time.monotonic() - began
        words = "written" if options.update else (done.stdout.splitlines() or ["failed"])[0]
        sys.stdout.write(f"{name:<22} {'failed' if done.returncode > 1 else words}  {seconds:.0f} s\n")
        if done.returncode:
            sys.stdout.write(f"{done.stdout}{done.stderr}\n")
        worst = max(worst, done.returncode)
        sys.stdout.flush()
    return worst


if __name__ == "__main__":
    sys.exit(main())
