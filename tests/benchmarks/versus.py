"""Compares our trace reader with others on the same file, and writes the results.

    python -m venv /tmp/peers
    /tmp/peers/bin/pip install HolisticTraceAnalysis==0.5.0 torch-tb-profiler==0.4.3 "pandas<3"
    python tests/benchmarks/versus.py --megabytes 100 --peer-python /tmp/peers/bin/python
    python tests/benchmarks/versus.py --megabytes 1000 --readers ours --packed

Every reading is a process of its own. The readers take turns, round after round, so that a busy
machine disturbs all of them alike; the ratio is taken within each round. Results go into
reports/benchmarks/trace-reading.json, and from there into trace-reading.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from make_trace import write_trace

HERE = Path(__file__).parent
REPORT = HERE.parent.parent / "reports" / "benchmarks" / "trace-reading"
ANALYZED = "From command to report"
LABELS = {
    "ours": "torch_bottleneck.ingest.read_trace",
    "json": "json.load (dictionaries only)",
    "hta": "HolisticTraceAnalysis 0.5.0, TraceAnalysis()",
    "tb": "torch-tb-profiler 0.4.3, RunProfileData.parse()",
}


def measure(reader: str, file: Path, python: str) -> dict[str, Any]:
    """Read the file once in a new process."""
    command = [python, str(HERE / "read_trace.py"), str(file), "--reader", reader]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        return {
            "reader": reader,
            "failed": done.stderr.strip().splitlines()[-1:] or [f"rc {done.returncode}"],
        }
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def compare(file: Path, readers: list[str], rounds: int, peer_python: str) -> list[dict[str, Any]]:
    """Take turns; return one summary per reader."""
    taken: dict[str, list[dict[str, Any]]] = {reader: [] for reader in readers}
    for number in range(rounds):
        for reader in readers:
            python = peer_python if reader in ("hta", "tb") else sys.executable
            result = measure(reader, file, python)
            taken[reader].append(result)
            print(f"round {number + 1}: {result}", file=sys.stderr, flush=True)
    return [summary(reader, results, taken["ours"]) for reader, results in taken.items()]


def summary(reader: str, results: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    if any("failed" in r for r in results):
        return {"reader": reader, "failed": next(r["failed"] for r in results if "failed" in r)}
    ratios = [r["cpu_s"] / o["cpu_s"] for r, o in zip(results, ours, strict=True)]
    return {
        "reader": reader,
        "rounds": len(results),
        "events": results[0]["events"],
        "cpu_s": statistics.median(r["cpu_s"] for r in results),
        "wall_s": statistics.median(r["wall_s"] for r in results),
        "rss_mb": max(r["rss_mb"] for r in results),
        "ratio": statistics.median(ratios),
    }


def markdown(stored: dict[str, Any]) -> str:
    """Render all stored comparisons."""
    out = [
        "# Reading a trace: CPU time and memory",
        "",
        "Written by `tests/benchmarks/versus.py`; do not edit. One process per reading, readers taking",
        "turns; CPU seconds of the whole process, imports included (median of the rounds); the ratio to ours",
        "is taken within each round. Wall time depends on other load on the machine: it is only a rough",
        "guide. The files are made by `tests/benchmarks/make_trace.py`. The readers return different things:",
        "ours and HTA a table of all events, `json.load` plain dictionaries, torch-tb-profiler its table",
        "together with the data of its views. Each is the least that the tool offers.",
    ]
    analyzed = stored.get(ANALYZED, {})
    readings = {title: entry for title, entry in stored.items() if title != ANALYZED}
    for title, entry in sorted(readings.items(), key=lambda item: item[1]["order"]):
        out += ["", f"## {title}", "", f"{entry['machine']}, {entry['date']}.", ""]
        out += ["| reader | CPU s | ratio | wall s | peak MB | complete events | rounds |"]
        out += ["|---|---:|---:|---:|---:|---:|---:|"]
        for row in entry["rows"]:
            label = LABELS[row["reader"]]
            if "failed" in row:
                out.append(f"| {label} | failed: {row['failed'][0]} | | | | | |")
                continue
            out.append(
                f"| {label} | {row['cpu_s']:.2f} | {row['ratio']:.1f} | {row['wall_s']:.1f}"
                f" | {row['rss_mb']:.0f} | {row['events']:,} | {row['rounds']} |"
            )
    if analyzed:
        out += ["", f"## {ANALYZED}", ""]
        out += [
            "Written by `tests/benchmarks/analyze_trace.py FILE --record TITLE`: `bottleneck analyze FILE`,"
        ]
        out += [
            "each time in a process of its own, versions taking turns on one machine, imports and the report"
        ]
        out += ["included. CPU seconds are medians of the rounds, memory is the highest peak."]
        out += ["", "| file | version | CPU s | peak MB | rounds | date |", "|---|---|---:|---:|---:|---|"]
    for file, entry in analyzed.items():
        for row in entry["rows"]:
            figures = (f"{row['cpu_s']:.1f}", row["rss_mb"], row["rounds"], entry["date"])
            out.append("| " + " | ".join(map(str, (file, row["version"], *figures))) + " |")
    return "\n".join(out) + "\n"


def machine() -> str:
    cores = len(os.sched_getaffinity(0))
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"Python {platform.python_version()}, {cores} cores of {cpu}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--packed", action="store_true", help="read a .json.gz of that size unpacked")
    parser.add_argument("--readers", default="ours,json,hta,tb")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has HTA and tb")
    options = parser.parse_args()
    readers = options.readers.split(",")
    if "ours" not in readers:
        parser.error("ours is needed: the others are compared with it")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ("big.pt.trace.json" + (".gz" if options.packed else ""))
        write_trace(file, int(options.megabytes * 1e6))
        rows = compare(file, readers, options.rounds, options.peer_python)
    title = f"{options.megabytes:g} MB" + (", compressed (.json.gz)" if options.packed else "")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    store = REPORT.with_suffix(".json")
    stored: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    stored[title] = {
        "order": [options.megabytes, options.packed],
        "machine": machine(),
        "date": datetime.now(tz=timezone.utc).date().isoformat(),
        "rows": rows,
    }
    store.write_text(json.dumps(stored, indent=1) + "\n")
    REPORT.with_suffix(".md").write_text(markdown(stored))
    print(markdown(stored))


if __name__ == "__main__":
    main()
