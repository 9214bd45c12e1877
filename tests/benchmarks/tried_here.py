"""Fixes tried in the running script, beside what was predicted and what `verify` measures afterwards.

    python tests/benchmarks/tried_here.py run LIST --out RUNS [--devices 4] [--seconds 540] [--verify 1]
    python tests/benchmarks/tried_here.py table RUNS > reports/tried-here.md

LIST has a line per script: `name|folder|words after bottleneck diagnose`. Scripts of others are not part
of this repository; the report says where each is from. With several devices the scripts are shared out among
them, one at a time on each. The table is made from the run folders alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

SETTLED = ("faster", "slower", "no-difference")


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
