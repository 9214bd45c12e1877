"""Diagnoses every example, measures slow against fixed, and writes the gallery.

In: examples/*.py and the machine this runs on. Out:

    reports/gallery/<example>/{diagnosis.json,report.md}    (reports/gallery-cpu without a GPU)
    reports/gallery/README.md, measured.json                verdict, predicted and measured gain
    tests/recorded/example-<example>[-cpu]/                 the run, its trace cut to two steps, CASE.md

    python tests/benchmarks/gallery.py [--seconds 480] [--no-record] [EXAMPLE ...]

The predicted step is that of the first suggestion which the example's fix carries out (`FIXES`), so
that prediction and measurement speak of the same change; a dash where the tool did not suggest it.
Every example is diagnosed and measured once; what is left of `--seconds` goes into repeats. Named
examples replace their rows in an earlier gallery of the same kind of machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from step_times import EXAMPLES, REPOSITORY, ScriptFailedError, StepTimes, run_once

GPU = torch.cuda.is_available()
STEPS = ["--steps", "100"]
RECORDED_STEPS = 2

CLASSES = {
    "allocator_thrashing": "allocator-thrashing",
    "compute_bound": "compute-bound",
    "empty_cache": "allocator-thrashing",
    "graph_breaks": "graph-break-bound",
    "input_bound": "input-bound",
    "launch_bound": "launch-bound",
    "sync_bound": "sync-bound",
    "transfer_bound": "transfer-bound",
}
NEEDS_GPU = ("empty_cache", "sync_bound", "transfer_bound")

FIXES = {
    "allocator_thrashing": ("FX201",) if GPU else ("FX205",),
    "compute_bound": ("FX303",),
    "empty_cache": ("FX204",),
    "graph_breaks": ("FX403", "FX401"),
    "input_bound": ("FX101",),
    "launch_bound": ("FX412", "FX414"),
    "sync_bound": ("FX501", "FX502"),
    "transfer_bound": ("FX508",),
}

BOTH = {"launch_bound": {"FX311", "FX412"}}
"""Examples whose `--fixed` applies two suggestions at once, where the tool may have predicted the pair."""


@dataclass
class Entry:
    """One example in the gallery."""

    name: str
    verdict: str = "failed"
    confidence: str = ""
    true_ms: float | None = None
    replay_error: float | None = None
    predicted_ms: float | None = None
    predicted_by: str = ""
    without_cause_ms: float | None = None
    capture_seconds: float | None = None
    times: StepTimes = field(default_factory=lambda: StepTimes(""))

    @property
    def right(self) -> bool:
        """The verdict is the class that the example was written for."""
        return self.verdict == CLASSES[self.name]


def portable(text: str) -> str:
    """Remove what is specific to this machine: where the checkout is, its name, its Python."""
    for private, public in (
        (f"{REPOSITORY}/", ""),
        (str(REPOSITORY), "."),
        (sys.prefix, "python"),
        (sys.base_prefix, "python"),
        (tempfile.gettempdir(), "tmp"),
        (f'"{platform.node()}"', '"host"'),
        (f"{platform.node()}_", "host_"),
    ):
        text = text.replace(private, public)
    return text


def diagnose(name: str, folder: Path) -> Entry:
    """Run the tool on one example, in its own process, into `folder`."""
    command = [
        sys.executable, "-m", "torch_bottleneck", "diagnose", "--quiet",
        "--out", str(folder), f"examples/{name}.py",
    ]  # fmt: skip
    begin = time.perf_counter()
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    seconds = time.perf_counter() - begin
    entry = Entry(name, capture_seconds=seconds, times=StepTimes(name))
    stored = folder / "diagnosis.json"
    if not stored.is_file():
        print(f"{name}: exit code {ended.returncode}\n{ended.stderr[-2000:]}", flush=True)
        return entry
    diagnosis = json.loads(stored.read_text())
    entry.verdict = diagnosis["verdict"]["class"]
    entry.confidence = diagnosis["verdict"]["confidence"]
    entry.true_ms = diagnosis["step"]["true_ms"]
    entry.replay_error = diagnosis["capture"]["replay_error"]
    entry.without_cause_ms = next(
        (c["predicted_ms"] for c in diagnosis["causes"] if c["class"] == CLASSES[name]), None
    )
    offered = {s["fix"]: s for s in diagnosis["suggestions"]}
    chosen = next((offered[fix] for fix in FIXES[name] if fix in offered), None)
    if chosen:
        entry.predicted_ms, entry.predicted_by = chosen["predicted_ms"], chosen["fix"]
    pair = diagnosis.get("combination")
    if pair and set(pair["fixes"]) == BOTH.get(name):
        entry.predicted_ms, entry.predicted_by = pair["predicted_ms"], " + ".join(pair["fixes"])
    return entry


def publish(folder: Path, target: Path) -> None:
    """Copy the two files of the gallery."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("diagnosis.json", "report.md"):
        if (folder / name).is_file():
            (target / name).write_text(portable((folder / name).read_text()))


def record(folder: Path, target: Path) -> None:
    """Store the run with its trace cut down to a few steps, small enough for a repository."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from recorded.trim import trim

    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("run.json", "loader.json", "compile.json", "stacks.json"):
        if (folder / name).is_file():
            (target / name).write_text(portable((folder / name).read_text()))
    for source in sorted((folder / "trace").glob("*.gz")):
        text = portable(gzip.decompress(source.read_bytes()).decode())
        text = re.sub(r'("traceName": ")[^"]*/', r"\1", text)
        (target / "trace").mkdir(exist_ok=True)
        stamp = source.name.split(".", 1)[1]
        small = trim(text, first=1, steps=RECORDED_STEPS).encode()
        (target / "trace" / f"host_1.{stamp}").write_bytes(gzip.compress(small, 9, mtime=0))


def write_truth(
    target: Path, times: StepTimes, *, fix: str, what: str, command: str, device: str, **more: object
) -> None:
    """Write the measurements that tests/benchmarks/accuracy.py compares the tool with."""
    truth = {
        "case": target.name,
        "fix": fix,
        "what": what,
        "slow_ms": times.slow_ms,
        "fixed_ms": times.fixed_ms,
        "device": device,
        "torch": torch.__version__,
        "command": command,
        **more,
    }
    (target / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def write_case(target: Path, entry: Entry, device: str) -> None:
    """Say what the recorded run is and what is true of it."""
    slow, fixed = entry.times.slow_ms, entry.times.fixed_ms
    rows = {
        "device": device,
        "torch": torch.__version__,
        "expected_class": CLASSES[entry.name],
        "measured_slow_ms": f"{statistics.median(slow):.3f}" if slow else "",
        "measured_fixed_ms": f"{statistics.median(fixed):.3f}" if fixed else "",
        "repeats": str(len(fixed)),
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    write_truth(
        target,
        entry.times,
        fix=FIXES[entry.name][0],
        what=f"examples/{entry.name}.py --fixed",
        command=f"python examples/{entry.name}.py [--fixed]",
        device=device,
        **({"fixes": sorted(BOTH[entry.name])} if entry.name in BOTH else {}),
    )
    (target / "CASE.md").write_text(
        f"# examples/{entry.name}.py\n\n| key | value |\n| --- | --- |\n{table}\n\n"
        f"    python -m torch_bottleneck diagnose examples/{entry.name}.py\n\n"
        f"The trace is cut to {RECORDED_STEPS} steps. Measured: the script without the tool, "
        f"slow and `--fixed` in turns.\nWritten by tests/benchmarks/gallery.py.\n"
    )


def ms(value: float | None) -> str:
    """Return a table cell."""
    return "-" if value is None else f"{value:.2f}"


def with_earlier(out: Path, entries: list[Entry], device: str) -> list[Entry]:
    """Add the results of an earlier call on the same kind of machine for other examples."""
    stored = out / "measured.json"
    if not stored.is_file():
        return entries
    past = json.loads(stored.read_text())
    if (past["device"], past["torch"]) != (device, torch.__version__):
        return entries
    here = {entry.name: entry for entry in entries}
    for row in past["examples"]:
        kept = Entry(**{**row, "times": StepTimes(**row["times"])})
        here.setdefault(kept.name, kept)
    return [here[name] for name in CLASSES if name in here]


def write_readme(out: Path, entries: list[Entry], device: str, version: str = torch.__version__) -> None:
    """Write the table, misses included."""
    lines = [
        f"# Examples on {device}",
        "",
        f"torch {version}. Written by `python tests/benchmarks/gallery.py`. Times in ms per step.",
        "Measured: the script alone, slow and `--fixed` in turns, median of the repeats in measured.json.",
        "Predicted: the tool's figure for the fix that `--fixed` applies, from the slow run only. "
        "Without the cause: its figure for the step with the whole class of the verdict removed.",
        "",
        "| example | verdict | right | slow, true step | slow, measured | without the cause "
        "| predicted (fix) | fixed, measured | measured gain | replay error | tool took |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for e in entries:
        slow = statistics.median(e.times.slow_ms) if e.times.slow_ms else None
        fixed = statistics.median(e.times.fixed_ms) if e.times.fixed_ms else None
        gain = f"{slow / fixed:.2f}x" if slow and fixed else "-"
        error = "-" if e.replay_error is None else f"{e.replay_error:.1%}"
        predicted = f"{ms(e.predicted_ms)} ({e.predicted_by})" if e.predicted_by else "-"
        # Without its work a step has no meaning.
        without = None if CLASSES[e.name] == "compute-bound" else e.without_cause_ms
        lines.append(
            f"| [{e.name}]({e.name}/report.md) | {e.verdict} ({e.confidence}) "
            f"| {'yes' if e.right else 'NO'} | {ms(e.true_ms)} | {ms(slow)} | {ms(without)} "
            f"| {predicted} | {ms(fixed)} | {gain} | {error} | {ms(e.capture_seconds)} s |"
        )
    lines += ["", f"{sum(e.right for e in entries)} of {len(entries)} verdicts are right."]
    (out / "README.md").write_text("\n".join(lines) + "\n")
    measured = {"device": device, "torch": version, "examples": [asdict(e) for e in entries]}
    (out / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")


def time_pair(entry: Entry) -> None:
    """Add one slow and one fixed run to the entry."""
    script = EXAMPLES / f"{entry.name}.py"
    try:
        slow, fixed = run_once(script, STEPS), run_once(script, [*STEPS, "--fixed"])
    except ScriptFailedError as failure:
        print(failure, flush=True)
        return
    entry.times.slow_ms.append(slow)
    entry.times.fixed_ms.append(fixed)


def main() -> None:
    """Make the gallery."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--no-times", action="store_true", help="diagnose only")
    parser.add_argument("--times", type=Path, help="earlier step_times.py --out of this machine type")
    parser.add_argument("--keep", type=Path, help="keep the whole run folders here")
    args = parser.parse_args()
    names = args.names or [n for n in CLASSES if GPU or n not in NEEDS_GPU]
    device = torch.cuda.get_device_name(0) if GPU else "a CPU"
    out = REPOSITORY / "reports" / ("gallery" if GPU else "gallery-cpu")
    recorded = REPOSITORY / "tests" / "recorded"
    end = time.monotonic() + args.seconds
    rows = json.loads(args.times.read_text()) if args.times else []
    earlier = {row["script"]: StepTimes(**row) for row in rows}

    entries: list[Entry] = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder = (args.keep or Path(scratch)) / name
            entry = diagnose(name, folder)
            if name in earlier:
                entry.times = earlier[name]
            elif not args.no_times:
                time_pair(entry)
            entries.append(entry)
            publish(folder, out / name)
            if not args.no_record and entry.verdict != "failed":
                record(folder, recorded / f"example-{name.replace('_', '-')}{'' if GPU else '-cpu'}")
            write_readme(out, with_earlier(out, entries, device), device)
            print(name, entry.verdict, entry.confidence, f"{entry.capture_seconds:.0f} s", flush=True)
    longest = 0.0
    while entries and not args.no_times and time.monotonic() + longest < end:
        begin = time.monotonic()
        time_pair(min(entries, key=lambda e: len(e.times.slow_ms)))
        longest = max(longest, time.monotonic() - begin)
    write_readme(out, with_earlier(out, entries, device), device)
    if not args.no_record:
        for entry in entries:
            target = recorded / f"example-{entry.name.replace('_', '-')}{'' if GPU else '-cpu'}"
            if target.is_dir():
                write_case(target, entry, device)
    print((out / "README.md").read_text())


if __name__ == "__main__":
    main()
