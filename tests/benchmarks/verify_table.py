"""Predicted against measured: tables of the stored verifications, by example and by fix.

In: reports/verify-gallery/*/*.json (verify.json of each example, by `verify_gallery.py`). Out:
reports/verify-gallery.md, and the section that `accuracy.py` puts into reports/accuracy.md. Needs no GPU.

The prediction is the one that the diagnosis made before the fix was measured, in the same session on the
same machine. What the present version makes of recordings stands in the first part of reports/accuracy.md.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
STORED = REPOSITORY / "reports" / "verify-gallery"
UNSEEN = "unseen"
"""Folder below it: other scripts than the examples, on which no rule of a prediction was made."""
TABLE = REPOSITORY / "reports" / "verify-gallery.md"
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
    def measured(self) -> float | None:
        """Measured speed-up."""
        found = self.outcome["measured"]
        return found["ratio"] if found else None

    @property
    def width(self) -> float:
        """Upper over lower end of the interval; infinite where there is none."""
        found = self.outcome["measured"]
        if not found or found["low"] is None or found["high"] is None:
            return math.inf
        return float(found["high"] / found["low"])

    @property
    def beforehand(self) -> float | None:
        """The prediction that stood before, where it was no bound."""
        return None if self.outcome["bound"] else self.predicted

    @property
    def error(self) -> float | None:
        """Predicted step over measured step, less one; None for bounds."""
        predicted = self.beforehand
        if predicted is None or self.measured is None:
            return None
        return self.measured / predicted - 1.0

    def wrong_sign(self) -> str:
        """Whether a gain was predicted and a loss came, or the other way round: "proven", "figure" or ""."""
        predicted = self.beforehand
        if predicted is None or self.measured is None:
            return ""
        promised, came = predicted - 1.0, self.measured - 1.0
        if promised * came >= 0 or max(abs(promised), abs(came)) < WORTH:
            return ""
        low, high = self.outcome["measured"]["low"], self.outcome["measured"]["high"]
        proven = low is not None and high is not None and (high < 1.0 if promised > 0 else low > 1.0)
        return "proven" if proven else "figure"


def slug(device: str) -> str:
    """Return a device's name as a folder's name."""
    return re.sub(r"\W+", "-", device.lower()).strip("-")


def read_rows(folder: Path, *, unseen: bool = False) -> list[Row]:
    """Return the rows of all stored verifications: of the examples, or of the other scripts."""
    rows: list[tuple[str, Row]] = []
    for file in sorted(folder.glob("*/*.json")):
        if (file.parent.name == UNSEEN) is not unseen:
            continue
        if file.name.endswith((".diagnosis.json", ".run.json")):
            continue
        state = json.loads(file.read_text())
        device = (state["device"] or {}).get("name") or file.parent.name
        example = file.name.split(".")[0]
        torch = state["host"]["torch"]
        rows += [(state["created"], Row(device, torch, example, o)) for o in state["outcomes"]]
    return [row for _, row in sorted(rows, key=lambda item: (item[1].device, item[1].example, item[0]))]


def told_apart(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Return the row of each fix that is known best, and what else was measured of it.

    Best known: with the narrowest interval, whatever was predicted; of those without one the newest.
    """
    best: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        known = best.get((row.device, row.example, row.fix))
        if known is None or (row.measured is None, row.width) <= (known.measured is None, known.width):
            best[row.device, row.example, row.fix] = row
    chosen = set(map(id, best.values()))
    again = [row for row in rows if id(row) not in chosen and row.measured is not None]
    return list(best.values()), again


def per_fix(rows: list[Row]) -> list[str]:
    """Return the lines of the table by fix: how good its predictions are."""
    lines = ["| fix | measured | median error | worst | wrong signs |", "|---|---:|---:|---:|---:|"]
    for fix in sorted({row.fix for row in rows}):
        its = [row for row in rows if row.fix == fix and row.measured is not None]
        errors = _errors(its)
        if not errors:
            continue
        wrong = sum(bool(row.wrong_sign()) for row in its)
        lines.append(
            f"| {fix} | {len(errors)} | {statistics.median(errors):.1%} | {max(errors):.1%} | {wrong} |"
        )
    return lines


def _errors(rows: list[Row]) -> list[float]:
    return [abs(row.error) for row in rows if row.error is not None]


def by_example(rows: list[Row]) -> list[str]:
    """Return the lines of the table of everything that was tried."""
    lines = [
        "| example | fix | predicted | measured (95 %) | error | memory | loss | verdict |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    untold = []
    for row in rows:
        if row.predicted is None and row.measured is None:
            untold.append(f"{row.fix} on {row.example} ({row.outcome['verdict']})")
            continue
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
        told = "-" if row.error is None else f"{row.error:+.1%}"
        memory = "-" if o["memory_bytes"] is None else f"{o['memory_bytes'] / 1e6:+.0f} MB"
        verdict = o["verdict"]
        if o["reason"] and verdict != "faster":
            verdict += f": {short(o['reason'])}"
        cells = [row.example, row.fix, predicted, measured, told, memory, o["parity"]["verdict"], verdict]
        lines.append(f"| {' | '.join(cells)} |")
    if untold:
        lines += ["", f"Asked for by `--all`, with neither a prediction nor a figure: {', '.join(untold)}."]
    return lines


def short(text: str) -> str:
    """Return a reason for a table cell."""
    flat = re.sub(r"[|\n`]+", " ", text)
    return flat if len(flat) < 120 else f"{flat[:117]}..."


def summary(rows: list[Row]) -> str:
    """Say how good the predictions were."""
    measured = [row for row in rows if row.measured is not None]
    told = f"{len(measured)} fixes measured"
    errors = _errors(measured)
    if not errors:
        return f"{told}."
    bounds = [row for row in measured if row.outcome["bound"] and row.predicted is not None]
    kept = sum((row.measured or 0) <= (row.predicted or 0) for row in bounds)
    near = sum(error < TARGET for error in errors)
    wrong = [(row, row.wrong_sign()) for row in measured if row.wrong_sign()]
    proven = sum(sign == "proven" for _, sign in wrong)
    named = f" ({', '.join(f'{row.fix} on {row.example}' for row, _ in wrong)})" if wrong else ""
    told += (
        f", {len(errors)} of them with a prediction made beforehand: median error"
        f" {statistics.median(errors):.1%}, worst {max(errors):.1%}, {near} within {TARGET:.0%}; wrong signs:"
        f" {proven} that the interval proves, {len(wrong) - proven} by the figure alone{named}."
    )
    if bounds:
        told += f" Of {len(bounds)} upper bounds {kept} held."
    return told


def section() -> str:
    """Return what reports/accuracy.md says of the fixes that `bottleneck verify` tried."""
    lines = ["", "## Fixes that `verify` tried", ""]
    lines += [
        "The fix applied while the script runs, in turns with the script as it is, and held against what the",
        "diagnosis had predicted in the same session; every row, with its interval, is in",
        "[verify-gallery.md](verify-gallery.md).",
    ]
    rows = read_rows(STORED)
    for device in sorted({row.device for row in rows}):
        its = [row for row in rows if row.device == device]
        best, _ = told_apart(its)
        lines += ["", f"{device}: {summary(best)} All measurements: {summary(its)}", "", *per_fix(best)]
    return "\n".join(lines) + "\n"


def write_table(rows: list[Row]) -> None:
    """Write reports/verify-gallery.md."""
    lines = [
        "# Fixes tried: predicted against measured",
        "",
        "Written by `python tests/benchmarks/verify_gallery.py`, which diagnoses each example once and",
        "then runs `bottleneck verify` on its suggestions: the fix applied at run time, in turns with the",
        "script as it is. Predicted: the speed-up that the diagnosis named beforehand (≤ marks an upper",
        "bound). Error: predicted step over measured step, less one; not for bounds. A sign is wrong where",
        "a gain or loss above 5 % was predicted or measured and the measured figure lies on the other side",
        "of 1; it is proven where the whole interval does.",
    ]
    for device in sorted({row.device for row in rows}):
        its = [row for row in rows if row.device == device]
        versions = ", ".join(sorted({row.torch for row in its}))
        lines += ["", f"## {device}, torch {versions}", ""]
        best, again = told_apart(its)
        lines.append(
            f"{summary(best)} All measurements, those of the same fix again among them: {summary(its)}"
        )
        lines += ["", *by_example(best), "", "By fix:", "", *per_fix(best)]
        if again:
            lines += ["", "The same fixes in the other sessions, where the interval was wider:", ""]
            lines += by_example(again)
        notes = STORED / slug(device) / "notes.md"
        if notes.is_file():
            lines += ["", notes.read_text().rstrip()]
    others = read_rows(STORED, unseen=True)
    if others:
        lines += ["", "## Scripts on which no rule was made", "", summary(others), "", *by_example(others)]
        lines += ["", (STORED / UNSEEN / "notes.md").read_text().rstrip()]
    TABLE.write_text("\n".join(lines) + "\n")
