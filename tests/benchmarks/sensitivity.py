"""Move every threshold of the analysis by 30 % either way and say what that changes over all recorded runs.

In: tests/recorded/ and the numeric constants of timeline, analyzers, catalog, diagnose and stats. Out:
reports/sensitivity.md: one table per room with value, reason, and how many of the runs change their
verdict, grade, first fix, ranking of fixes or a price by more than a tenth.

    python tests/benchmarks/sensitivity.py [--jobs 2] [--only timeline/gpu] [--out reports/sensitivity.md]

A constant that changes nothing is then set to zero and to infinity, so that its rule applies always or
never. Where that changes nothing either, no recorded run needs the rule.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import importlib
import json
import math
import resource
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import msgspec
from benchmarks import golden
from recorded.cases import CASES

import torch_bottleneck
from torch_bottleneck.diagnose import compose, diagnose_paths

PACKAGE = Path(torch_bottleneck.__file__).parent
ROOMS = ("timeline", "analyzers", "catalog", "diagnose", "stats")
NOT_DECISIONS = ("timeline/views",)
"""What a picture shows decides nothing."""
MOVED = (0.7, 1.3)
CODES = (
    "SCHEMA",
    "NO_WAIT",
    "WAIT_ALL",
    "BEFORE",
    "NONE",
    "_CODE",
    "_UNKNOWN",
    "_OWNER",
    "_SEED",
    "_BLOCK",
    "QUEUE_DEPTH",
)
"""Numbers that stand for something, a seed, the size of a pass, and what the driver's queue holds."""
LONGEST_S, MOST_BYTES = 60, 12 << 30
"""Per run: what an infinite limit may take before it counts as a failure."""
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
            if not isinstance(target, ast.Name) or not target.id.isupper() or target.id in CODES:
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


def ends(value: Any) -> tuple[Any, Any]:
    """Return the two values that neutralise a constant: nothing is below zero, nothing above infinity."""
    if isinstance(value, dict):
        return dict.fromkeys(value, 0.0), dict.fromkeys(value, math.inf)
    if isinstance(value, tuple):
        return (0.0,) * len(value), (math.inf,) * len(value)
    return (0, 1 << 40) if isinstance(value, int) else (0.0, math.inf)


def answers(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what the tool says about some recorded runs; one that fails says so."""
    out: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            signal.alarm(LONGEST_S)
            found = msgspec.structs.replace(diagnose_paths([CASES[name].folder]), created="")
            out[name] = golden.summary(found)
            out[name]["whole"] = hashlib.sha256(msgspec.json.encode(found)).hexdigest()
        except Exception as error:  # a threshold moved too far may break what it guards
            out[name] = {"failed": repr(error)}
        finally:
            signal.alarm(0)
    return out


def _too_long(*_: object) -> None:
    raise TimeoutError


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
    whole = before["whole"] != after["whole"]
    if not kinds and golden.differences({**before, "whole": ""}, {**after, "whole": ""}):
        kinds.append("figures")
    elif not kinds and whole:
        kinds.append("report")
    return kinds


@functools.cache
def _unmoved() -> tuple[dict[str, dict[str, Any]], dict[str, set[CodeType]]]:
    """Return the answers as they are, and the code that ran for each of them."""
    # Traces are read once: what is moved lies behind the reading.
    load = compose.ingest.load
    compose.ingest.load = functools.cache(load)
    found: dict[str, dict[str, Any]] = {}
    ran: dict[str, set[CodeType]] = {}
    for name in sorted(CASES):
        mine = ran[name] = set()

        def note(frame: FrameType, event: str, _: object, mine: set[CodeType] = mine) -> None:
            if event == "call":
                mine.add(frame.f_code)

        sys.setprofile(note)
        found |= answers([name])
        sys.setprofile(None)
    return found, ran


Changes = dict[str, list[str]]
"""Per kind of change, the runs that change."""


def effect(threshold: Threshold) -> list[Changes]:
    """Move a threshold down and up; where that changes no answer, set it to zero and to infinity too."""
    signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    value = vars(_module(threshold))[threshold.name]
    out = [_with(threshold, moved(value, factor)) for factor in MOVED]
    if not any(side.keys() - {"report"} for side in out):
        out += [_with(threshold, end) for end in ends(value)]
    return out


def _module(threshold: Threshold) -> ModuleType:
    return importlib.import_module(f"{torch_bottleneck.__name__}.{threshold.module}")


def _with(threshold: Threshold, other: Any) -> Changes:
    (before, ran), name = _unmoved(), threshold.name
    value = vars(_module(threshold))[name]
    users = [_module(threshold)]
    if not name.startswith("_"):
        users += [
            module
            for key, module in list(sys.modules.items())
            if key.startswith(torch_bottleneck.__name__) and vars(module).get(name) is value
        ]
    for user in users:
        setattr(user, name, other)
    changes: Changes = {}
    files = {user.__file__ for user in users}
    # What reads no such name in a run cannot be changed by it.
    readers = [
        run for run in ran if any(name in code.co_names and code.co_filename in files for code in ran[run])
    ]
    for run, after in answers(readers).items():
        for kind in compared(before[run], after):
            changes.setdefault(kind, []).append(run)
    for user in users:
        setattr(user, name, value)
    return changes


KINDS = ("fails", "verdict", "grade", "first fix", "ranking", "price", "figures", "report")


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
