"""Predicted against measured: tables of the stored verifications, by example and by fix.

In: reports/verify-gallery/*/*.json (verify.json of each example, by `verify_gallery.py`). Out:
reports/verify-gallery.md, and the section that `accuracy.py` puts into reports/accuracy.md. Needs no GPU.

Two predictions stand there: the one made before the fix was measured, by the version of that day, and the
one that the present version makes from the recording of the same example in tests/recorded, another run of
it on the same kind of device. Only the first was made by someone who could not know the answer.
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch_bottleneck.diagnose import diagnose_paths

REPOSITORY = Path(__file__).resolve().parents[2]
STORED = REPOSITORY / "reports" / "verify-gallery"
TABLE = REPOSITORY / "reports" / "verify-gallery.md"
RECORDED = REPOSITORY / "tests" / "recorded"
WORTH = 0.05
"""Signs count for predicted or measured gains above this."""
TARGET = 0.10


@dataclass(frozen=True)
class Row:
    """One fix tried on one example."""

    device: str
    torch: str
    example: str
    outcome: dict[str, Any]

    @property
    def fix(self) -> str:
        """Its id, or those of a combination; what it was tried beside."""
        names = " + ".join(self.outcome["fixes"])
        return f"{names} beside {' + '.join(self.outcome['base'])}" if self.outcome["base"] else names

    @property
    def predicted(self) -> float | None:
        """Predicted speed-up, None where there is none or only a bound."""
        ratio: float | None = self.outcome["predicted_ratio"]
        return ratio

    @property
    def today(self) -> float | None:
        """Speed-up predicted by the present version; None where it predicts none or only a bound."""
        return None if self.outcome["base"] else present(self.example, self.device).get(self.fix)

    @property
    def measured(self) -> float | None:
        """Measured speed-up."""
        found = self.outcome["measured"]
        return found["ratio"] if found else None

    @property
    def pairs(self) -> int:
        """Pairs of runs behind the figure."""
        found = self.outcome["measured"]
        return int(found["pairs"]) if found else 0

    @property
    def decided(self) -> bool:
        """Neither time nor noise was in the way."""
        return self.outcome["verdict"] not in ("undecided", "not run")

    @property
    def beforehand(self) -> float | None:
        """The prediction that stood before, where it was no bound."""
        return None if self.outcome["bound"] else self.predicted

    def error(self, predicted: float | None) -> float | None:
        """Predicted step over measured step, less one."""
        if predicted is None or self.measured is None:
            return None
        return self.measured / predicted - 1.0

    def wrong_sign(self, predicted: float | None) -> str:
        """Whether a gain was predicted and a loss came, or the other way round: "proven", "figure" or ""."""
        if predicted is None or self.measured is None:
            return ""
        promised, came = predicted - 1.0, self.measured - 1.0
        if promised * came >= 0 or max(abs(promised), abs(came)) < WORTH:
            return ""
        low, high = self.outcome["measured"]["low"], self.outcome["measured"]["high"]
        proven = low is not None and high is not None and (high < 1.0 if promised > 0 else low > 1.0)
        return "proven" if proven else "figure"


@cache
def present(example: str, device: str) -> dict[str, float]:
    """Return the speed-up that the present version predicts of each fix, from the recording of an example."""
    name = f"example-{example.replace('_', '-')}"
    # The later recording, where the first was made on a host of unusual speed.
    folder = next((f for f in (RECORDED / f"{name}-again", RECORDED / name) if f.is_dir()), None)
    if folder is None:
        return {}
    diagnosis = diagnose_paths([folder])
    true_ms = diagnosis.step.true_ms
    if true_ms is None or diagnosis.device is None or diagnosis.device.name != device:
        return {}
    found = {
        s.fix: true_ms / s.predicted_ms
        for s in (*diagnosis.suggestions, *diagnosis.applicable)
        if s.predicted_ms and not s.bound
    }
    pair = diagnosis.combination
    if pair is not None and not pair.bound:
        for first, second in (pair.fixes, pair.fixes[::-1]):
            found[f"{first} + {second}"] = true_ms / pair.predicted_ms
    return found


def slug(device: str) -> str:
    """Return a device's name as a folder's name."""
    return re.sub(r"\W+", "-", device.lower()).strip("-")


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of all stored verifications."""
    rows: list[tuple[str, Row]] = []
    for file in sorted(folder.glob("*/*.json")):
        if file.name.endswith((".diagnosis.json", ".run.json")):
            continue
        state = json.loads(file.read_text())
        device = (state["device"] or {}).get("name") or file.parent.name
        example = file.name.split(".")[0]
        torch = state["host"]["torch"]
        rows += [(state["created"], Row(device, torch, example, o)) for o in state["outcomes"]]
    # The newest that was decided: a later call may lack the time that an earlier one had.
    best: dict[tuple[str, str, str], Row] = {}
    for _, row in sorted(rows, key=lambda item: item[0]):
        known = best.get((row.device, row.example, row.fix))
        if known is None or (row.decided, row.pairs >= 2) >= (known.decided, known.pairs >= 2):
            best[row.device, row.example, row.fix] = row
    return sorted(best.values(), key=lambda row: (row.device, row.example))


def per_fix(rows: list[Row]) -> list[str]:
    """Return the lines of the table by fix: how good its predictions are."""
    lines = [
        "| fix | tried | median error | worst | wrong signs | today: median error | worst | wrong signs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for fix in sorted({row.fix for row in rows}):
        its = [row for row in rows if row.fix == fix and row.measured is not None]
        if not its:
            continue
        cells = [fix, str(len(its))]
        for predictions in ([row.beforehand for row in its], [row.today for row in its]):
            errors = _errors(its, predictions)
            wrong = sum(bool(row.wrong_sign(p)) for row, p in zip(its, predictions, strict=True))
            cells += [f"{statistics.median(errors):.1%}", f"{max(errors):.1%}"] if errors else ["-", "-"]
            cells.append(str(wrong))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _errors(rows: list[Row], predictions: list[float | None]) -> list[float]:
    found = (row.error(predicted) for row, predicted in zip(rows, predictions, strict=True))
    return [abs(error) for error in found if error is not None]


def by_example(rows: list[Row]) -> list[str]:
    """Return the lines of the table of everything that was tried."""
    lines = [
        "| example | fix | predicted | measured (95 %) | error | today | error | memory | loss | verdict |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        o = row.outcome
        predicted = "-" if row.predicted is None else f"{'≤ ' if o['bound'] else ''}{row.predicted:.2f}×"
        measured = "-"
        if o["measured"]:
            m = o["measured"]
            measured = f"{m['ratio']:.2f}×"
            if m["low"] is None:
                measured += " (1 pair)"
            else:
                measured += f" ({m['low']:.2f} to {m['high']:.2f})"
        errors = [row.error(row.beforehand), row.error(row.today)]
        told = ["-" if error is None else f"{error:+.1%}" for error in errors]
        today = "-" if row.today is None else f"{row.today:.2f}×"
        memory = "-" if o["memory_bytes"] is None else f"{o['memory_bytes'] / 1e6:+.0f} MB"
        verdict = o["verdict"]
        if o["reason"] and verdict != "faster":
            verdict += f": {short(o['reason'])}"
        cells = [row.example, row.fix, predicted, measured, told[0], today, told[1]]
        cells += [memory, o["parity"]["verdict"], verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def short(text: str) -> str:
    """Return a reason for a table cell."""
    flat = re.sub(r"[|\n`]+", " ", text)
    return flat if len(flat) < 120 else f"{flat[:117]}..."


def summary(rows: list[Row]) -> str:
    """Say how good the predictions were, and would be by the present version."""
    measured = [row for row in rows if row.measured is not None]
    told = f"{len(measured)} fixes measured."
    for name, predictions in (
        ("Predicted beforehand", [row.beforehand for row in measured]),
        ("By the present version, from the recordings", [row.today for row in measured]),
    ):
        errors = _errors(measured, predictions)
        if not errors:
            continue
        near = sum(error < TARGET for error in errors)
        signs = [(row, row.wrong_sign(p)) for row, p in zip(measured, predictions, strict=True)]
        wrong = [(row, sign) for row, sign in signs if sign]
        proven = sum(sign == "proven" for _, sign in wrong)
        named = f" ({', '.join(f'{row.fix} on {row.example}' for row, _ in wrong)})" if wrong else ""
        told += (
            f" {name}, {len(errors)} of them: median error {statistics.median(errors):.1%}, worst"
            f" {max(errors):.1%}, {near} within {TARGET:.0%}; wrong signs: {proven} that the interval proves,"
            f" {len(wrong) - proven} by the figure alone{named}."
        )
    return told


def section() -> str:
    """Return what reports/accuracy.md says of the fixes that `bottleneck verify` tried."""
    lines = ["", "## Fixes that `verify` tried", ""]
    lines += [
        "The fix applied while the script runs, in turns with the script as it is; every row, with its",
        "interval, is in [verify-gallery.md](verify-gallery.md). *Today*: what the present version predicts",
        "from the recordings of the same examples; it was written with some of these measurements known.",
    ]
    rows = read_rows(STORED)
    for device in sorted({row.device for row in rows}):
        its = [row for row in rows if row.device == device]
        lines += ["", f"{device}: {summary(its)}", "", *per_fix(its)]
    return "\n".join(lines) + "\n"


def write_table(rows: list[Row]) -> None:
    """Write reports/verify-gallery.md."""
    lines = [
        "# Fixes tried: predicted against measured",
        "",
        "Written by `python tests/benchmarks/verify_gallery.py`, which diagnoses each example once and",
        "then runs `bottleneck verify` on its suggestions: the fix applied at run time, in turns with the",
        "script as it is. Predicted: the speed-up that the diagnosis named beforehand (≤ marks an upper",
        "bound). Today: what the present version predicts from the recording of the same example in",
        "`tests/recorded`, another run of it, with some of these measurements known. Error: predicted step",
        "over measured step, less one; not for bounds. A sign is wrong where a gain or loss above 5 % was",
        "predicted or measured and the measured figure lies on the other side of 1; it is proven where the",
        "whole interval does.",
    ]
    for device in sorted({row.device for row in rows}):
        its = [row for row in rows if row.device == device]
        versions = ", ".join(sorted({row.torch for row in its}))
        lines += ["", f"## {device}, torch {versions}", ""]
        lines.append(summary(its))
        lines += ["", *by_example(its), "", "By fix:", "", *per_fix(its)]
        notes = STORED / slug(device) / "notes.md"
        if notes.is_file():
            lines += ["", notes.read_text().rstrip()]
    TABLE.write_text("\n".join(lines) + "\n")
