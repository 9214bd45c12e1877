"""Diagnoses scripts again and again, alone and beside busy processes: is it the same class each time?

In: scripts that state their planted bottleneck (see under_load.py). Out: reports/repeats.md: a row per script
with the classes of its runs. A run may name another class only with low confidence, or leave it open.

    python tests/benchmarks/repeats.py [--runs 5] [--busy 2] [--state FILE] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch
from step_times import REPOSITORY
from trials import FOLDER, read_trial
from under_load import EXAMPLES, Row, busy_processes, run

SCRIPTS = (
    "input_bound", "compute_bound", "launch_bound", "graph_breaks", "loss_in_numpy", "evaluation_often",
    "batch_and_metrics", "tabular", "ema_by_deepcopy", "gc_collect",
)  # fmt: skip
OPTIONS = ("--trial-seconds", "0", "--max-seconds", "20")


def told(rows: list[Row]) -> str:
    """Return how often each verdict came, with its confidences."""
    counts = Counter(row.problem or row.verdict for row in rows)
    sure = {kind: Counter(r.confidence for r in rows if (r.problem or r.verdict) == kind) for kind in counts}
    return "; ".join(
        f"{count} {kind} ({', '.join(f'{n} {level}' for level, n in sure[kind].most_common())})"
        for kind, count in counts.most_common()
    )


def agrees(rows: list[Row]) -> bool:
    """Whether all name one class, but for those that are unsure or name none."""
    sure = {row.verdict for row in rows if row.confidence in ("medium", "high")}
    return len(sure) <= 1 and not any(row.problem for row in rows)


def render(alone: dict[str, list[Row]], beside: dict[str, list[Row]], *, busy: int) -> str:
    """Return the report."""
    names = [name for name in SCRIPTS if alone.get(name)]
    both = {name: alone[name] + beside.get(name, []) for name in names}
    runs = sum(map(len, both.values()))
    right = sum(row.verdict in row.accepted for rows in both.values() for row in rows)
    lines = [
        "# The same script, diagnosed again and again",
        "",
        f"{os.cpu_count()} cores, torch {torch.__version__}, one thread each; alone, and beside {busy} "
        "processes that never sleep. Written by `python tests/benchmarks/repeats.py`.",
        "",
        f"**{sum(map(agrees, both.values()))} of {len(names)} scripts: one class in all runs that are sure. "
        f"{right} of {runs} runs name the planted class.**",
        "",
        "| script | planted | alone | beside busy processes | one class |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in names:
        planted = " or ".join(alone[name][0].accepted)
        same = "yes" if agrees(both[name]) else "NO"
        lines.append(f"| {name} | {planted} | {told(alone[name])} | {told(beside.get(name, []))} | {same} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the scripts in turns and write the report after each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--busy", type=int, default=2, help="processes beside the script")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "reports" / "repeats.md")
    parser.add_argument("--state", type=Path, help="keep rows here as JSON, and go on from it")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sides: list[dict[str, list[Row]]] = [{}, {}]
    if args.state and args.state.is_file():
        for side, kept in zip(sides, json.loads(args.state.read_text()), strict=True):
            for name, rows in kept.items():
                side[name] = [Row(**{**row, "accepted": tuple(row["accepted"])}) for row in rows]
    for turn in range(args.runs):
        for side, busy in zip(sides, (0, args.busy), strict=True):
            with busy_processes(busy), tempfile.TemporaryDirectory() as scratch:
                for name in args.names or SCRIPTS:
                    done = side.setdefault(name, [])
                    if len(done) > turn:
                        continue
                    example = name in EXAMPLES
                    script = (REPOSITORY / "examples" if example else FOLDER) / f"{name}.py"
                    row = Row(name, EXAMPLES[name] if example else read_trial(script).accepted)
                    run(row, script, Path(scratch) / name, *OPTIONS)
                    done.append(row)
                    print(turn, busy, name, row.verdict, row.confidence, f"{row.seconds:.0f} s", flush=True)
                    if args.state:
                        kept = [{n: [asdict(r) for r in rows] for n, rows in each.items()} for each in sides]
                        args.state.write_text(json.dumps(kept))
                    args.out.write_text(render(*sides, busy=args.busy))


if __name__ == "__main__":
    main()
