"""Cuts a real trace down to a few of its steps, keeping the text of every kept event.

    python tests/recorded/trim.py IN.pt.trace.json.gz OUT.pt.trace.json.gz --first 2 --steps 2

Kept are the complete events that begin within the steps' host ranges, the device work that they
launched, and what names processes and threads. Flow arrows and the running number "Ev Idx"
go: nothing reads them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any

SEAM = re.compile(r'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name)")')
RUNNING_NUMBER = re.compile(r', "Ev Idx": \d+')
STEP = re.compile(r"ProfilerStep#\d+")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


def keep(events: list[dict[str, Any]], first: int, steps: int) -> list[bool]:
    """Tell for each event whether it belongs to the wanted steps."""
    ranges = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") == "user_annotation" and STEP.fullmatch(e["name"])
    )[first : first + steps]
    begin, end = ranges[0][0], ranges[-1][1]
    host = [e for e in events if e["ph"] == "X" and e["cat"] not in DEVICE and begin <= e["ts"] < end]
    launched = {e["args"]["correlation"] for e in host if "correlation" in e.get("args", {})}
    labels = {e["args"]["External id"] for e in host if e["cat"] == "user_annotation"}

    def wanted(event: dict[str, Any]) -> bool:
        if event["ph"] != "X":
            return event["ph"] in "Mi"
        args = event.get("args", {})
        if event["cat"] == "gpu_user_annotation":
            return args.get("External id") in labels
        if event["cat"] in DEVICE:
            return args.get("correlation") in launched
        return event["cat"] == "Trace" or begin <= event["ts"] < end

    return [wanted(e) for e in events]


def trim(text: str, *, first: int, steps: int) -> str:
    """Return the text of the trace with only those steps."""
    start = text.index("[", text.index('"traceEvents"')) + 1
    stop = text.rindex("]")
    pieces = SEAM.split(text[start:stop].strip())
    kept = keep([json.loads(p) for p in pieces], first, steps)
    inside = ",\n  ".join(RUNNING_NUMBER.sub("", p) for p, yes in zip(pieces, kept, strict=True) if yes)
    return f"{text[:start]}\n  {inside}\n  {text[stop:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--first", type=int, default=1, help="index of the first step to keep")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    text = gzip.decompress(options.source.read_bytes()).decode()
    out = trim(text, first=options.first, steps=options.steps)
    options.target.parent.mkdir(parents=True, exist_ok=True)
    # mtime 0: the same input gives the same file.
    options.target.write_bytes(gzip.compress(out.encode(), 9, mtime=0))
    print(f"{options.target}: {options.target.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
