"""Does `bottleneck watch` find what makes steps grow, and name the line? Nine scripts, and nine that do not.

    python tests/benchmarks/watch/found.py [--write] [--cuda] [SCRIPT ...]

In: the scripts of `growing/`: each grows by a line marked `# grows`, and does not with `--stationary`. Out:
a table, and with `--write` a section of reports/growth.md. With `--cuda` those scripts that can train on a
GPU do, which takes three minutes. Exit code 1 where a stationary script is accused, or more than one line is
not named.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from torch_bottleneck.model.documents import load_watch
from torch_bottleneck.model.watch import Watch
from torch_bottleneck.model.words import milliseconds
from torch_bottleneck.reporters.rows.watch import growth_lines

SCRIPTS = sorted((Path(__file__).parent / "growing").glob("*.py"))
REPORT = Path(__file__).parents[3] / "reports" / "growth.md"
HEADING = "## Nine scripts that grow, and nine that do not"
ON_GPU = "## Scripts that grow on a GPU, and the same that do not"
CUDA = "--cuda"


def run(script: Path, *words: str) -> Watch:
    """Return the account of a script."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch_bottleneck",
                "watch",
                "--quiet",
                "--out",
                "run",
                str(script),
                *words,
            ],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{script.name}: {done.stderr[-2000:]}")
        return load_watch(Path(folder) / "run")


def named(script: Path, watch: Watch) -> bool:
    """Say whether one of the lines that are named is the one that grows."""
    lines = script.read_text().splitlines()
    return any(g.site is not None and "# grows" in lines[g.site.line - 1] for g in watch.growth)


def row(script: Path, *words: str) -> tuple[str, bool, bool]:
    """Return the row of a script, whether its line is named, and whether its stationary twin is accused."""
    # One after the other: one that grows slows its neighbour on the same device down, more and more.
    grows, still = run(script, *words), run(script, *words, "--stationary")
    found = grows.growth[0] if grows.growth else None
    good = named(script, grows)
    cells = [
        script.stem,
        f"{grows.steps}",
        "not found" if found is None else f"{milliseconds(found.ms_per_1000_steps)}",
        "" if found is None else f"{milliseconds(found.step_ms)}",
        "; ".join(f"`{g.what}` ({g.kind}){f', line {g.site.line}' if g.site else ''}" for g in grows.growth),
        "yes" if good else "**no**",
        "**accused**" if still.growth else "no",
        "; ".join(f"{change.ratio:.2f} at {change.step}" for change in still.changes),
    ]
    for watch in (grows, still):
        for line in growth_lines(watch):
            print(f"   {line}", file=sys.stderr)
    return f"| {' | '.join(cells)} |", good, bool(still.growth)


def main() -> None:
    """Run the scripts, print what was found, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("scripts", nargs="*")
    parser.add_argument(CUDA, action="store_true", dest="cuda")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    table, lines, accused = [], 0, 0
    able = [script for script in SCRIPTS if not options.cuda or CUDA in script.read_text()]
    chosen = [script for script in able if not options.scripts or script.stem in options.scripts]
    for script in chosen:
        cells, good, wrong = row(script, *([CUDA] if options.cuda else []))
        print(cells, flush=True)
        table.append(cells)
        lines, accused = lines + good, accused + wrong
    heading = ON_GPU if options.cuda else HEADING
    words = f" {CUDA}" if options.cuda else ""
    device = torch.cuda.get_device_name() if options.cuda else f"{platform.machine()}, CPU"
    section = "\n".join(
        [
            heading,
            "",
            f"Made by `python tests/benchmarks/watch/found.py --write{words}`; each script runs to its end"
            f" under `bottleneck watch`, and then its twin that does not grow. {device},"
            f" torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores;"
            f" load average {load:.1f} before, {os.getloadavg()[0]:.1f} after.",
            "",
            "| script | steps | ms per 1000 steps | step at the end, ms | what grows | line named |"
            " twin said to grow | twin said to change |",
            "|---|---|---|---|---|---|---|---|",
            *table,
            "",
            f"Lines named: {lines} of {len(chosen)}. Stationary scripts accused: {accused} of them.",
            "",
        ]
    )
    print(section)
    if options.write:
        before, _, after = REPORT.read_text().partition(heading)
        _, _, after = after.partition("\n## ")
        REPORT.write_text(f"{before.rstrip()}\n\n{section}" + (f"\n## {after}" if after else ""))
    sys.exit(accused > 0 or lines < len(chosen) - 1)


if __name__ == "__main__":
    main()
