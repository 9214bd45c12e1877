"""The predicted step without a late rank, beside the measured one: gloo on this machine, lateness planted.

    python tests/benchmarks/fleet_what_if.py                  # 2 and 4 ranks, three plants each
    python tests/benchmarks/fleet_what_if.py --ranks 2 --plants input

One script is run twice per case. Alone, it switches its plant on and off in turns of 20 steps, so that both
steps are measured in one run, on a machine as busy. Under `bottleneck diagnose` the plant is always on, and
the ranks' joint replay predicts the step without it. Compared are the ratios of both steps.

Ranks sleep for most of a step, so that they do not compete for the cores of a small machine: where they do,
a rank that is no longer late slows the others down, which no replay knows.

    input     the last rank sleeps while it makes a batch
    host      the last rank sleeps in its loop
    gc        the last rank collects garbage in each step
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PLANTS = ("input", "host", "gc")
TURN = 20

SCRIPT = """
import gc, json, os, statistics, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

plant, ms, turns, alone = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "alone"
torch.set_num_threads(1)
dist.init_process_group("gloo")
late = dist.get_rank() == dist.get_world_size() - 1
torch.manual_seed(0)
gc.disable()
gc.collect()
gc.freeze()
kept = [[i] for i in range(int(ms * 5_000))] if plant == "gc" and late else []

def planted(step, kind):
    return late and plant == kind and (not alone or step // TURN % 2 == 0)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return turns * TURN
    def __getitem__(self, i):
        if planted(i, "input"):
            time.sleep(ms / 1e3)
        return torch.randn(256)

def main():
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stamps = []
    for step, x in enumerate(torch.utils.data.DataLoader(Data(), batch_size=1)):
        stamps.append(time.perf_counter())
        time.sleep(0.04)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if planted(step, "host"):
            time.sleep(ms / 1e3)
        if planted(step, "gc"):
            gc.collect()
    if alone and dist.get_rank() == 0:
        # A batch is made before its step's stamp: the turn's first and last steps belong to both.
        times = [(i, b - a) for i, (a, b) in enumerate(zip(stamps, stamps[1:])) if 2 <= i % TURN < TURN - 2]
        on, off = ([t for i, t in times[TURN:] if i // TURN % 2 == k] for k in (0, 1))
        print(json.dumps({"on": 1e3 * statistics.fmean(on), "off": 1e3 * statistics.fmean(off)}))
    dist.destroy_process_group()

main()
""".replace("TURN", str(TURN))


def launch(folder: Path, ranks: int, *arguments: str) -> str:
    """Run the script on so many ranks and return what it prints."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout


def one_case(folder: Path, ranks: int, plant: str, ms: float, turns: int) -> str:
    """Return a row of the table."""
    script = folder / "job.py"
    script.write_text(SCRIPT)
    told = launch(folder, ranks, str(script), plant, str(ms), str(turns), "alone")
    measured = json.loads(told.strip().splitlines()[-1])
    out = folder / f"run-{ranks}-{plant}"
    launch(
        folder, ranks, "-m", "torch_bottleneck", "diagnose", "--trial-seconds", "0", "--out", str(out),
        str(script), plant, str(ms), str(turns), "diagnosed",
    )  # fmt: skip
    diagnosis = json.loads((out / "diagnosis.json").read_text())
    fleet = diagnosis["fleet"]
    cause = ", ".join(f"rank {s['ranks']} {s['cause']}" for s in fleet["stragglers"])
    ratio = measured["off"] / measured["on"]
    predicted = fleet["step_without_late_ranks_ms"] / fleet["step_ms"]
    gone = [a["step_ms"] / fleet["step_ms"] for a in fleet["what_ifs"] if a["question"] == _GONE[plant]]
    return (
        f"| {ranks} | {plant} | {measured['on']:.1f} | {measured['off']:.1f} | {ratio:.3f} | {predicted:.3f} "
        f"| {100 * (predicted / ratio - 1):+.1f} % | {f'{gone[0]:.3f}' if gone else '-'} | {cause} |"
    )


_GONE = {"input": "input-ready", "host": "host-work-gone", "gc": "gc-free"}


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--plants", nargs="*", choices=PLANTS, default=PLANTS)
    parser.add_argument("--ms", type=float, default=40.0)
    parser.add_argument("--turns", type=int, default=12)
    wanted = parser.parse_args()
    print(
        "| ranks | planted | with, ms | without, ms | ratio | no late rank, predicted | off by "
        "| cause gone | told |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        for ranks in wanted.ranks:
            for plant in wanted.plants:
                print(one_case(Path(folder), ranks, plant, wanted.ms, wanted.turns), flush=True)


if __name__ == "__main__":
    main()
