"""Predicted against measured steps, for every recorded run whose fix was really applied.

    python tests/benchmarks/accuracy.py [--check]      writes reports/accuracy.md (--check: compares)
                                                       and bottleneck/catalog/record.py, which reports show

In: tests/recorded/*/truth.json beside the recordings. Out: one row per fix, none left out. A truth.json:

    case, fix          the folder, the fix of the catalogue that was applied
    fixes              if `--fixed` applies two at once
    question           where the recording is a bare trace: the replay's question that the fix answers
    slow_ms, fixed_ms  step times with nothing attached, a number or a list of repeats
    parts, without_ms  of several causes: kind of graph break -> step time with only that one fixed
    also               other fixes of the same recording: {fix: {slow_ms, fixed_ms, note}}
    device, torch, command, what, note

Needs no GPU. The measured figures contain the machine's own drift: slow and fixed are separate runs, and
the slow one differs from the true step that the tool saw. So the measured step is scaled to the tool's
(fixed / slow x true step) before it is compared.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch_bottleneck.catalog.registry import by_id
from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.codes import WhatIf
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.fix import Record

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "recorded"
REPORT = ROOT / "reports" / "accuracy.md"
RECORD = ROOT / "bottleneck" / "catalog" / "record.py"
RECORD_HEAD = '''"""How far each fix's predictions were from measurements; by tests/benchmarks/accuracy.py.

In: nothing. Out: `RECORDS`, data.
"""

from __future__ import annotations

from ..model.fix import Record

RECORDS: dict[str, Record] = {
'''
PASSED = 0.05
"""By so much a measured step may be shorter than one predicted "at best" before that is passed: noise."""
sys.path.insert(0, str(ROOT / "tests"))

sys.path.insert(0, str(Path(__file__).parent))

import tried_here
import verify_table
from recorded.cases import CASES

HEAD = """# Predicted against measured

The step that the tool predicts for a fix from a recorded slow run, and the step measured with that fix.
Made by `python tests/benchmarks/accuracy.py` from `tests/recorded/*/truth.json`. Every recording with a
measured fix is here, misses included. Times are in ms per step. Slow and fixed are separate runs without
the tool. *Measured* is fixed / slow times the true step that the tool saw, so the machine's drift between
runs does not count. That drift is mostly the host's. Where only the device decides the fixed step, as in
example-launch-bound, the *error as run* (against the fixed step in ms) is the better measure. A bound is the
most that the fix can gain: it should not be too high.

| recording | fix | true step | predicted | measured | error | error as run | predicted | measured | as run |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


@dataclass(frozen=True)
class Row:
    """One fix of one recording."""

    name: str
    fix: str
    true_ms: float
    predicted_ms: float | None
    slow_run_ms: float
    fixed_run_ms: float
    """Slow and fixed step as they were measured."""
    bound: bool = False
    why: str = ""
    """Why there is no prediction."""
    note: str = ""

    @property
    def measured_ms(self) -> float:
        """The fixed step on the scale of the true step that the tool saw."""
        return self.fixed_run_ms / self.slow_run_ms * self.true_ms

    @property
    def error(self) -> float | None:
        """Predicted over measured step, less one."""
        return None if self.predicted_ms is None else self.predicted_ms / self.measured_ms - 1

    def line(self) -> str:
        """Return the row of the table."""
        if self.predicted_ms is None or self.error is None:
            predicted, error, run, gain = f"none: {self.why}", "-", "-", "-"
        else:
            predicted = f"{'at best ' if self.bound else ''}{self.predicted_ms:.2f}"
            error, gain = f"{self.error:+.1%}", f"{self.true_ms / self.predicted_ms:.2f}x"
            run = f"{self.predicted_ms / self.fixed_run_ms - 1:+.1%}"
        measured = f"{self.true_ms / self.measured_ms:.2f}x"
        return (
            f"| {self.name} | {self.fix} | {self.true_ms:.2f} | {predicted} | {self.measured_ms:.2f} "
            f"| {error} | {run} | {gain} | {measured} | {self.slow_run_ms:.2f} → {self.fixed_run_ms:.2f}"
            + (f" ({self.note})" if self.note else "")
            + " |"
        )


def middle(value: float | list[float]) -> float:
    """Return the median of repeats."""
    return median(value) if isinstance(value, list) else float(value)


def predict(found: Diagnosis, truth: dict[str, Any]) -> tuple[float | None, bool, str]:
    """Return (predicted step, whether it is a bound, why there is none)."""
    pair = tuple(truth.get("fixes", ()))
    if pair and found.combination is not None and set(found.combination.fixes) == set(pair):
        return found.combination.predicted_ms, found.combination.bound, ""
    for suggestion in found.suggestions:
        if suggestion.fix == truth["fix"] and suggestion.predicted_ms is not None and not pair:
            return suggestion.predicted_ms, suggestion.bound, ""
    question = WhatIf(truth["question"]) if "question" in truth else by_id(truth["fix"]).what_if
    answer = next((a for a in found.what_ifs if a.question is question), None)
    if answer is not None and (not pair or "question" in truth):
        return answer.step_ms, answer.bound, ""
    if question is not None and found.what_ifs and not pair:
        # The replay was asked and saw nothing to save.
        return found.step.true_ms, False, ""
    if found.verdict.bottleneck_class.value == "undetermined":
        return None, False, found.verdict.reason or "undetermined"
    return None, False, "not among the suggestions"


def rows_of(folder: Path) -> list[Row]:
    """Return the rows of one recording."""
    truth = json.loads((folder / "truth.json").read_text())
    if not truth["slow_ms"] or not truth["fixed_ms"]:
        return []
    case = CASES.get(folder.name)
    bare = not (folder / "run.json").is_file() and not (folder / "run").is_dir()
    given = (case.true_step_ms if case is not None else None) or middle(truth["slow_ms"])
    place = folder / "run" if (folder / "run").is_dir() else folder
    found = diagnose_paths([place], true_step_ms=given if bare else None)
    rows = [row_of(folder.name, found, truth)]
    rows += [
        row_of(folder.name, found, {"fix": fix, **times}) for fix, times in truth.get("also", {}).items()
    ]
    true_ms, slow = found.step.true_ms, middle(truth["slow_ms"])
    for part, times in truth.get("without_ms", {}).items():
        kind = truth.get("parts", {}).get(part)
        breaks = found.compile.breaks if found.compile is not None else ()
        cost = next((b.cost_ms for b in breaks if b.kind == kind), None)
        rows.append(
            Row(
                f"{folder.name}: {part} alone",
                truth["fix"],
                true_ms or slow,
                None if cost is None or true_ms is None else true_ms - cost,
                slow,
                middle(times),
                why="this break has no price",
            )
        )
    return rows


def row_of(name: str, found: Diagnosis, truth: dict[str, Any]) -> Row:
    """Return the row of one fix."""
    slow, fixed = middle(truth["slow_ms"]), middle(truth["fixed_ms"])
    if found.step.true_ms is None:
        return Row(name, truth["fix"], slow, None, slow, fixed, why="no step was found")
    step, bound, why = predict(found, truth)
    fix = " + ".join(truth.get("fixes", [truth["fix"]]))
    note = truth.get("note", "")
    return Row(name, fix, found.step.true_ms, step, slow, fixed, bound=bound, why=why, note=note)


def records(rows: list[Row]) -> dict[str, Record]:
    """Return how far the predictions of each fix were from what was measured, by all that was."""
    errors: dict[str, list[float]] = defaultdict(list)
    held: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row.error is not None and row.bound:
            held[row.fix].append(row.error <= PASSED)
        elif row.error is not None:
            errors[row.fix].append(abs(row.error))
    best, _ = verify_table.told_apart(verify_table.read_rows(verify_table.STORED))
    for tried in best:
        if tried.predicted is not None and tried.measured is not None and tried.outcome["bound"]:
            held[tried.fix].append(tried.measured <= (1 + PASSED) * tried.predicted)
        elif tried.error is not None:
            errors[tried.fix].append(abs(tried.error))
    for pair in tried_here.pairs():
        if pair.decided and pair.bound:
            held[pair.fix].append(not pair.contradicts)
        elif pair.decided:
            errors[pair.fix].append(abs(pair.error))
    return {
        fix: Record(
            predictions=len(errors[fix]),
            error=round(median(errors[fix]), 4) if errors[fix] else None,
            close=sum(error <= 0.10 for error in errors[fix]),
            bounds=len(held[fix]),
            held=sum(held[fix]),
        )
        for fix in sorted(errors.keys() | held.keys())
        if len(fix.split()) == 1  # no combination
    }


def all_rows() -> list[Row]:
    """Return the rows of all recordings."""
    return [row for file in sorted(RECORDED.glob("*/truth.json")) for row in rows_of(file.parent)]


def report(rows: list[Row]) -> str:
    """Return the whole page."""
    errors = [abs(row.error) for row in rows if row.error is not None]
    close = sum(error <= 0.10 for error in errors)
    worst = max((row for row in rows if row.error is not None), key=lambda row: abs(row.error or 0))
    missing = sum(row.error is None for row in rows)
    lines = [row.line() for row in rows]
    summary = (
        f"\n\n{len(rows)} fixes: {close} of {len(errors)} predicted steps within 10 % of the measured one, "
        f"median error {median(errors):.1%}, worst {worst.error:+.1%} ({worst.name})"
        + (f"; {missing} without a prediction" if missing else "")
        + ".\n\nSome constants of the replay (docstrings in `bottleneck/timeline/gpu/questions/*.py`) were "
        "chosen on the older recordings, named `*-h200`. None were chosen on those named `case-*`, "
        "`memory-*`, `compile-*` and `example-*`, with these exceptions:\n\n"
        "- The pause between kernels of a CUDA graph was read from fixed runs of example-launch-bound and "
        "case-cudagraph-skip.\n"
        "- What compiled code leaves to the host (`bottleneck/timeline/gpu/compiler_reach.py`) was read from "
        "traces of the fixed example-graph-breaks and example-launch-bound, and of the compiled forms of "
        "compile-mlp and compile-recurrent.\n"
        "- Two rules of `bottleneck/timeline/gpu/fusion.py` were added after compile-convolutions, "
        "compile-batch-norms and compile-mlp had been missed (+36 %, +40 %, -38 %): kernels of batch norms "
        "and reductions shrink to the time that their bytes take, and a reduction is launched as two "
        "kernels. compile-transformer, -chains, -tables and -adversarial and FX412 on example-transfer-bound "
        "were not used for it.\n"
        "- What lies outside the model, and that a graph keeps its memory, was seen on example-launch-bound, "
        "-sync-bound and -empty-cache, which gave no constant.\n"
        "- How the cost between graphs is recognised, and where the profiler's cost lies, was revised after "
        "a look at the `case-*`.\n"
        "- That FX310 also speeds up batch norms on NCHW was added after it had been missed on "
        "example-transfer-bound; compile-batch-norms was not used for it.\n"
    )
    return HEAD + "\n".join(lines) + summary + verify_table.section() + tried_here.section()


def main() -> None:
    """Write the report, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the report is not up to date")
    args = parser.parse_args()
    rows = all_rows()
    text = report(rows)
    found = (f"    {json.dumps(fix)}: {record!r},\n" for fix, record in records(rows).items())
    record = f"{RECORD_HEAD}{''.join(found)}}}\n"
    if args.check:
        if REPORT.read_text() != text or RECORD.read_text() != record:
            sys.exit("reports/accuracy.md is out of date: run python tests/benchmarks/accuracy.py")
        return
    REPORT.write_text(text)
    RECORD.write_text(record)
    print(text)


if __name__ == "__main__":
    main()
