"""Fixes tried in the running script, beside what was predicted and what `verify` measures afterwards.

    python tests/benchmarks/tried_here.py run LIST --out RUNS [--devices 4] [--seconds 540] [--verify 1]
    python tests/benchmarks/tried_here.py table RUNS > reports/tried-here.md

`section` is what `accuracy.py` puts into reports/accuracy.md: every pair of a prediction and a trial, of this
report and of the recordings that hold a trials.json.

LIST has a line per script: `name|folder|words after bottleneck diagnose`. Scripts of others are not part
of this repository; the report says where each is from. With several devices the scripts are shared out among
them, one at a time on each. The table is made from the run folders alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch_bottleneck.diagnose import diagnose_paths

SETTLED = ("faster", "slower", "no-difference")
ROOT = Path(__file__).parents[2]
REPORT = ROOT / "reports" / "tried-here.md"
RECORDED = ROOT / "tests" / "recorded"
ROW = re.compile(
    r"^\| (?P<name>\S+) \| (?P<fix>FX\d+) \| (?P<bound>≤ )?(?P<predicted>[\d.]+)× "
    r"\| (?P<measured>[\d.]+)×(?: \((?P<low>[\d.]+) to (?P<high>[\d.]+)\))?(?P<undecided>, undecided)?"
)
"""A row of the report with a prediction and a measurement."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What was predicted for a fix, and what its trial measured; all are speed-ups."""

    name: str
    fix: str
    predicted: float
    measured: float
    low: float | None
    high: float | None
    bound: bool
    decided: bool

    @property
    def error(self) -> float:
        """Predicted over measured step, less one."""
        return self.measured / self.predicted - 1

    def is_one_of(self, recordings: set[str]) -> bool:
        """Whether a recording is of this run."""
        return any(name.startswith(f"trials-{self.name.replace('_', '-')}-") for name in recordings)

    @property
    def contradicts(self) -> bool:
        """The trial rules the prediction out: its interval is past it. A bound need not be reached."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.predicted or (not self.bound and self.high < self.predicted)


def run(listed: Path, out: Path, *, devices: int, seconds: float, trials: float, verified: int) -> None:
    """Diagnose each script of the list, and verify the fixes that the trials decided about."""
    jobs = [line.split("|", 2) for line in listed.read_text().splitlines() if line.strip()]
    deadline = time.monotonic() + seconds
    lock = threading.Lock()

    def work(device: int) -> None:
        while True:
            with lock:
                if not jobs or time.monotonic() > deadline - trials:
                    return
                name, folder, words = jobs.pop(0)
            _one(
                name,
                Path(folder),
                words,
                out=out,
                device=device,
                deadline=deadline,
                trials=trials,
                verified=verified,
            )

    threads = [threading.Thread(target=work, args=(device,)) for device in range(max(1, devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _one(
    name: str,
    folder: Path,
    words: str,
    *,
    out: Path,
    device: int,
    deadline: float,
    trials: float,
    verified: int,
) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", str(device))}
    tool = [sys.executable, "-m", "torch_bottleneck"]
    place = (out / name).absolute()

    def call(log: str, *arguments: str) -> float:
        began = time.monotonic()
        with (out / f"{name}.{log}").open("w") as stream:
            subprocess.run(
                [*tool, *arguments],
                cwd=folder,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                timeout=max(5.0, deadline - began),
                check=False,
            )
        return time.monotonic() - began

    out.mkdir(parents=True, exist_ok=True)
    try:
        took = call(
            "log", "diagnose", "-q", "--trial-seconds", str(trials), "--out", str(place), *shlex.split(words)
        )
        (place / "took.json").write_text(json.dumps({"seconds": took}))
        decided = _decided(place)[:verified]
        if decided and time.monotonic() < deadline - 30:
            fixes = [word for fix in decided for word in ("--fix", fix)]
            call(
                "verify",
                "verify",
                "-q",
                "--yes",
                *fixes,
                "--pairs",
                "2",
                "--max-pairs",
                "3",
                "--no-combine",
                str(place),
            )
    except (subprocess.TimeoutExpired, OSError) as error:
        (out / f"{name}.error").write_text(str(error))


def _decided(place: Path) -> list[str]:
    """Return the fixes that trials decided about, the largest effect first."""
    file = place / "diagnosis.json"
    if not file.is_file():
        return []
    suggestions = json.loads(file.read_text())["suggestions"]
    found = [
        (s["fix"], s["measured"]) for s in suggestions if (s.get("measured") or {}).get("verdict") in SETTLED
    ]
    return [fix for fix, m in sorted(found, key=lambda pair: -abs((pair[1]["speedup"] or 1.0) - 1.0))]


def table(runs: Path) -> str:
    """Return the report."""
    rows: list[list[str]] = []
    firsts: list[str] = []
    agreements: list[float] = []
    errors: list[float] = []
    signs = 0
    for place in sorted(path.parent for path in runs.glob("*/diagnosis.json")):
        diagnosis = json.loads((place / "diagnosis.json").read_text())
        true_ms = diagnosis["step"]["true_ms"]
        verified = _verified(place)
        tried = [s for s in diagnosis["suggestions"] if s.get("measured")]
        first = next((s for s in diagnosis["suggestions"] if not s.get("note")), None)
        if first is not None and (first.get("measured") or {}).get("verdict") in SETTLED:
            firsts.append(first["measured"]["verdict"])
        for s in tried:
            m = s["measured"]
            predicted = true_ms / s["predicted_ms"] if s.get("predicted_ms") and true_ms else None
            other = verified.get(s["fix"])
            if m.get("speedup") and m["verdict"] in SETTLED:
                if predicted is not None and not s.get("bound"):
                    errors.append(m["speedup"] / predicted - 1)
                if other is not None:
                    agreements.append(m["speedup"] / other[0] - 1)
                    signs += _sign(m["speedup"]) * _sign(other[0]) < 0
            rows.append([
                place.name,
                s["fix"],
                "-" if predicted is None else f"{'≤ ' if s.get('bound') else ''}{predicted:.2f}×",
                _words(m),
                "-" if other is None else f"{other[0]:.2f}×{other[1]}",
                m.get("loss", "-"),
            ])  # fmt: skip
    lines = [
        "| script | fix | predicted | measured in the run (95 %) | verify | loss |",
        "| --- | --- | --- | --- | --- | --- |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"{len(rows)} trials. First suggestions that trials decided about: {len(firsts)}, of them gains: "
        f"{firsts.count('faster')}.",
    ]
    if agreements:
        lines.append(
            f"Measured in the run against verify: {len(agreements)} fixes, median difference "
            f"{median(map(abs, agreements)):.1%}, {signs} with another sign."
        )
    if errors:
        lines.append(
            f"Predicted (bounds left out) against measured in the run: {len(errors)} fixes, median error "
            f"of the step {median(map(abs, errors)):.1%}."
        )
    return "\n".join(lines) + "\n"


def published(report: str) -> list[Pair]:
    """Return the pairs of the report's tables."""
    found = [match for line in report.splitlines() if (match := ROW.match(line))]
    return [
        Pair(
            name=m["name"],
            fix=m["fix"],
            predicted=float(m["predicted"]),
            measured=float(m["measured"]),
            low=float(m["low"]) if m["low"] else None,
            high=float(m["high"]) if m["high"] else None,
            bound=m["bound"] is not None,
            decided=m["undecided"] is None,
        )
        for m in found
    ]


def recorded() -> list[Pair]:
    """Return the pairs of recordings: predicted by the present version."""
    pairs = []
    for file in sorted(RECORDED.glob("*/trials.json")):
        diagnosis = diagnose_paths([file.parent])
        true_ms = diagnosis.step.true_ms
        for suggestion in diagnosis.suggestions:
            measured = suggestion.measured
            if measured is None or measured.speedup is None or not suggestion.predicted_ms or not true_ms:
                continue
            pairs.append(
                Pair(
                    name=file.parent.name,
                    fix=suggestion.fix,
                    predicted=true_ms / suggestion.predicted_ms,
                    measured=measured.speedup,
                    low=measured.low,
                    high=measured.high,
                    bound=suggestion.bound,
                    decided=measured.verdict in SETTLED,
                )
            )
    return pairs


def section() -> str:
    """Return the part of reports/accuracy.md about trials."""
    again = recorded()
    anew = {pair.name for pair in again}
    pairs = [*(p for p in published(REPORT.read_text("utf-8")) if not p.is_one_of(anew)), *again]
    decided = [pair for pair in pairs if pair.decided]
    exact, bounds = ([p for p in decided if p.bound is bound] for bound in (False, True))
    by_fix: dict[str, list[Pair]] = defaultdict(list)
    for pair in decided:
        by_fix[pair.fix].append(pair)
    lines = [
        "",
        "## Fixes tried in the running script",
        "",
        "Speed-ups predicted before, and measured by trials in the same process: the pairs of",
        "[tried-here.md](tried-here.md), predicted by the version that ran them, and the recordings with a",
        "trials.json, predicted by this one. A trial *rules out* a prediction that its 95 % interval does",
        "not hold, and a bound that it exceeds.",
        "",
        f"{len(decided)} of {len(pairs)} pairs were decided. {len(exact)} of these predictions are no bound: "
        f"median error {median(abs(p.error) for p in exact):.1%}, {sum(p.contradicts for p in exact)} ruled "
        "out. "
        f"Of {len(bounds)} bounds {sum(not p.contradicts for p in bounds)} held.",
        "",
        "| fix | decided | no bound | median error | ruled out |",
        "|---|---:|---:|---:|---|",
    ]
    for fix, found in sorted(by_fix.items()):
        sized = [abs(p.error) for p in found if not p.bound]
        wrong = ", ".join(
            f"{p.name} ({'≤ ' if p.bound else ''}{p.predicted:.2f}x, measured {p.measured:.2f}x)"
            for p in found
            if p.contradicts
        )
        typical = f"{median(sized):.1%}" if sized else "-"
        lines.append(f"| {fix} | {len(found)} | {len(sized)} | {typical} | {wrong or '-'} |")
    return "\n".join(lines) + "\n"


def _sign(speedup: float) -> int:
    return 0 if abs(speedup - 1) < 0.02 else 1 if speedup > 1 else -1


def _words(measured: dict[str, Any]) -> str:
    if measured.get("speedup") is None:
        return f"{measured['verdict']}: {measured.get('note', '')[:90]}"
    interval = f" ({measured['low']:.2f} to {measured['high']:.2f})" if measured.get("low") else ""
    verdict = "" if measured["verdict"] == "faster" else f", {measured['verdict']}"
    return f"{measured['speedup']:.2f}×{interval}{verdict}"


def _verified(place: Path) -> dict[str, tuple[float, str]]:
    file = place / "verify" / "verify.json"
    if not file.is_file():
        return {}
    found = {}
    for outcome in json.loads(file.read_text()).get("outcomes", []):
        measured = outcome.get("measured")
        if measured and len(outcome["fixes"]) == 1:
            low, high = measured.get("low"), measured.get("high")
            interval = f" ({low:.2f} to {high:.2f})" if low and high else ""
            found[outcome["fixes"][0]] = (measured["ratio"], interval)
    return found


def main() -> None:
    """Run, or make the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    runner = verbs.add_parser("run")
    runner.add_argument("list", type=Path)
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--devices", type=int, default=1)
    runner.add_argument("--seconds", type=float, default=540.0)
    runner.add_argument("--trials", type=float, default=40.0)
    runner.add_argument("--verify", type=int, default=1)
    maker = verbs.add_parser("table")
    maker.add_argument("runs", type=Path)
    wished = parser.parse_args()
    if wished.verb == "table":
        sys.stdout.write(table(wished.runs))
    else:
        run(
            wished.list,
            wished.out,
            devices=wished.devices,
            seconds=wished.seconds,
            trials=wished.trials,
            verified=wished.verify,
        )


if __name__ == "__main__":
    main()
