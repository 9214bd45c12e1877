"""Fixes tried in the running script, beside what was predicted and what `verify` measures afterwards.

    python tests/benchmarks/tried_here.py run --out RUNS [--minutes 8] [--list FILE] [--own NAME ...]
    python tests/benchmarks/tried_here.py table RUNS > reports/tried-here.md

`run` diagnoses each script with trials and verifies the first two suggestions that were tried, on whatever
the machine has: CPU or GPU. It takes scripts of tests/benchmarks/trials (six by default, made longer: on a
script that is over no fix is tried), and those of FILE: a line per script, `folder script args`. Scripts of
others are not part of this repository; the report says where each is from. Each script gets its share of the
minutes that are left. With several devices the scripts are shared out among them, one at a time on each.
RUNS/table.md, made from the run folders alone, is written after each script. With `--again` each is verified
twice: how far two verifies of a fix lie apart is what the machine adds to their distance from the trial.

`section` is what `accuracy.py` puts into reports/accuracy.md: every pair of a prediction and a trial, of this
report and of the recordings that hold a trials.json.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.stats import worth

SETTLED = ("faster", "slower", "no-difference")
ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("trials")
OWN = (
    "pageable_batches",
    "recompute_everything",
    "head_loop",
    "anomaly_mode",
    "healthy_vit_with_item",
    "clipping_with_item",
)
"""Scripts for whose fixes there are patches, the first four on a CPU as well."""
MANY_TIMES = 200
LEAST_SECONDS = 20.0
"""Less does not suffice for a diagnosis, or a pair of runs."""
AGAIN = "again"
"""Folder of the copies that are verified a second time."""
TRIALS_SHARE = 0.4
"""Of a script's time."""
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


@dataclass(frozen=True, kw_only=True)
class Job:
    """One script to be diagnosed and verified."""

    name: str
    folder: Path
    words: tuple[str, ...]
    """Script and arguments."""


def listed(file: Path) -> list[Job]:
    """Return the scripts of a list; two of one name are told apart by their folders."""
    jobs = []
    for line in file.read_text("utf-8").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        folder, script = Path(words[0]).expanduser().resolve(), words[1]
        jobs.append(Job(name=f"{folder.name}_{Path(script).stem}", folder=folder, words=tuple(words[1:])))
    return jobs


def own(names: Sequence[str], out: Path) -> list[Job]:
    """Return scripts of tests/benchmarks/trials, as longer ones in a folder of their own."""
    jobs = []
    for name in names:
        folder = (out / "scripts" / name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        source = (SCRIPTS / f"{name}.py").read_text("utf-8")
        (folder / f"{name}.py").write_text(lengthened(source), "utf-8")
        jobs.append(Job(name=name, folder=folder, words=(f"{name}.py",)))
    return jobs


def lengthened(source: str) -> str:
    """Return a script with many more passes of its training loop: the outermost `for ... in range(...)`.

    The loop is known by the backward pass in it, or in a function of the script that it calls.
    """
    tree = ast.parse(source)
    trains = {"backward"}
    for _depth in range(3):
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and _calls(function, trains):
                trains.add(function.name)
    for loop in ast.walk(tree):  # breadth first
        is_range = isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call)
        if is_range and getattr(loop.iter.func, "id", "") == "range" and _calls(loop, trains):
            last = loop.iter.args[1 if len(loop.iter.args) > 1 else 0]
            lines = source.splitlines(keepends=True)
            row = last.lineno - 1
            text = lines[row].encode()
            begin, end = last.col_offset, last.end_col_offset
            made = b"(" + text[begin:end] + b") * %d" % MANY_TIMES
            lines[row] = (text[:begin] + made + text[end:]).decode()
            return "".join(lines)
    return source


def _calls(node: ast.AST, names: set[str]) -> bool:
    calls = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
    return any(getattr(f, "attr", getattr(f, "id", "")) in names for f in calls)


def run(
    jobs: list[Job], out: Path, *, devices: int, minutes: float, trials: float, verified: int, again: bool
) -> None:
    """Diagnose each script, and verify the first suggestions that were tried, twice if `again`."""
    waiting = list(jobs)
    deadline = time.monotonic() + 60 * minutes
    lock = threading.Lock()
    out.mkdir(parents=True, exist_ok=True)

    def work(device: int) -> None:
        while True:
            with lock:
                left = deadline - time.monotonic()
                if not waiting or left < LEAST_SECONDS:
                    return
                seconds = left * min(1.0, devices / len(waiting))
                job = waiting.pop(0)
            print(f"{job.name}: {seconds:.0f} s", flush=True)
            _one(job, out, device=device, seconds=seconds, trials=trials, verified=verified, again=again)
            with lock:
                (out / "table.md").write_text(table(out), "utf-8")

    threads = [threading.Thread(target=work, args=(device,)) for device in range(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in waiting:
        print(f"{job.name}: no time was left", flush=True)
    print(f"{out / 'table.md'}", flush=True)


def _one(
    job: Job, out: Path, *, device: int, seconds: float, trials: float, verified: int, again: bool
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": str(device), **os.environ}
    place = (out / job.name).resolve()
    deadline = time.monotonic() + seconds

    def call(log: str, *arguments: str, within: float) -> None:
        with (out / f"{job.name}.{log}").open("w") as stream:
            # A group of its own: what it has started ends with it.
            process = subprocess.Popen(
                [sys.executable, "-m", "torch_bottleneck", *arguments],
                cwd=job.folder,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(within)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise

    try:
        words = ["diagnose", "-q", "--trial-seconds", f"{min(trials, TRIALS_SHARE * seconds):.1f}"]
        # Half of what the trials get: the rest of the time is for runs of `verify`.
        words += ["--max-seconds", f"{min(60.0, TRIALS_SHARE * seconds / 2):.1f}"]
        call("log", *words, "--out", str(place), *job.words, within=seconds)
        fixes = [word for fix in _tried_first(place)[:verified] for word in ("--fix", fix)]
        places = [place]
        if again:
            places.append(out.resolve() / AGAIN / job.name)
            shutil.copytree(place, places[1])
        for number, each in enumerate(places):
            left = (deadline - time.monotonic()) / (len(places) - number)
            if fixes and left >= LEAST_SECONDS:
                words = ["verify", "-q", "--yes", "--pairs", "2", "--max-pairs", "3", "--no-combine"]
                words += ["--budget", f"{left / 60:.2f}", *fixes]
                call(f"verify{number}", *words, str(each), within=left + LEAST_SECONDS)
    except (subprocess.TimeoutExpired, OSError) as error:
        (out / f"{job.name}.error").write_text(str(error))


def _tried_first(place: Path) -> list[str]:
    """Return the fixes that were timed in the run, in the order of the report."""
    file = place / "diagnosis.json"
    if not file.is_file():
        return []
    suggestions = json.loads(file.read_text("utf-8"))["suggestions"]
    return [s["fix"] for s in suggestions if (s.get("measured") or {}).get("speedup")]


def _promise(suggestion: dict[str, Any]) -> float:
    """Return the weight of what was predicted, before anything was measured."""
    saves = suggestion.get("saves_ms") or 0.0
    return worth(float(saves), bound=bool(suggestion.get("bound")))


def table(runs: Path) -> str:
    """Return the report."""
    rows: list[list[str]] = []
    firsts: list[str] = []
    promised: list[str] = []
    agreements: list[float] = []
    repeated: list[float] = []
    all_seconds: list[float] = []
    errors: list[float] = []
    signs = 0
    for place in sorted(path.parent for path in runs.glob("*/diagnosis.json")):
        diagnosis = json.loads((place / "diagnosis.json").read_text())
        true_ms = diagnosis["step"]["true_ms"]
        verified, again = _verified(place), _verified(runs / AGAIN / place.name)
        repeated += [again[fix][0] / ratio - 1 for fix, (ratio, _) in verified.items() if fix in again]
        tried = [s for s in diagnosis["suggestions"] if s.get("measured")]
        found = json.loads((place / "trials.json").read_text("utf-8")) if tried else {"rows": []}
        seconds_of = {row["fix"]: row.get("seconds") for row in found["rows"] if not row.get("beside")}
        if (trials_s := diagnosis["capture"].get("trials_s")) is not None:
            all_seconds.append(trials_s)
        able = [s for s in diagnosis["suggestions"] if not s.get("note")]
        for best, verdicts in ((able[:1], firsts), (sorted(able, key=_promise)[-1:], promised)):
            verdicts += [
                m["verdict"] for s in best if (m := s.get("measured") or {}).get("verdict") in SETTLED
            ]
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
            took = seconds_of.get(s["fix"])
            rows.append([
                place.name,
                s["fix"],
                "-" if predicted is None else f"{'≤ ' if s.get('bound') else ''}{predicted:.2f}×",
                _words(m),
                "-" if other is None else f"{other[0]:.2f}×{other[1]}",
                _agreement(m.get("speedup"), other),
                m.get("loss", "-"),
                "-" if took is None else f"{took:.0f}",
            ])  # fmt: skip
    lines = [
        "| script | fix | predicted | measured in the run (95 %) | verify | one sign | loss | seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | ---: |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"{len(rows)} trials. First suggestions that trials decided about: {len(firsts)}, of them gains: "
        f"{firsts.count('faster')}. First by what they promised: {len(promised)}, of them gains: "
        f"{promised.count('faster')}.",
    ]
    if agreements:
        lines.append(
            f"Measured in the run against verify: {len(agreements)} fixes, median difference "
            f"{median(map(abs, agreements)):.1%}, {signs} with another sign."
        )
    if repeated:
        apart = [abs(each) for each in repeated]
        lines.append(
            f"Two verifies of one fix differ by {median(apart):.1%} (median of {len(apart)}), "
            f"{max(apart):.1%} at most: what the machine allows."
        )
    if all_seconds:
        lines.append(
            f"The trials of a script took {median(all_seconds):.0f} s (median), "
            f"{max(all_seconds):.0f} s at most."
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


def pairs() -> list[Pair]:
    """Return all pairs: those of the report, and those of recorded runs in place of theirs."""
    again = recorded()
    anew = {pair.name for pair in again}
    return [*(p for p in published(REPORT.read_text("utf-8")) if not p.is_one_of(anew)), *again]


def section() -> str:
    """Return the part of reports/accuracy.md about trials."""
    every = pairs()
    decided = [pair for pair in every if pair.decided]
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
        f"{len(decided)} of {len(every)} pairs were decided. {len(exact)} of these predictions are no bound: "
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


def _agreement(speedup: float | None, verified: tuple[float, str] | None) -> str:
    """Return whether a trial and `verify` agree about gain or loss; "-" where one shows neither."""
    if speedup is None or verified is None:
        return "-"
    both = _sign(speedup) * _sign(verified[0])
    return "-" if not both else "yes" if both > 0 else "NO"


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
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--list", type=Path, help="scripts of others: lines of `folder script args`")
    runner.add_argument("--own", nargs="*", default=OWN, metavar="NAME", help="of tests/benchmarks/trials")
    runner.add_argument("--devices", type=int, default=1)
    runner.add_argument("--minutes", type=float, default=8.0)
    runner.add_argument("--trials", type=float, default=40.0, help="seconds for trials, at most")
    runner.add_argument("--verify", type=int, default=2, help="suggestions to verify")
    runner.add_argument("--again", action="store_true", help="verify each twice")
    maker = verbs.add_parser("table")
    maker.add_argument("runs", type=Path)
    wished = parser.parse_args()
    if wished.verb == "table":
        sys.stdout.write(table(wished.runs))
    else:
        jobs = own(wished.own, wished.out) + (listed(wished.list) if wished.list else [])
        run(
            jobs,
            wished.out,
            devices=wished.devices,
            minutes=wished.minutes,
            trials=wished.trials,
            verified=wished.verify,
            again=wished.again,
        )


if __name__ == "__main__":
    main()
