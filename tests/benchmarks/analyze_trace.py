"""Measures `bottleneck analyze` on one trace file from command to report, in child processes.

    python tests/benchmarks/analyze_trace.py FILE [--python OTHER/bin/python ...] [--rounds 3]

Prints one line of JSON per process: CPU seconds (user + system, imports included), peak memory and the
exit status. With `--python` another installation is measured too, in turns with the own one, so that
two versions meet the same machine: compare within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def measure(python: Path, trace: Path) -> dict[str, object]:
    """Run the command once with that interpreter's bottleneck."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "torch_bottleneck", "analyze", str(trace)]
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
    return {
        "python": str(python),
        "exit": os.waitstatus_to_exitcode(status),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "rss_mb": round(used.ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--python", type=Path, action="append", default=[])
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for _ in range(options.rounds):
        for python in (Path(sys.executable), *options.python):
            print(json.dumps(measure(python, options.trace.resolve())), flush=True)


if __name__ == "__main__":
    main()
