"""Measures `bottleneck analyze` on one trace file from command to report, in child processes.

    python tests/benchmarks/analyze_trace.py FILE [--rounds 3] [--record TITLE]
    python tests/benchmarks/analyze_trace.py FILE --before OLD/bin/python --record "fp32, repeated, 1060 MB"

Prints one line of JSON per process: CPU seconds (user + system, imports included), peak memory and the
exit status. With `--before` another installation is measured too, in turns with the own one, so that
both versions meet the same machine. `--record` adds the figures to reports/benchmarks/trace-reading.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from versus import ANALYZED, REPORT, markdown


def measure(python: Path, trace: Path) -> dict[str, Any]:
    """Run the command once with that interpreter's bottleneck."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-m", "torch_bottleneck", "analyze", str(trace)]
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
    return {
        "exit": os.waitstatus_to_exitcode(status),
        "cpu_s": used.ru_utime + used.ru_stime,
        "rss_mb": round(used.ru_maxrss / 1024),
    }


def record(title: str, rows: list[dict[str, Any]]) -> None:
    """Add the figures to the report."""
    store = REPORT.with_suffix(".json")
    stored: dict[str, Any] = json.loads(store.read_text())
    today = datetime.now(tz=timezone.utc).date().isoformat()
    stored.setdefault(ANALYZED, {})[title] = {"date": today, "rows": rows}
    store.write_text(json.dumps(stored, indent=1) + "\n")
    REPORT.with_suffix(".md").write_text(markdown(stored))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--before", type=Path, help="interpreter of another version")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--record", metavar="TITLE")
    options = parser.parse_args()
    pythons = {"after": Path(sys.executable)}
    if options.before is not None:
        pythons = {"before": options.before, **pythons}
    taken: dict[str, list[dict[str, Any]]] = {version: [] for version in pythons}
    for _ in range(options.rounds):
        for version, python in pythons.items():
            taken[version].append(measure(python, options.trace.resolve()))
            print(json.dumps({"version": version, **taken[version][-1]}), flush=True)
    rows = [
        {
            "version": version,
            "cpu_s": statistics.median(each["cpu_s"] for each in runs),
            "rss_mb": max(each["rss_mb"] for each in runs),
            "rounds": len(runs),
        }
        for version, runs in taken.items()
    ]
    if options.record:
        record(options.record, rows)


if __name__ == "__main__":
    main()
