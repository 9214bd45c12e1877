"""Bytes that the tool reads and predicts from a memory history, against what was measured without it.

    python tests/benchmarks/memory_accuracy.py [--check]      writes reports/memory-accuracy.md

In: tests/recorded/memory-*/ with their truth.json (peaks by torch.cuda.max_memory_allocated, growth by
memory_allocated, slow and mended, nothing attached). Out: one row per figure, none left out. No GPU needed.
What the fixes of these cases bring in time is in reports/accuracy.md, where the tool predicts it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.model.memory import MemoryCategory, MemorySummary

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "recorded"
REPORT = ROOT / "reports" / "memory-accuracy.md"

HEAD = """# Memory: read and predicted against measured

From the recorded memory histories (five steps each) of the scripts in `tests/benchmarks/memory_cases.py` on
an H200, against what the same scripts measured with nothing attached: `torch.cuda.max_memory_allocated()`
behind the warm-up, and growth of `memory_allocated()` per step. Made by `python
tests/benchmarks/memory_accuracy.py` from `tests/recorded/memory-*`; no row is left out. The allocator rounds
each block up, the history does not.

| recording | what | the tool says | measured | error |
| --- | --- | ---: | ---: | ---: |
"""


@dataclass(frozen=True)
class Row:
    """One figure of one recording."""

    name: str
    what: str
    said: float | None
    measured: float
    why: str = ""

    @property
    def error(self) -> float | None:
        """Said over measured, less one."""
        return None if self.said is None or not self.measured else self.said / self.measured - 1

    def line(self) -> str:
        """Return the row of the table."""
        said = f"none: {self.why}" if self.said is None else megabytes(self.said)
        error = "-" if self.error is None else f"{self.error:+.1%}"
        return f"| {self.name} | {self.what} | {said} | {megabytes(self.measured)} | {error} |"


def megabytes(count: float) -> str:
    """Write bytes so that columns compare."""
    return f"{count / 1e6:,.1f} MB".replace(",", " ")


def rows_of(folder: Path) -> Iterator[Row]:
    """Compare everything that one recording has a truth for."""
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    found = diagnose_paths([folder]).memory
    name = folder.name
    if not found:
        yield Row(name, "peak", None, truth.get("slow_peak_bytes", 0), why="no history")
        return
    summary = found[0]
    slow, fixed = truth.get("slow_peak_bytes"), truth.get("fixed_peak_bytes")
    steady = not truth.get("slow_grown_bytes", 0) > 1e6
    if slow and steady and truth["fix"] != "FX201":
        # Where lengths vary or memory grows, five steps are not the peak of fifty.
        yield Row(name, "peak", summary.peak_bytes, slow)
    if truth.get("slow_grown_bytes", 0) > 1e6:
        rate = sum(leak.bytes_per_step for leak in summary.leaks)
        yield Row(name, "left behind per step", rate or None, truth["slow_grown_bytes"], why="no leak found")
        if fixed:
            without = summary.peak_without_leaks_bytes
            yield Row(name, "peak with nothing left behind", without, fixed, why="no leak found")
    if slow and fixed and steady:
        yield from _after_fix(summary, truth, name)


def _after_fix(summary: MemorySummary, truth: dict[str, Any], name: str) -> Iterator[Row]:
    """Compare what a fix frees, or makes possible."""
    slow, fixed = truth["slow_peak_bytes"], truth["fixed_peak_bytes"]
    if truth["fix"] == "FX210":
        freed = summary.stale_gradients_bytes
        yield Row(name, "freed: gradients of the step before", freed, slow - fixed, why="none seen")
        without = None if freed is None else summary.peak_bytes - freed
        yield Row(name, "peak without gradients of the step before", without, fixed, why="none seen")
    if truth["fix"] == "FX217":
        yield Row(name, "freed, at most: logits and their like", summary.loss_bytes, slow - fixed)
    if truth["fix"] == "FX216":
        states = sum(r.bytes for r in summary.composition if r.category is MemoryCategory.OPTIMIZER)
        yield Row(name, "freed, at most: optimizer state", states, slow - fixed)
    if truth["fix"] == "FX212" and summary.spike is not None:
        yield Row(name, "peak without the spike", summary.spike.peak_without_bytes, fixed)
    if truth["fix"] == "FX221" and summary.headroom is not None:
        times = truth["fixed_batch"] / truth["slow_batch"]
        room = summary.headroom
        predicted = room.fixed_bytes + times * room.per_batch_bytes
        yield Row(name, f"peak with {times:.0f} times the batch", predicted, fixed)


def report() -> str:
    """Return the whole page."""
    folders = sorted(file.parent for file in RECORDED.glob("memory-*/truth.json"))
    rows = [row for folder in folders for row in rows_of(folder)]
    errors = [abs(row.error) for row in rows if row.error is not None]
    worst = max((row for row in rows if row.error is not None), key=lambda row: abs(row.error or 0.0))
    close = sum(error <= 0.05 for error in errors)
    told = (
        f"\n\n{len(rows)} figures: {close} of {len(errors)} within 5 %, median error {median(errors):.1%}, "
        f"worst {worst.error:+.1%} ({worst.name}, {worst.what}).\n"
    )
    return HEAD + "\n".join(row.line() for row in rows) + told


def main() -> None:
    """Write the report, or hold it to the recordings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the report is not up to date")
    args = parser.parse_args()
    text = report()
    if args.check:
        if REPORT.read_text() != text:
            sys.exit(
                f"{REPORT.relative_to(ROOT)} is out of date: run python {Path(__file__).relative_to(ROOT)}"
            )
        return
    REPORT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
