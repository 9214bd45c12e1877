"""What does `bottleneck watch` tell of a job that becomes slower in the middle? Four ways, and a steady one.

    python tests/benchmarks/watch/paces.py [--write] [KIND ...]

In: nothing; under `watch` this file itself trains. Out: a table, and with `--write` a section of
reports/growth.md. Exit code 1 where a change is not told, or one that was not made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = 3600
WAYS = {
    "neighbour": "on its two cores two other processes begin to work",
    "input": "each sample takes 0.2 ms more",
    "batch": "batches are twice as large",
    "cores": "of two cores one is left",
    "steady": "nothing changes",
}
REPORT = Path(__file__).parents[3] / "reports" / "growth.md"
HEADING = "## Jobs that become slower in the middle"


class Data(Dataset[torch.Tensor]):
    """Samples that may take longer from some point on."""

    slow = False

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a sample."""
        if self.slow:
            time.sleep(2e-4)
        return torch.full((512,), float(index))


def train(way: str) -> None:
    """Train, and change in the middle."""
    torch.set_num_threads(2)
    if way in ("cores", "neighbour"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    size, data, others = 32, Data(), []

    def batches() -> Iterator[list[int]]:
        for _ in range(STEPS):
            yield [0] * size

    sizes = (512, 1024, 1024, 1)
    layers = [torch.nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for step, x in enumerate(DataLoader(data, batch_sampler=batches())):
        if step == STEPS // 2:
            data.slow = way == "input"
            size *= 2 if way == "batch" else 1
            if way == "neighbour":
                busy = [sys.executable, "-c", "while True: pass"]
                others = [subprocess.Popen(busy) for _ in range(2)]
            if way == "cores":
                for thread in Path("/proc/self/task").iterdir():
                    os.sched_setaffinity(int(thread.name), {min(os.sched_getaffinity(0))})
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for other in others:
        other.kill()


def row(way: str) -> tuple[str, bool]:
    """Return the row of a way, and whether what is told is right."""
    from torch_bottleneck.model.documents import load_watch

    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-m", "torch_bottleneck", "watch", "--quiet", "--out", "run", __file__]
        done = subprocess.run(
            [*call, "--train", way], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        watch = load_watch(Path(folder) / "run")
    told = "; ".join(
        f"{change.ratio:.2f} from step {change.step} on: {', '.join(change.beside) or 'nothing'}"
        for change in watch.changes
    )
    slower = any(change.ratio > 1 for change in watch.changes) and not watch.growth
    grows = f" **grows by {watch.growth[0].ms_per_1000_steps} ms**" if watch.growth else ""
    right = slower == (way != "steady")
    cells = (WAYS[way], str(STEPS // 2), f"{told or 'no change'}{grows}", "yes" if right else "**no**")
    return f"| {' | '.join(cells)} |", right


def main() -> None:
    """Run the ways, print what was told, and write where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--train", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("ways", nargs="*")
    options = parser.parse_args()
    if options.train:
        train(options.train)
        return
    load = os.getloadavg()[0]
    rows = []
    for way in options.ways or WAYS:
        rows.append(row(way))
        print(rows[-1][0], flush=True)
    section = "\n".join(
        [
            HEADING,
            "",
            "Made by `python tests/benchmarks/watch/paces.py --write`; on the CPU, load average"
            f" {load:.1f} before, {os.getloadavg()[0]:.1f} after on {len(os.sched_getaffinity(0))} cores.",
            "",
            "| what changes | at step | what is told | right |",
            "|---|---|---|---|",
            *(cells for cells, _ in rows),
            "",
        ]
    )
    print(section)
    if options.write:
        before, _, after = REPORT.read_text().partition(HEADING)
        _, _, after = after.partition("\n## ")
        REPORT.write_text(f"{before.rstrip()}\n\n{section}" + (f"\n## {after}" if after else ""))
    sys.exit(not all(right for _, right in rows))


if __name__ == "__main__":
    main()
