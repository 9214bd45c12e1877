"""Runs `bottleneck diagnose` over training scripts of many shapes and compares verdict with truth.

In: trials/*.py, each of which states its planted bottleneck in `TRUTH` (and in `ACCEPT` what else
would be right; `NEEDS_GPU` leaves it out without one). Out: reports/trials.md (reports/trials-gpu.md on
a GPU): one row per script, a confusion table, the misses.

    python tests/benchmarks/trials.py [--no-times] [--state FILE] [TRIAL ...]

Where a script takes `--fixed`, the planted bottleneck is measured by taking it away: the script
alone, with nothing attached, slow and fixed. A planted bottleneck whose removal gains less than
1.15x is not taken for the truth: its row says so and is not counted.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from step_times import REPOSITORY, ScriptFailedError, run_once

GPU = torch.cuda.is_available()
FOLDER = Path(__file__).with_name("trials")
HEALTHY = "compute-bound"
LEAST_GAIN = 1.15
TIMEOUT_S = 180


@dataclass
class Trial:
    """One script, what was planted in it and what came out."""

    name: str
    accepted: tuple[str, ...]
    has_fix: bool
    verdict: str = "failed"
    confidence: str = ""
    also: tuple[str, ...] = ()
    reason: str = ""
    true_ms: float | None = None
    without_ms: float | None = None
    marked: tuple[int, ...] = ()
    """Lines with the comment `planted`, if the script has one place that is the cause."""
    named: bool = False
    """The first cause names a marked line, or one within two lines of it."""
    first_fix: str = ""
    slow_ms: float | None = None
    fixed_ms: float | None = None

    @property
    def truth(self) -> str:
        """The planted class."""
        return self.accepted[0]

    @property
    def right(self) -> bool:
        """The headline is the planted class, or another one that the script allows."""
        return self.verdict in self.accepted

    @property
    def weak(self) -> bool:
        """Removing the planted bottleneck hardly helps: then it is not the truth."""
        if self.slow_ms is None or self.fixed_ms is None:
            return False
        return self.slow_ms / self.fixed_ms < LEAST_GAIN


def read_trial(path: Path) -> Trial:
    """Read what a script says of itself, without running it."""
    source = path.read_text()
    truth: dict[str, object] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("TRUTH", "ACCEPT"):
                code = compile(ast.Expression(node.value), str(path), "eval")
                truth[name] = eval(code, {"GPU": GPU})
    accept = truth.get("ACCEPT", ())
    assert isinstance(accept, tuple)
    marked = tuple(n for n, line in enumerate(source.splitlines(), 1) if line.endswith("# planted"))
    accepted = (str(truth["TRUTH"]), *map(str, accept))
    return Trial(path.stem, accepted, '"--fixed"' in source, marked=marked)


def diagnose(trial: Trial, folder: Path) -> None:
    """Run the tool on the script and enter its verdict."""
    script = FOLDER / f"{trial.name}.py"
    command = [sys.executable, "-m", "torch_bottleneck", "diagnose", "-q", "--out", str(folder), str(script)]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=folder.parent, check=False
        )
    except subprocess.TimeoutExpired:
        trial.reason = f"longer than {TIMEOUT_S} s"
        return
    stored = folder / "diagnosis.json"
    if not stored.is_file():
        trial.reason = f"exit code {ended.returncode}: {ended.stderr.strip().splitlines()[-1:]}"
        return
    diagnosis = json.loads(stored.read_text())
    verdict = diagnosis["verdict"]
    trial.verdict, trial.confidence = verdict["class"], verdict["confidence"]
    trial.also, trial.reason = tuple(verdict["also"]), verdict["headline"]
    trial.true_ms = diagnosis["step"]["true_ms"]
    sites = diagnosis["causes"][0]["sites"] if diagnosis["causes"] else []
    trial.named = any(abs(site["line"] - line) <= 2 for site in sites for line in trial.marked)
    if diagnosis["suggestions"]:
        first = diagnosis["suggestions"][0]
        gain = "" if first["predicted_ms"] is None else f": {ms(first['predicted_ms'])}"
        gain += " at best" if gain and first["bound"] else ""
        trial.first_fix = f"{first['fix']} {first['title']}{gain}"
    planted = (c["predicted_ms"] for c in diagnosis["causes"] if c["class"] == trial.truth)
    trial.without_ms = next(planted, None)


def measure(trial: Trial) -> None:
    """Time the script alone, without and with its fix."""
    script = FOLDER / f"{trial.name}.py"
    try:
        trial.slow_ms = run_once(script, timeout_s=TIMEOUT_S)
        if trial.has_fix:
            trial.fixed_ms = run_once(script, ["--fixed"], timeout_s=TIMEOUT_S)
    except ScriptFailedError as failure:
        print(failure, flush=True)


def ms(value: float | None) -> str:
    """Return a table cell."""
    return "-" if value is None else f"{value:.2f}"


def render(trials: list[Trial]) -> str:
    """Return the report."""
    device = torch.cuda.get_device_name(0) if GPU else f"CPU, {os.cpu_count()} cores, one thread per script"
    counted = [t for t in trials if not t.weak]
    right = sum(t.right for t in counted)
    to_name = [t for t in counted if t.marked]
    named = sum(t.named for t in to_name)
    lines = [
        "# Verdict and truth on other training scripts",
        "",
        f"{device}, torch {torch.__version__}. Written by `python tests/benchmarks/trials.py`.",
        "Planted: what the script was written to wait on (`compute-bound`: healthy). Slow, fixed: measured",
        "without the tool, once each. Without it: the tool's figure for the step without the planted class.",
        "Line: if one line is the cause, whether the first cause names it (or one within two lines of it).",
        "",
        f"**{right} of {len(counted)} verdicts are right, {named} of {len(to_name)} lines are named.**",
        "",
        "| script | planted | verdict | right | line | true step (tool) | slow | without it (tool) | fixed "
        "| first suggestion, with its predicted step |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for t in trials:
        judged = "not counted" if t.weak else "yes" if t.right else "in `also`" if t.truth in t.also else "NO"
        without = t.without_ms if t.has_fix else None
        line = "-" if not t.marked else "yes" if t.named else "no"
        lines.append(
            f"| {t.name} | {t.truth} | {t.verdict} ({t.confidence}) | {judged} | {line} | {ms(t.true_ms)} "
            f"| {ms(t.slow_ms)} | {ms(without)} | {ms(t.fixed_ms)} | {t.first_fix} |"
        )
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for t in counted:
        table[t.truth][t.verdict] += 1
    columns = sorted({t.verdict for t in counted} | set(table))
    lines += ["", "## Confusion", "", f"| planted \\ verdict | {' | '.join(columns)} |"]
    lines.append("| --- " * (len(columns) + 1) + "|")
    for truth in sorted(table):
        lines.append(f"| {truth} | {' | '.join(str(table[truth][c] or '') for c in columns)} |")
    misses = [t for t in counted if not t.right]
    lines += ["", "## Misses", ""] + [f"- {t.name}: {t.verdict}. {t.reason}" for t in misses]
    if not misses:
        lines.append("None.")
    weak = [t for t in trials if t.weak]
    if weak:
        lines += ["", "## Not counted", "", "Removing the planted bottleneck gained less than 1.15x:"]
        lines += [f"- {t.name}: {ms(t.slow_ms)} to {ms(t.fixed_ms)} ms; verdict {t.verdict}" for t in weak]
    return "\n".join(lines + alternatives(trials)) + "\n"


def alternatives(trials: list[Trial]) -> list[str]:
    """Return where a second verdict counts as right, and why, in the script's own words."""
    lines = []
    for t in (t for t in trials if len(t.accepted) > 1):
        about = " ".join((ast.get_docstring(ast.parse((FOLDER / f"{t.name}.py").read_text())) or "").split())
        lines.append(f"- {t.name}: {' or '.join(t.accepted)}. {about}")
    return ["", "## More than one right answer", "", *lines] if lines else []


def main() -> None:
    """Run the trials and write the report after each, so that a stopped run leaves one too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--no-times", action="store_true", help="verdicts only")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--state", type=Path, help="keep rows here as JSON; those in it are not run again")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    out = args.out or REPOSITORY / "reports" / ("trials-gpu.md" if GPU else "trials.md")
    out.parent.mkdir(exist_ok=True)
    done: list[Trial] = []
    if args.state and args.state.is_file():
        done = [Trial(**row) for row in json.loads(args.state.read_text())]
    known = {trial.name for trial in done}
    with tempfile.TemporaryDirectory() as scratch:
        keep = (args.keep or Path(scratch)).resolve()
        keep.mkdir(parents=True, exist_ok=True)
        for path in sorted(FOLDER.glob("*.py")):
            if (args.names and path.stem not in args.names) or path.stem in known:
                continue
            if not GPU and "NEEDS_GPU = True" in path.read_text():
                continue
            trial = read_trial(path)
            diagnose(trial, keep / trial.name)
            if not args.no_times:
                measure(trial)
            done = sorted([*done, trial], key=lambda each: each.name)
            if args.state:
                args.state.write_text(json.dumps([asdict(each) for each in done], indent=1))
            out.write_text(render(done))
            print(f"{trial.name:24} planted {trial.truth:20} verdict {trial.verdict} {trial.confidence} "
                  f"{trial.also} {ms(trial.slow_ms)} {ms(trial.fixed_ms)}", flush=True)  # fmt: skip
    print(out.read_text())


if __name__ == "__main__":
    main()
