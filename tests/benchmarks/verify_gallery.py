"""Predicted against measured: diagnoses examples, tries every fix that they suggest, writes the table.

In: examples/*.py and the machine this runs on. Out:

    reports/verify-gallery/<device>/<example>.json   one verification each (verify.json)
    reports/verify-gallery.md                        the table over all of them, misses included

    python tests/benchmarks/verify_gallery.py [--seconds 450] [--out FOLDER] [--keep FOLDER] [TASK ...]
    python tests/benchmarks/verify_gallery.py --table            only writes the table anew

A task is EXAMPLE[:FX+FX][@WEIGHT]. Time is shared out among the examples by their weights, and what one
leaves goes to the others; within one, fixes are tried in the order of predicted gain, so what there is no
time for is what promised least. Such rows say so; `--seconds` more brings them. `combine` among the fixes
of an example puts those that helped together at the end; `all` stands for every fix that applies, in the
tool's own order.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from verify_table import STORED, TABLE, read_rows, slug, write_table

REPOSITORY = Path(__file__).resolve().parents[2]
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


@dataclass(frozen=True)
class Task:
    """What is asked for of one example."""

    example: str
    fixes: tuple[str, ...]
    combine: bool
    everything: bool
    weight: float

    @classmethod
    def of(cls, word: str) -> Task:
        """Read EXAMPLE[:FX...+FX...+combine][@WEIGHT], or EXAMPLE:all[@WEIGHT]."""
        word, _, weight = word.partition("@")
        example, _, listed = word.partition(":")
        fixes = tuple(listed.split("+")) if listed else ()
        return cls(
            example,
            tuple(fix for fix in fixes if fix not in ("combine", "all")),
            bool({"combine", "all"}.intersection(fixes)) or not fixes,
            "all" in fixes,
            float(weight or 1),
        )

    @property
    def stem(self) -> str:
        """Name of its file."""
        return ".".join(filter(None, [self.example, "all" if self.everything else "-".join(self.fixes)]))


def try_example(task: Task, seconds: float, out: Path, *, pairs: tuple[int, int], keep: Path | None) -> None:
    """Diagnose one example, then verify what it suggests, or the fixes named, within a time.

    Args:
        task: the example, and what to try on it.
        seconds: for all of it.
        out: folder of the verifications.
        pairs: of runs for each fix, at least and at most.
        keep: folder to copy the example's recording to.
    """
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
        if task.everything:
            chosen.append("--all")
        if not task.combine:
            chosen.append("--no-combine")
        least, most = map(str, pairs)
        command = [*tool, "verify", "--budget", f"{minutes:.2f}", "--pairs", least, "--max-pairs", most]
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
        if keep is not None:
            unread = shutil.ignore_patterns("v", "*.html", "tensorboard", "memory")
            shutil.copytree(run, keep / task.stem, ignore=unread, dirs_exist_ok=True)


def portable(text: str) -> str:
    """Take out what only this machine knows: where the checkout lies."""
    for private, public in ((f"{REPOSITORY}/", ""), (str(REPOSITORY), "."), (sys.prefix, "python")):
        text = text.replace(private, public)
    return text


def main() -> None:
    """Try, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=450.0)
    parser.add_argument("--pairs", type=int, default=2, help="pairs of runs before anything is decided")
    parser.add_argument("--max-pairs", type=int, default=5, help="pairs of runs while it is undecided")
    parser.add_argument("--keep", type=Path, help="copy the recording of each example into this folder")
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
            pairs = (args.pairs, max(args.pairs, args.max_pairs))
            try_example(task, (end - time.monotonic()) * share, out, pairs=pairs, keep=args.keep)
    if args.out is None:
        write_table(read_rows(STORED))
        print(TABLE.read_text())


if __name__ == "__main__":
    main()
