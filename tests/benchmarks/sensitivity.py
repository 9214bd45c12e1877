"""Move every threshold of the analysis by 30 % either way and say what that changes over all recorded runs.

In: tests/recorded/ and the numeric constants of timeline, fleet, analyzers, catalog, diagnose and stats. Out:
reports/sensitivity.md: one table per room with value, reason, and how many of the runs change their
verdict, grade, first fix, ranking of fixes or a price by more than a tenth; and a list of the constants
that act while a run is captured, which no recorded run can show.

    python tests/benchmarks/sensitivity.py [--jobs 2] [--only timeline/gpu] [--out reports/sensitivity.md]

A constant that changes nothing is then set to zero and to infinity, so that its rule applies always or
never. Where that changes nothing either, no recorded run needs the rule.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import itertools
import json
import math
import multiprocessing
import pickle
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import msgspec
from benchmarks import golden
from recorded.cases import CASES

import torch_bottleneck
from torch_bottleneck.diagnose import compose, diagnose_paths

PACKAGE = Path(torch_bottleneck.__file__).parent
ROOMS = ("timeline", "fleet", "analyzers", "catalog", "diagnose", "stats")
IN_CAPTURE = ("harness/windows", "harness/job", "harness/events")
"""What these decide is decided when a run is recorded."""
NOT_DECISIONS = ("timeline/views",)
"""What a picture shows decides nothing."""
MOVED = (0.7, 1.3)
CODES = (
    "SCHEMA",
    "FORMAT",
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
    "PLACES",
    "BINS",
    "_WIDE",
    "_RESAMPLES",
    "_LOOP_WEIGHT",
)
"""Numbers that stand for something, a seed, the size of a pass, what the driver's queue holds, the rows of
an array; two that are read when their module is imported."""
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


def thresholds(only: str = "", *, rooms: tuple[str, ...] = ROOMS) -> list[Threshold]:
    """Find the constants in the source: numbers, and tables of numbers, under names in capitals."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if not where.startswith(rooms) or where.startswith(NOT_DECISIONS) or not where.startswith(only):
            continue
        body = ast.parse(path.read_text()).body
        for index, node in enumerate(body):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if not isinstance(target, ast.Name) or not target.id.isupper() or target.id in CODES:
                continue
            module = where.replace("/", ".")
            value = getattr(importlib.import_module(f"{torch_bottleneck.__name__}.{module}"), target.id)
            if moved(value, 1.3) is None:
                continue
            text = (
                ast.unparse(node.value)
                if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value
                else ""
            )
            reason = _reason(target.id, body[index + 1 : index + 5])
            found.append(Threshold(module, target.id, " ".join(text.split()), " ".join(reason.split())))
    return found


def _reason(name: str, after: list[ast.stmt]) -> str:
    """Return the text that follows a constant, or a group of constants of like names that share one."""
    for k, node in enumerate(after):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = str(node.value.value)
            return text if not k or f"`{name}`" in text or _word(name) == _word(after[k - 1]) else ""
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            break
    return ""


def _word(of: str | ast.stmt) -> str:
    name = of if isinstance(of, str) else ast.unparse(of)
    return name.strip("_").partition("_")[0]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmoved:
    """The answers as they are, and how they came about."""

    answers: dict[str, dict[str, Any]]
    ran: dict[str, set[CodeType]]
    """Per run, the code that ran."""
    calls: dict[str, list[tuple[str, Any, Any, bytes]]]
    """Per function, by module and name: run, arguments and result of each call."""


def _key(code: CodeType) -> str:
    """Return the file and the function or class at the top of a module that code belongs to."""
    return f"{code.co_filename}:{code.co_qualname.partition('.')[0]}"


def _names(code: CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _modules() -> list[ModuleType]:
    return [module for key, module in sys.modules.items() if key.startswith(torch_bottleneck.__name__)]


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Return the functions that name a threshold; those that return nothing must do something else."""
    named = {threshold.name for threshold in thresholds()}
    return {
        _key(function.__code__): function
        for module in _modules()
        for function in vars(module).values()
        if isinstance(function, FunctionType)
        and function.__module__ == module.__name__
        and not inspect.isgeneratorfunction(function)
        and function.__annotations__.get("return") != "None"
        and named & _names(function.__code__)
    }


@functools.cache
def _unmoved() -> Unmoved:
    # Traces are read once: what is moved lies behind the reading.
    load = compose.ingest.load
    compose.ingest.load = functools.cache(load)
    found = Unmoved(answers={}, ran={}, calls={key: [] for key in _functions()})
    current = ""

    def watched(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            found.calls[key].append((current, args, kwargs, _bytes(result)))
            return result

        return call

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.ran[current].add(frame.f_code)

    with _replaced({id(each): watched(key, each) for key, each in _functions().items()}):
        for current in sorted(CASES):
            found.ran[current] = set()
            sys.setprofile(note)
            found.answers.update(answers([current]))
            sys.setprofile(None)
    return found


@contextlib.contextmanager
def _replaced(others: dict[int, Any]) -> Iterator[None]:
    """Put other values in the place of objects, by their `id`, wherever a module of ours names them."""
    places = [(m, name, value) for m in _modules() for name, value in vars(m).items() if id(value) in others]
    for module, name, value in places:
        setattr(module, name, others[id(value)])
    yield
    for module, name, value in places:
        setattr(module, name, value)


def _bytes(result: Any) -> bytes:
    try:
        return pickle.dumps(result)
    except Exception:  # what cannot be compared counts as changed
        return b""


Changes = dict[str, list[str]]
"""Per kind of change, the runs that change."""


def effect(threshold: Threshold) -> list[Changes]:
    """Move a threshold down and up; where that changes no answer, set it to zero and to infinity too."""
    signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    module = importlib.import_module(f"{torch_bottleneck.__name__}.{threshold.module}")
    value = vars(module)[threshold.name]
    out = [_with(threshold.name, module, moved(value, factor)) for factor in MOVED]
    if not any(side.keys() - {"report"} for side in out):
        out += [_with(threshold.name, module, end) for end in ends(value)]
    return out


def _with(name: str, module: ModuleType, other: Any) -> Changes:
    unmoved, value = _unmoved(), vars(module)[name]
    users = [module]
    if not name.startswith("_"):
        users += [each for each in _modules() if each is not module and vars(each).get(name) is value]
    for user in users:
        setattr(user, name, other)
    changes: Changes = {}
    for run, after in answers(_readers(name, {str(user.__file__) for user in users})).items():
        for kind in compared(unmoved.answers[run], after):
            changes.setdefault(kind, []).append(run)
    for user in users:
        setattr(user, name, value)
    return changes


def _readers(name: str, files: set[str]) -> list[str]:
    """Return the runs that a threshold, as it is now, may change.

    Those in which a function that names it returns something else for the same arguments; and those in which
    other code that names it ran.
    """
    unmoved, found = _unmoved(), set()
    for run, ran in unmoved.ran.items():
        for code in ran:
            if name in code.co_names and code.co_filename in files and _key(code) not in unmoved.calls:
                found.add(run)
    for key, function in _functions().items():
        if name in _names(function.__code__) and function.__code__.co_filename in files:
            for run, args, kwargs, result in unmoved.calls[key]:
                if run not in found and not _same(function, args, kwargs, result):
                    found.add(run)
    return sorted(found)


def _same(function: Callable[..., Any], args: Any, kwargs: Any, result: bytes) -> bool:
    try:
        return bool(result) and _bytes(function(*args, **kwargs)) == result
    except Exception:
        return False


CAPTURE = """
They decide how long a run is watched, which of its steps are timed and what is written down. No recorded run
can show what they change: the reasons are those of the source.
"""

KINDS = ("fails", "verdict", "grade", "first fix", "ranking", "price", "figures", "report")

METHOD = """
Made by `python tests/benchmarks/sensitivity.py` over {runs} recorded runs: each numeric constant of the
analysis is moved by 30 % down and up, and every run that it may change is diagnosed anew. Numbers count
runs; a price counts when it moves by more than a tenth. A table is moved as a whole. A constant is measured
when it comes or gets another value (`--state` keeps the others), over the runs that are recorded by then.

{all} thresholds. {deciding} change an answer, {flips} of them the verdict of at least one run. Such a
verdict names the limit that decided it, except where an evaluation was seen too rarely to be priced
(`rare._FEWEST`). The other {still} were set to zero and to infinity too, so that their rule applies always
or never: that changes an answer for {shown}, and none for {silent}.

Each rule is neutralised alone: of two that guard the same, each may look unneeded while the other stands.
"""
ONE_HOST = """
- Calibrated from the run: `compiler_reach.ENTRY_NS`, `PER_PARAMETER_NS`, `PER_GRADIENT_NS`,
  `PER_KERNEL_NS`, `GRAPH_NS`, `PER_STATIC_TENSOR_NS` and `PER_NODE_NS` are scaled by what autograd's own
  nodes take in the run, over `REFERENCE_NS`.
- Measured in the run, where it can be: `division._DEFAULT_DISPATCH_NS` and `calibrate.TYPICAL_SCALE` hold
  only where neither the cost of an operator nor the phases were measured.
- Bounded: `dispatch._GRAPH_SPACING_NS` is never longer than the run's own spacing. `fusion._SHORTEST_NS`,
  `_AT_MOST` and `_NEAR` limit what fusing is credited with. `division._LEAST_SCALE` and
  `program._DEAREST_FAULT_MS` limit what the run measured. `labels.PYTHON_GAP_NS` is named by a verdict that
  it decides closely.
- Estimates that a run does not reveal, for `verify` to confirm: `questions._FUSED_WORK_LEFT`,
  `_FUSED_DISPATCH_LEFT` and `_DOUBLE_OVER_SINGLE`, `dispatch._FUSED_TRAFFIC`, `_COLLECTING_NS` and
  `_COLLECTING_EACH_NS`, `device._FUSED_PRODUCTS`, `math_rates.FIXED_NS`, `division.PROFILED_FACTOR`, and
  the passes over memory in `fusion`.
"""
"""How the constants that were measured on one host are held."""
KEPT = """
Each of them limits the length of a list or the effort of a search, guards against bad data, or belongs to
what no recorded run has: bare traces without marks (`periods`), ranks without a GPU (`ranks`), a checkpoint
every few steps (`rare`), a loader that stalls now and then (`supply`), `gate` and `compare` (`stats`),
watched jobs (`growth`, `catalog.job`), many ranks (`fleet`, `all_ranks`).
"""
CATALOGUE = """
Read when its module is imported, hence not moved here: `catalog.host._LOOP_WEIGHT`. By hand, at 0.7 instead
of 0.8 it changes the first fix of cpu-own-adam and the ranking of four other runs.
"""


def _cell(side: Changes) -> str:
    return ", ".join(f"{kind} {len(side[kind])}" for kind in KINDS if kind in side) or "-"


def _table(rows: list[tuple[Threshold, list[Changes]]], columns: tuple[str, ...]) -> list[str]:
    lines = [
        f"| {' | '.join(('threshold', 'value', *columns, 'why it is what it is'))} |",
        "|---|---" + "|---" * len(columns) + "|---|",
    ]
    for threshold, sides in rows:
        value = threshold.value if len(threshold.value) < 60 else threshold.value[:57] + "..."
        cells = [f"`{threshold.module.rpartition('.')[2]}.{threshold.name}`", value]
        cells += [_cell(side) for side in sides[len(sides) - len(columns) :]]
        cells.append(threshold.reason[:300])
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return [*lines, ""]


def report(rows: list[tuple[Threshold, list[Changes]]]) -> str:
    """Write the tables: what decides first, what changes nothing last."""
    deciding = [(threshold, sides) for threshold, sides in rows if len(sides) == len(MOVED)]
    still = [(threshold, sides) for threshold, sides in rows if len(sides) > len(MOVED)]
    shown = [(t, sides) for t, sides in still if any(side.keys() - {"report"} for side in sides[2:])]
    silent = [(t, sides) for t, sides in still if not any(side.keys() - {"report"} for side in sides[2:])]
    flips = sum(any("verdict" in side for side in sides) for _, sides in deciding)
    method = METHOD.format(
        runs=len(CASES),
        all=len(rows),
        deciding=len(deciding),
        flips=flips,
        still=len(still),
        shown=len(shown),
        silent=len(silent),
    )
    lines = ["# What each threshold decides", method]
    for room in dict.fromkeys(threshold.room for threshold, _ in deciding):
        mine = [(threshold, sides) for threshold, sides in deciding if threshold.room == room]
        lines += [f"## {room}", "", *_table(mine, ("down 30 %", "up 30 %"))]
    lines += ["## Verdicts that flip", ""]
    for threshold, sides in deciding:
        for factor, side in zip(MOVED, sides, strict=True):
            if "verdict" in side:
                lines.append(
                    f"- `{threshold.module}.{threshold.name}` x {factor}: {', '.join(side['verdict'])}"
                )
    lines += [
        "",
        "## Measured on one host",
        ONE_HOST,
        "## Nothing at 30 %, something at zero or infinity",
        "",
        *_table(shown, ("at zero", "at infinity")),
        "## Nothing at any value",
        KEPT,
        *_table(silent, ("at zero", "at infinity")),
        CATALOGUE.strip(),
        "",
        "## While a run is captured",
        CAPTURE,
    ]
    for room, mine in itertools.groupby(thresholds(rooms=IN_CAPTURE), lambda each: each.room):
        lines += [f"### {room}", "", *_table([(each, []) for each in mine], ())]
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
    waiting = [t for t in todo if f"{t.module}.{t.name}={t.value}" not in state]
    if waiting:
        _unmoved()  # once, before the processes fork
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        moving = {pool.submit(effect, threshold): threshold for threshold in waiting}
        for each in as_completed(moving):
            threshold, sides = moving[each], each.result()
            state[f"{threshold.module}.{threshold.name}={threshold.value}"] = sides
            if args.state:
                args.state.write_text(json.dumps(state))
            told = Counter(kind for side in sides for kind in side)
            print(threshold.module, threshold.name, dict(told) or "-", file=sys.stderr, flush=True)
    rows: list[tuple[Threshold, list[Changes]]] = [(t, state[f"{t.module}.{t.name}={t.value}"]) for t in todo]
    args.out.write_text(report(rows))


if __name__ == "__main__":
    main()
