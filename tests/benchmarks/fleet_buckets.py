"""The predicted step with gradient buckets of other sizes, beside the measured one: on GPUs, or with gloo.

    python tests/benchmarks/fleet_buckets.py OUT                 # 2 ranks; on GPUs where there are two
    python tests/benchmarks/fleet_buckets.py OUT --sizes 1 5 25 100 --rounds 5 -- --layers 28 --width 1024

`fleet_buckets_job.py` is run with torchrun. Once it takes its turns with each size in one run, on a machine
as busy. Then `bottleneck diagnose` runs it with 25 MB, DDP's own size, and the replay of the ranks predicts
the step with the others. Compared are the ratios to the step with 25 MB. OUT gets `buckets.json` and the run
folder.
What stands behind -- is given to the job.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("fleet_buckets_job.py")
NOW = 25
_MIB = 1 << 20


def launch(folder: Path, ranks: int, *arguments: str) -> str:
    """Run something on so many ranks and return what it prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    # A rank may leave while gloo still sends to it: its run folder is whole by then.
    if done.returncode not in (0, 3):
        print(done.stderr[-1500:], file=sys.stderr)
    return done.stdout


def predicted(found: dict[str, Any] | None, step_ms: float, sizes: list[int]) -> dict[int, float | None]:
    """Return the step with each size as a share of that with 25 MB; None where it is not known."""
    rows = [row for row in (found or {}).get("rows", ()) if row["cap_bytes"] is not None]
    whole = [row for row in (found or {}).get("rows", ()) if row["cap_bytes"] is None]
    out: dict[int, float | None] = {}
    for size in sizes:
        # Of sizes that make the same buckets the smallest has a row.
        fits = [row for row in rows if row["cap_bytes"] <= size * _MIB]
        if (found or {}).get("bytes", 0) <= size * _MIB:
            fits = whole or fits
        out[size] = fits[-1]["step_ms"] / step_ms if fits else None
    out[NOW] = 1.0
    return out


def main() -> None:
    """Print a row per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 5, 25, 100], help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    own, _, of_job = " ".join(sys.argv[1:]).partition(" -- ")
    wanted = parser.parse_args(own.split())
    job = of_job.split()
    sizes = list(dict.fromkeys([*wanted.sizes, NOW]))
    wanted.out.mkdir(parents=True, exist_ok=True)
    run = wanted.out.resolve() / "run"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        turns = ("--measure", "--rounds", str(wanted.rounds), "--buckets", *map(str, sizes))
        told = launch(folder, wanted.ranks, str(JOB), *turns, *job)
        measured = {int(size): ms for size, ms in json.loads(told.strip().splitlines()[-1]).items()}
        print(f"measured, ms: {measured}", flush=True)
        launch(
            folder, wanted.ranks, "-m", "torch_bottleneck", "diagnose", "--trial-seconds", "0",
            "--out", str(run), str(JOB), "--buckets", str(NOW), *job,
        )  # fmt: skip
    again = subprocess.run(
        [sys.executable, "-m", "torch_bottleneck", "analyze", str(run), "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    document = json.loads(again.stdout)
    fleet, buckets = document["fleet"] or {}, document["buckets"]
    step_ms = fleet.get("step_ms") or document["step"]["true_ms"]
    found = predicted(buckets, step_ms, sizes)
    rows = []
    print("| bucket_cap_mb | measured, ms | ratio | predicted | off by |\n|---:|---:|---:|---:|---:|")
    for size in sizes:
        ratio, said = measured[size] / measured[NOW], found[size]
        rows.append({"mib": size, "measured_ms": measured[size], "ratio": ratio, "predicted": said})
        off = f"{said:.3f} | {100 * (said / ratio - 1):+.1f} %" if said is not None else "not known | "
        print(f"| {size} | {measured[size]:.1f} | {ratio:.3f} | {off} |")
    result = {"diagnosed_ms": step_ms, "rows": rows, "buckets": buckets, "load": os.getloadavg()[0]}
    result["suggested"] = [w for w in document["what_ifs"] if w["question"] == "bucket-size"]
    (wanted.out / "buckets.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"step as diagnosed: {step_ms:.1f} ms; {buckets['unknown'] if buckets else 'no buckets'}")


if __name__ == "__main__":
    main()
