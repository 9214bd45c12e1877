"""Predicted against measured: diagnoses examples, tries every fix that they suggest, writes the table.

In: examples/*.py and the machine this runs on. Out:

    reports/verify-gallery/<device>/<example>.json   one verification each (verify.json)
    reports/verify-gallery.md                        the table over all of them, misses included

    python tests/benchmarks/verify_gallery.py [--seconds 450] [--out FOLDER] [EXAMPLE[:FX+FX][@WEIGHT] ...]
    python tests/benchmarks/verify_gallery.py --table            only writes the table anew

Time is shared out among the examples by their weights, and what one leaves goes to the others; within
one, fixes are tried in the order of predicted gain, so what there is no time for is what promised
least. Such rows say so; `--seconds` more brings them. `combine` among the fixes of an example puts
those that helped together at the end.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
STORED = REPOSITORY / "reports" / "verify-gallery"
TABLE = REPOSITORY / "reports" / "verify-gallery.md"
EXAMPLES = (
    "input_bound",
    "launch_bound",
    "compute_bound",
    "transfer_bound",
    "allocator_thrashing",
    "empty_cache",
    "sync_bound",
    "graph_breaks",
)
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
        """Its id, or those of a combination."""
        return " + ".join(self.outcome["fixes"])

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
    def pairs(self) -> int:
        """Pairs of runs behind the figure."""
        found = self.outcome["measured"]
        return int(found["pairs"]) if found else 0

    @property
    def decided(self) -> bool:
        """Neither time nor noise was in the way."""
        return self.outcome["verdict"] not in ("undecided", "not run")

    @property
    def error(self) -> float | None:
        """Predicted step over measured step, less one."""
        if self.predicted is None or self.measured is None or self.outcome["bound"]:
            return None
        return self.measured / self.predicted - 1.0

    @property
    def wrong_sign(self) -> str:
        """Whether a gain was predicted and a loss came, or the other way round: "proven", "figure" or ""."""
        if self.predicted is None or self.measured is None or self.outcome["bound"]:
            return ""
        promised, came = self.predicted - 1.0, self.measured - 1.0
        if promised * came >= 0 or max(abs(promised), abs(came)) < WORTH:
            return ""
        low, high = self.outcome["measured"]["low"], self.outcome["measured"]["high"]
        proven = low is not None and high is not None and (high < 1.0 if promised > 0 else low > 1.0)
        return "proven" if proven else "figure"


@dataclass(frozen=True)
class Task:
    """What is asked for of one example."""

    example: str
    fixes: tuple[str, ...]
    combine: bool
    weight: float

    @classmethod
    def of(cls, word: str) -> Task:
        """Read EXAMPLE[:FX...+FX...+combine][@WEIGHT]."""
        word, _, weight = word.partition("@")
        example, _, listed = word.partition(":")
        fixes = tuple(listed.split("+")) if listed else ()
        return cls(
            example,
            tuple(fix for fix in fixes if fix != "combine"),
            "combine" in fixes or not fixes,
            float(weight or 1),
        )

    @property
    def stem(self) -> str:
        """Name of its file."""
        return ".".join(filter(None, [self.example, "-".join(self.fixes)]))


def try_example(task: Task, seconds: float, out: Path, pairs: int) -> None:
    """Diagnose one example, then verify what it suggests, or the fixes named, within a time."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        tool = [sys.executable, "-m", "torch_bottleneck"]
        # More steps than the examples take by default: compiling uses up many of them.
        script = [f"examples/{task.example}.py", "--steps", "400"]
        command = [*tool, "diagnose", "--quiet", "--out", str(run), *script]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        if not (run / "diagnosis.json").is_file():
            print(f"{task.example}: diagnose ended with {done.returncode}\n{done.stderr[-2000:]}", flush=True)
            return
        minutes = max(0.2, (end - time.monotonic()) / 60)
        chosen = [word for fix in task.fixes for word in ("--fix", fix)]
        if not task.combine:
            chosen.append("--no-combine")
        command = [*tool, "verify", "--budget", f"{minutes:.2f}", "--pairs", str(pairs), "--max-pairs", "5"]
        command += ["--out", str(run / "v"), *chosen, str(run)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        spare = end - time.monotonic()
        print(f"== {task.stem}, {seconds:.0f} s, {spare:.0f} s of them left\n{done.stdout}", flush=True)
        print(done.stderr[-3000:], flush=True)
        if (run / "v" / "verify.json").is_file():
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{task.stem}.json").write_text(portable((run / "v" / "verify.json").read_text()))
            for name in ("diagnosis", "run"):
                shutil.copy(run / f"{name}.json", out / f"{task.stem}.{name}.json")


def portable(text: str) -> str:
    """Take out what only this machine knows: where the checkout lies."""
    for private, public in ((f"{REPOSITORY}/", ""), (str(REPOSITORY), "."), (sys.prefix, "python")):
        text = text.replace(private, public)
    return text


def slug(device: str) -> str:
    """Return a device's name as a folder's name."""
    return re.sub(r"\W+", "-", device.lower()).strip("-")


def read_rows(folder: Path) -> list[Row]:
    """Return the rows of all stored verifications."""
    rows: list[Row] = []
    for file in sorted(folder.glob("*/*.json")):
        if file.name.endswith((".diagnosis.json", ".run.json")):
            continue
        state = json.loads(file.read_text())
        device = (state["device"] or {}).get("name") or file.parent.name
        example = file.name.split(".")[0]
        rows += [Row(device, state["host"]["torch"], example, o) for o in state["outcomes"]]
    # What a later call had the time to decide takes the place of what an earlier one had not.
    best: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        known = best.get((row.device, row.example, row.fix))
        if known is None or (row.decided, row.pairs) > (known.decided, known.pairs):
            best[row.device, row.example, row.fix] = row
    return list(best.values())


def per_fix(rows: list[Row]) -> list[str]:
    """Return the lines of the table by fix: how good its predictions are."""
    lines = [
        "| fix | tried | priced | median error | worst error | wrong signs |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for fix in sorted({row.fix for row in rows}):
        its = [row for row in rows if row.fix == fix and row.measured is not None]
        errors = [abs(row.error) for row in its if row.error is not None]
        if not its:
            continue
        middle = f"{statistics.median(errors):.1%}" if errors else "-"
        worst = f"{max(errors):.1%}" if errors else "-"
        wrong = sum(bool(row.wrong_sign) for row in its)
        lines.append(f"| {fix} | {len(its)} | {len(errors)} | {middle} | {worst} | {wrong} |")
    return lines


def by_example(rows: list[Row]) -> list[str]:
    """Return the lines of the table of everything that was tried."""
    lines = [
        "| example | fix | predicted | measured (95 %) | error | memory | loss | verdict |",
        "|---|---|---:|---:|---:|---:|---|---|",
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
        error = "-" if row.error is None else f"{row.error:+.1%}"
        memory = "-" if o["memory_bytes"] is None else f"{o['memory_bytes'] / 1e6:+.0f} MB"
        verdict = o["verdict"]
        if o["reason"] and verdict != "faster":
            verdict += f": {short(o['reason'])}"
        cells = [row.example, row.fix, predicted, measured, error, memory, o["parity"]["verdict"], verdict]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def short(text: str) -> str:
    """Return a reason for a table cell."""
    flat = re.sub(r"[|\n`]+", " ", text)
    return flat if len(flat) < 120 else f"{flat[:117]}..."


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
        errors = [abs(row.error) for row in its if row.error is not None]
        proven = sum(row.wrong_sign == "proven" for row in its)
        doubtful = sum(row.wrong_sign == "figure" for row in its)
        versions = ", ".join(sorted({row.torch for row in its}))
        lines += ["", f"## {device}, torch {versions}", ""]
        tried = sum(row.measured is not None for row in its)
        if errors:
            near = sum(error < TARGET for error in errors)
            middle, worst = statistics.median(errors), max(errors)
            lines.append(
                f"{tried} fixes measured, {len(errors)} of them with a prediction: median error {middle:.1%},"
                f" worst {worst:.1%}, {near} within {TARGET:.0%}."
                f" Wrong signs: {proven} that the interval proves, {doubtful} by the figure alone."
            )
        else:
            lines.append(f"{tried} fixes measured, none of them with a prediction that is no bound.")
        lines += ["", *by_example(its), "", "By fix:", "", *per_fix(its)]
        notes = STORED / slug(device) / "notes.md"
        if notes.is_file():
            lines += ["", notes.read_text().rstrip()]
    TABLE.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Try, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--pairs", type=int, default=2, help="pairs of runs before anything is decided")
    parser.add_argument("--out", type=Path, help="store the verifications here instead of under reports/")
    parser.add_argument("--table", action="store_true", help="write the table from what is stored")
    args = parser.parse_args()
    if not args.table:
        import torch

        gpu = torch.cuda.is_available()
        device = torch.cuda.get_device_name(0) if gpu else "cpu"
        out = args.out or STORED / slug(device)
        names = args.names or [
            n for n in EXAMPLES if gpu or n not in ("empty_cache", "sync_bound", "transfer_bound")
        ]
        end = time.monotonic() + args.seconds
        tasks = [Task.of(name) for name in names]
        for i, task in enumerate(tasks):
            share = task.weight / sum(other.weight for other in tasks[i:])
            try_example(task, (end - time.monotonic()) * share, out, args.pairs)
    if args.out is None:
        write_table(read_rows(STORED))
        print(TABLE.read_text())


if __name__ == "__main__":
    main()
