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

from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.review.logdir import prepare_run
from torch_bottleneck.review.serve import running

__all__ = ["Served", "prepare_cases", "served"]


def prepare_cases(names: Sequence[str], logdir: Path) -> dict[str, Diagnosis]:
    """Write the log folders of recorded runs below `logdir` and return their diagnoses."""
    found = {}
    for name in names:
        folder = CASES[name].folder
        found[name] = diagnosed(folder)
        prepare_run(found[name], [folder], logdir / name)
    return found


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
