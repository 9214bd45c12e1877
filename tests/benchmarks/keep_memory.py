"""Turns the results of record_memory.py into recorded cases, small enough for a repository.

In: folders that record_memory.py wrote. Out: tests/recorded/memory-<case>-h200/ with run.json and its side
files, the snapshots (gzipped, paths of the machine taken out) with their notes, CASE.md and truth.json. The
trace is kept, cut to two steps, where a fix of the case is predicted in time.

    python tests/benchmarks/keep_memory.py RESULTS [--out tests/recorded]
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests"))

from recorded.trim import trim

TIMED = {"empty-cache", "variable-lengths", "lengths-near-cap", "recompute"}
"""Cases whose fix has a predicted step time."""
TRACED = TIMED | {"activations"}
"""Cases of which the trace is kept: these, and the one whose fix buys memory with time."""
STEPS = 2
ALL_STEPS = {"lengths-near-cap": 8}
"""Cases whose steps differ too much for two to stand for all."""

PUBLIC = (
    (re.compile(r"[^\s\"']*/site/torch_bottleneck/"), "torch_bottleneck/"),
    (re.compile(r"[^\s\"']*/(lib/python3\.\d+/)"), r"python/\1"),
)


class Portable:
    """Takes out what only the recording machine knows."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.root = f"{run['cwd']}/"
        trace = next(iter(run["artefacts"].values()))["path"] or ""
        self.host = Path(trace).name.partition("_")[0]

    def text(self, text: str) -> str:
        """Return the text as any machine could have written it."""
        text = text.replace(self.root, "").replace(self.root.rstrip("/"), ".")
        for pattern, replacement in PUBLIC:
            text = pattern.sub(replacement, text)
        if self.host:
            text = re.sub(rf'(["/]){re.escape(self.host)}_\d+\.', r"\1host_1.", text)
            text = text.replace(f'"{self.host}"', '"host"')
        return text.replace("/tmp/", "tmp/")

    def value(self, value: Any) -> Any:
        """Do the same to plain data, sharing what is shared."""
        seen: dict[int, Any] = {}

        def inner(item: Any) -> Any:
            if isinstance(item, str):
                return self.text(item)
            if not isinstance(item, (list, tuple, dict)):
                return item
            if id(item) not in seen:
                if isinstance(item, dict):
                    seen[id(item)] = {key: inner(part) for key, part in item.items()}
                else:
                    seen[id(item)] = type(item)(inner(part) for part in item)
            return seen[id(item)]

        return inner(value)


def packed(data: bytes) -> bytes:
    """Compress so that the same input gives the same file."""
    return gzip.compress(data, 9, mtime=0)


def keep(source: Path, target: Path) -> None:
    """Write one recorded case."""
    truth = json.loads((source / "truth.json").read_text())
    run = json.loads((source / "run" / "run.json").read_text())
    portable = Portable(run)
    shutil.rmtree(target, ignore_errors=True)
    (target / "memory").mkdir(parents=True)
    for name in ("loader.json", "compile.json"):
        if (source / "run" / name).is_file():
            (target / name).write_text(portable.text((source / "run" / name).read_text()))
    for file in sorted((source / "run" / "memory").iterdir()):
        stem = re.sub(r"^[^.]*", "host_1", file.name)
        if file.suffix == ".pickle":
            content = portable.value(pickle.loads(file.read_bytes()))
            (target / "memory" / f"{stem}.gz").write_bytes(packed(pickle.dumps(content, protocol=4)))
        else:
            (target / "memory" / stem).write_text(portable.text(file.read_text()))
    for entry in run["artefacts"].values():
        if entry["path"] and entry["path"].endswith(".pickle"):
            entry["path"] += ".gz"
    trace = run["artefacts"].get("trace", {})
    if trace.get("path") and truth["case"] in TRACED:
        text = portable.text(gzip.decompress((source / "run" / trace["path"]).read_bytes()).decode())
        (target / "trace").mkdir()
        stamp = re.search(r"\.(\d+)\.", trace["path"])
        trace["path"] = f"trace/host_1.{stamp[1] if stamp else 1}.pt.trace.json.gz"
        steps = ALL_STEPS.get(truth["case"])
        cut = trim(text, first=0 if steps else 1, steps=steps or STEPS)
        (target / trace["path"]).write_bytes(packed(cut.encode()))
    elif trace.get("path"):
        run["artefacts"]["trace"] = {"status": "absent", "path": None, "bytes": None,
                                     "reason": "left out of this recording"}  # fmt: skip
    conf = run["settings"].get("allocator.conf")
    if conf:
        truth["environment"] = f"PYTORCH_CUDA_ALLOC_CONF={conf}"
    text = portable.text(json.dumps(run))
    (target / "run.json").write_text(text + "\n")
    if truth["case"] not in TIMED:
        # Nothing is predicted in time here: reports/memory-accuracy.md compares bytes.
        truth |= {f"{name}_step_ms": truth.pop(f"{name}_ms", None) for name in ("slow", "fixed")}
        truth |= {"slow_ms": None, "fixed_ms": None}
    truth["case"] = target.name
    (target / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    write_case(target, truth)


def write_case(target: Path, truth: dict[str, Any]) -> None:
    """Say what was run and what was measured."""
    told = {"device": truth["device"], "torch": truth["torch"]}
    if "environment" in truth:
        told["environment"] = truth["environment"]
    steps = next((count for case, count in ALL_STEPS.items() if case in truth["command"]), STEPS)
    table = "\n".join(f"| {key} | {value} |" for key, value in told.items())
    (target / "CASE.md").write_text(
        f"# {truth['command'].split('diagnose ')[-1]}\n\n| key | value |\n| --- | --- |\n{table}\n\n"
        f"    {truth['command']}\n\n"
        "Measured with nothing attached, slow and `--fixed` in turns: truth.json. The snapshot is whole; a\n"
        f"trace, where there is one, is cut to {steps} steps.\n"
        "Written by tests/benchmarks/keep_memory.py from tests/benchmarks/record_memory.py.\n"
    )


def main() -> None:
    """Keep every case of a folder of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests" / "recorded")
    args = parser.parse_args()
    for file in sorted(args.results.glob("*/truth.json")):
        if args.cases and file.parent.name not in args.cases:
            continue
        target = args.out / f"memory-{file.parent.name}-h200"
        keep(file.parent, target)
        size = sum(f.stat().st_size for f in target.rglob("*") if f.is_file())
        print(f"{target.name}: {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
