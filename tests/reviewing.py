"""A log folder of recorded runs, and a TensorBoard on it, for tests of either."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded.cases import CASES
from recorded.diagnosed import diagnosed
from unit.reporters.sample import hostile

from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.review.logdir import prepare_run
from torch_bottleneck.review.serve import running

__all__ = ["CPU", "GPU", "HOSTILE", "Review", "Served", "reviewed", "served"]

GPU = [
    "example-input-bound",
    "example-compute-bound",
    "example-transfer-bound",
    "example-sync-bound",
    "input-h200",
    "ddp-h200",
    "ddp-straggler-h200",
]
CPU = ["input-bound-cpu", "example-graph-breaks-cpu"]
HOSTILE = "hostile"
"""A run whose texts mean harm, without a trace."""


@dataclass
class Served:
    """A running TensorBoard."""

    address: str

    def get(self, path: str, **query: str) -> bytes:
        where = f"{self.address.rstrip('/')}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(where, timeout=600) as answer:
            return bytes(answer.read())

    def json(self, path: str, **query: str) -> Any:
        return json.loads(self.get(path, **query))

    def wait_for_profiles(self, runs: Sequence[str], *, seconds: float = 1200.0) -> None:
        """Wait until the stock tab has read these runs: it takes a process and seconds for each trace."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.json("/data/plugin/pytorch_profiler/runs")
            if set(runs) <= set(state["runs"]) and not state["loading"]:
                return
            time.sleep(0.2)
        raise AssertionError(f"the profiler tab has read only {state} of {list(runs)}")

    def overview(self, run: str, worker: str) -> dict[str, float]:
        """Return the stock Overview in ms: "Average Step Time", "Kernel", "DataLoader", ..."""
        prefix = "/data/plugin/pytorch_profiler"
        (span,) = self.json(f"{prefix}/spans", run=run, worker=worker)
        (row,) = self.json(f"{prefix}/overview", run=run, worker=worker, span=span)["performance"]
        return {part["name"]: part["value"] / 1e3 for part in (row, *row["children"])}


@contextlib.contextmanager
def served(logdir: Path) -> Iterator[Served]:
    with running(logdir, port=0) as tensorboard:
        yield Served(tensorboard.address)


Review = tuple[Served, dict[str, Diagnosis]]


@contextlib.contextmanager
def reviewed(logdir: Path) -> Iterator[Review]:
    """A TensorBoard that has read recorded traces, and their diagnoses; it serves `HOSTILE` too."""
    diagnoses = {}
    for name in (*GPU, *CPU):
        folder = CASES[name].folder
        diagnoses[name] = diagnosed(folder)
        prepare_run(diagnoses[name], [folder], logdir / name)
    prepare_run(hostile(), [], logdir / HOSTILE)
    with served(logdir) as tensorboard:
        tensorboard.wait_for_profiles(list(diagnoses))
        yield tensorboard, diagnoses
