"""Measures one reader on one trace file, in a fresh process.

    python tests/benchmarks/read_trace.py FILE [--reader ours|json|hta|tb]

Prints one line of JSON: CPU seconds of the whole process (user + system, imports included), wall
seconds, peak memory, and how many complete events came out. The readers:

    ours   torch_bottleneck.ingest.read_trace: columns, sorted
    json   the standard library's json.load: Python dictionaries, nothing else
    hta    hta.trace_analysis.TraceAnalysis: its table, the least that it offers
    tb     torch_tb_profiler's RunProfileData.parse: its table and its views' data, likewise
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

START = time.perf_counter()


def ours(path: Path) -> int:
    from torch_bottleneck.ingest import read_trace

    return len(read_trace(path))


def standard_library(path: Path) -> int:
    with path.open("rb") as plain:
        events = json.load(gzip.GzipFile(fileobj=plain) if path.suffix == ".gz" else plain)["traceEvents"]
    return sum(e["ph"] == "X" for e in events)


def hta(path: Path) -> int:
    os.environ.setdefault("HTA_LOG_LEVEL", "ERROR")
    from hta.trace_analysis import TraceAnalysis

    return len(TraceAnalysis(trace_files={0: str(path)}).t.get_trace(0))


def tensorboard_plugin(path: Path) -> int:
    from torch_tb_profiler.profiler.data import RunProfileData

    with tempfile.TemporaryDirectory() as cache:
        return len(RunProfileData.parse("worker", "1", str(path), cache).events)


READERS = {"ours": ours, "json": standard_library, "hta": hta, "tb": tensorboard_plugin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--reader", choices=sorted(READERS), default="ours")
    options = parser.parse_args()
    events = READERS[options.reader](options.path)
    used = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured: dict[str, Any] = {
        "reader": options.reader,
        "events": events,
        "cpu_s": used.ru_utime + used.ru_stime + children.ru_utime + children.ru_stime,
        "wall_s": time.perf_counter() - START,
        "rss_mb": used.ru_maxrss / 1024,
    }
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
