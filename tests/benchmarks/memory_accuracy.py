"""Bytes that the tool reads and predicts from a memory history, and bytes measured without it.

    python tests/benchmarks/memory_accuracy.py [--check]      writes reports/memory-accuracy.md

In: tests/recorded/memory-*/ with their truth.json (peaks by torch.cuda.max_memory_allocated, growth by
memory_allocated, slow and mended, nothing attached). Out: one row per figure, none left out. No GPU needed.
What the fixes of these cases bring in time is in reports/accuracy.md, where the tool predicts it; what they
cost in time, and several fixes of one case, stand here.
"""

from __future__ import annotations

import argparse
import json
import random
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

TIMES = """
## Cost in time of saving memory

Among the fixes that save memory, only checkpointing has a predicted time: the replay with the whole forward
done twice. That is an upper bound, since the output layer, the loss and the end of each block are not
repeated. Sharded, 8-bit and factored states, offload and losses in pieces have no prediction in time: what
they run instead is not in the trace. Measured, where the slow and the fixed run had the device to themselves:

| recording | fix | now, ms | predicted, ms | measured, ms | error |
| --- | --- | ---: | ---: | ---: | ---: |
"""

NEAR_CAP = """
## Variable lengths near the cap: three fixes

`lengths-near-cap`: a GPT with naive attention, lengths of 128 to 2048, and `max_split_size_mb:32`, as
out-of-memory messages advise. The process is capped at 19 GB, of which at most 14.7 are live: {frees:.0f}
blocks per step are returned to the driver. Predictions are the replay without the cost of the allocator's
calls. Times are in ms per step, on the scale of the recorded run. With the allocator's default settings the
same lengths cost nothing once the longest has occurred (`variable-lengths`). Padding to a multiple of 512
computes {extra:.0%} more tokens; the measured figure includes them, the prediction does not. Running the
longest batch first gains almost nothing: with `max_split_size_mb` its blocks do not serve smaller ones, so
the tool does not suggest it.

| fix | now | predicted | measured | error |
| --- | ---: | ---: | ---: | ---: |
"""

HEAD = """# Memory: read and predicted against measured

From the recorded memory histories (five steps each) of the scripts in `tests/benchmarks/memory_cases.py` on
an H200, compared with what the same scripts measured without the tool: `torch.cuda.max_memory_allocated()`
after the warm-up, and growth of `memory_allocated()` per step. `oom-fragmented` fails under a cap of 16 GB
with 5.9 GB free in pieces; with `expandable_segments:True` it does not fail. Made by `python
tests/benchmarks/memory_accuracy.py` from `tests/recorded/memory-*`; no row is left out. The allocator rounds
each block up; the history does not.

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
    failure = summary.out_of_memory
    if fixed and failure is not None:
        needed = (failure.live_bytes or 0) + (failure.requested_bytes or 0)
        yield Row(name, "peak once the failed request is served", needed, fixed)
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


def bought() -> Iterator[str]:
    """Compare what byte-saving fixes cost in time, where that was measured."""
    for file in sorted(RECORDED.glob("memory-*/truth.json")):
        truth = json.loads(file.read_text())
        slow, fixed = truth.get("slow_step_ms"), truth.get("fixed_step_ms")
        if not slow or not fixed or truth["fix"] not in {"FX212", "FX213", "FX217"}:
            continue
        diagnosis = diagnose_paths([file.parent])
        now = diagnosis.step.true_ms or slow
        measured = fixed / slow * now
        adds = next((s.adds_ms for s in diagnosis.suggestions if s.fix == truth["fix"]), None)
        said, error = ("none", "-")
        if adds is not None:
            said, error = f"at most {now + adds:.2f}", f"{(now + adds) / measured - 1:+.1%}"
        yield f"| {file.parent.name} | {truth['fix']} | {now:.2f} | {said} | {measured:.2f} | {error} |"


def near_cap() -> str:
    """Compare the fixes for variable lengths near the cap."""
    folder = RECORDED / "memory-lengths-near-cap-h200"
    truth = json.loads((folder / "truth.json").read_text())
    diagnosis = diagnose_paths([folder])
    now = diagnosis.step.true_ms or truth["slow_ms"]
    lines = []
    for fix, fixed in ((truth["fix"], truth["fixed_ms"]), *truth["other_fixes_ms"].items()):
        made = next((s for s in diagnosis.suggestions if s.fix == fix), None)
        measured = fixed / truth["slow_ms"] * now
        said, error = "not suggested", "-"
        if made is not None and made.predicted_ms is not None:
            said = f"{'at best ' if made.bound else ''}{made.predicted_ms:.2f}"
            error = f"{made.predicted_ms / measured - 1:+.1%}"
        lines.append(f"| {fix} | {now:.2f} | {said} | {measured:.2f} | {error} |")
    lengths = random.Random(0)
    drawn = [lengths.randint(128, 2048) for _ in range(50)][10:]
    extra = sum(n + -n % 512 for n in drawn) / sum(drawn) - 1
    frees = next(
        evidence.value or 0.0
        for finding in diagnosis.findings
        for evidence in finding.evidence
        if "returned to the driver per step" in evidence.text
    )
    return NEAR_CAP.format(frees=frees, extra=extra) + "\n".join(lines) + "\n"


def report() -> str:
    """Return the whole page."""
    folders = sorted(file.parent for file in RECORDED.glob("memory-*/truth.json"))
    rows = [row for folder in folders for row in rows_of(folder)]
    errors = [abs(row.error) for row in rows if row.error is not None]
    worst = max((row for row in rows if row.error is not None), key=lambda row: abs(row.error or 0.0))
    close = sum(error <= 0.05 for error in errors)
    summary = (
        f"\n\n{len(rows)} figures: {close} of {len(errors)} within 5 %, median error {median(errors):.1%}, "
        f"worst {worst.error:+.1%} ({worst.name}, {worst.what}).\n"
    )
    times = TIMES + "\n".join(bought()) + "\n"
    return HEAD + "\n".join(row.line() for row in rows) + summary + times + near_cap()


def main() -> None:
    """Write the report, or check that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the report is not up to date")
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
