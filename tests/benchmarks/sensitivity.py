"""Move every threshold of the analysis by 30 % either way and say what that changes over all recorded runs.

In: tests/recorded/ and the numeric constants of timeline, analyzers, catalog, diagnose and stats. Out:
reports/sensitivity.md: one table per room with value, reason, and how many of the runs change their
verdict, grade, first fix, ranking of fixes or a price by more than a tenth.

    python tests/benchmarks/sensitivity.py [--jobs 2] [--only timeline/gpu] [--out reports/sensitivity.md]

A constant that changes nothing here is either unneeded or guards a situation that no recorded run shows: the
report lists those apart.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import json
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from benchmarks import golden
from recorded.cases import CASES

import torch_bottleneck
from torch_bottleneck.diagnose import compose, diagnose_paths

PACKAGE = Path(torch_bottleneck.__file__).parent
ROOMS = ("timeline", "analyzers", "catalog", "diagnose", "stats")
NOT_DECISIONS = ("timeline/views",)
"""What a picture shows decides nothing."""
MOVED = (0.7, 1.3)
PRICE = 0.1
"""A price that moves by more than this share of itself, and of the step by half a percent, is counted."""


@dataclass(frozen=True)
class Threshold:
    """One numeric constant of the analysis, or one table of them that is moved as a whole."""

    module: str
    name: str
    value: str
    reason: str

    @property
    def room(self) -> str:
        """The folder it stands in."""
        return "/".join(self.module.split(".")[:-1]) or self.module


def thresholds(only: str = "") -> list[Threshold]:
    """Find the constants in the source: numbers, and tables of numbers, under names in capitals."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if not where.startswith(ROOMS) or where.startswith(NOT_DECISIONS) or not where.startswith(only):
            continue
        source = path.read_text()
        body = ast.parse(source).body
        for node, after in zip(body, [*body[1:], None], strict=True):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if not isinstance(target, ast.Name) or not target.id.isupper() or target.id == "SCHEMA":
                continue
            module = where.replace("/", ".")
            value = getattr(importlib.import_module(f"{torch_bottleneck.__name__}.{module}"), target.id)
            if moved(value, 1.3) is None:
                continue
            doc = (
                after.value.value
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                else ""
            )
            text = (
                ast.unparse(node.value)
                if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
                else ""
            )
            found.append(Threshold(module, target.id, " ".join(text.split()), " ".join(str(doc).split())))
    return found


def moved(value: Any, factor: float) -> Any:
    """Return a number or a table of numbers times the factor; None for anything else."""
    if isinstance(value, (bool, Enum)):
        return None
    if isinstance(value, int):
        return (
            max(round(value * factor), 0)
            if round(value * factor) != value
            else value + (1 if factor > 1 else -1)
        )
    if isinstance(value, float):
        return value * factor
    if isinstance(value, dict) and value and all(type(v) in (int, float) for v in value.values()):
        return {key: moved(v, factor) for key, v in value.items()}
    if isinstance(value, tuple) and value and all(isinstance(v, float) for v in value):
        return tuple(v * factor for v in value)
    return None


def answers() -> dict[str, dict[str, Any]]:
    """Return what the tool says about every recorded run; one that fails says so."""
    out: dict[str, dict[str, Any]] = {}
    for name in sorted(CASES):
        try:
            out[name] = golden.summary(diagnose_paths([CASES[name].folder]))
        except Exception as error:  # a threshold moved too far may break what it guards
            out[name] = {"failed": repr(error)}
    return out


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Name the kinds of change between two answers."""
    if "failed" in after:
        return ["fails"]
    kinds = []
    if before["class"] != after["class"]:
        kinds.append("verdict")
    if (before["confidence"], before["quality"]) != (after["confidence"], after["quality"]):
        kinds.append("grade")
    order = [[s["fix"] for s in answer["suggestions"]] for answer in (before, after)]
    if order[0][:1] != order[1][:1]:
        kinds.append("first fix")
    elif order[0] != order[1]:
        kinds.append("ranking")
    step = before["step"]["true_ms"] or 0.0
    prices = [{c["code"]: c["cost_ms"] for c in answer["causes"]} for answer in (before, after)]
    for code in prices[0].keys() | prices[1].keys():
        a, b = prices[0].get(code) or 0.0, prices[1].get(code) or 0.0
        if abs(a - b) > max(PRICE * max(a, b), 0.005 * step):
            kinds.append("price")
            break
    if not kinds and golden.differences(before, after):
        kinds.append("figures")
    return kinds


@functools.cache
def _unmoved() -> dict[str, dict[str, Any]]:
    # Traces are read once: what is moved lies behind the reading.
    load = compose.ingest.load
    compose.ingest.load = functools.cache(load)
    return answers()


def effect(threshold: Threshold) -> list[dict[str, list[str]]]:
    """Move one threshold down and up, and name the runs that change."""
    before = _unmoved()
    module = importlib.import_module(f"{torch_bottleneck.__name__}.{threshold.module}")
    value = getattr(module, threshold.name)
    users = [
        m
        for key, m in list(sys.modules.items())
        if key.startswith(torch_bottleneck.__name__) and vars(m).get(threshold.name) is value
    ]
    out = []
    for factor in MOVED:
        for user in users:
            setattr(user, threshold.name, moved(value, factor))
        changes: dict[str, list[str]] = {}
        for name, after in answers().items():
            for kind in compared(before[name], after):
                changes.setdefault(kind, []).append(name)
        out.append(changes)
    for user in users:
        setattr(user, threshold.name, value)
    return out


KINDS = ("fails", "verdict", "grade", "first fix", "ranking", "price", "figures")


def report(rows: list[tuple[Threshold, list[dict[str, list[str]]]]]) -> str:
    """Write the tables: what decides first, what changes nothing last."""
    flips = sum(any("verdict" in side for side in sides) for _, sides in rows)
    still = [threshold for threshold, sides in rows if not any(sides)]
    lines = [
        "# What each threshold decides",
        "",
        f"Made by `python tests/benchmarks/sensitivity.py` over {len(CASES)} recorded runs: each numeric",
        "constant of the analysis is moved by 30 % down and up, and every run is diagnosed anew. Numbers",
        "count runs; a price counts when it moves by more than a tenth. A table is moved as a whole.",
        "",
        f"{len(rows)} thresholds; {flips} flip the verdict of at least one run; {len(still)} change nothing",
        "at all in these runs: they guard what none of them shows, or limit a list.",
        "",
    ]
    for room in dict.fromkeys(threshold.room for threshold, _ in rows):
        lines += [
            f"## {room}",
            "",
            "| threshold | value | down 30 % | up 30 % | why it is what it is |",
            "|---|---|---|---|---|",
        ]
        for threshold, sides in rows:
            if threshold.room == room:
                cells = [
                    ", ".join(f"{kind} {len(side[kind])}" for kind in KINDS if kind in side) or "-"
                    for side in sides
                ]
                value = threshold.value if len(threshold.value) < 60 else threshold.value[:57] + "..."
                name = f"`{threshold.module.rpartition('.')[2]}.{threshold.name}`"
                reason = threshold.reason.replace("|", "/")
                lines.append(
                    f"| {name} | {value.replace('|', '/')} | {cells[0]} | {cells[1]} | {reason[:160]} |"
                )
        lines.append("")
    lines += ["## Verdicts that flip", ""]
    for threshold, sides in rows:
        for factor, side in zip(MOVED, sides, strict=True):
            if "verdict" in side:
                lines.append(
                    f"- `{threshold.module}.{threshold.name}` x {factor}: {', '.join(side['verdict'])}"
                )
    lines += [
        "",
        "## Thresholds that change nothing here",
        "",
        ", ".join(f"`{t.module}.{t.name}`" for t in still),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure all thresholds and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="a room or module: timeline/gpu")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "sensitivity.md")
    parser.add_argument("--state", type=Path, help="keep what was measured here, and go on from it")
    args = parser.parse_args()
    state: dict[str, Any] = json.loads(args.state.read_text()) if args.state and args.state.is_file() else {}
    todo = thresholds(args.only)
    rows: list[tuple[Threshold, list[dict[str, list[str]]]]] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        waiting = [t for t in todo if f"{t.module}.{t.name}={t.value}" not in state]
        for threshold, sides in zip(waiting, pool.map(effect, waiting), strict=True):
            state[f"{threshold.module}.{threshold.name}={threshold.value}"] = sides
            if args.state:
                args.state.write_text(json.dumps(state))
            told = Counter(kind for side in sides for kind in side)
            print(threshold.module, threshold.name, dict(told) or "-", file=sys.stderr, flush=True)
    rows = [(t, state[f"{t.module}.{t.name}={t.value}"]) for t in todo]
    args.out.write_text(report(rows))


if __name__ == "__main__":
    main()
