"""Runs a thread's script: plainly, slow and fixed in turns, and under `bottleneck diagnose`.

In: a thread of truth.py. Out: what the script printed of its step, in ms; diagnosis.json as a dict.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from truth import Thread

STEP = re.compile(r"([0-9.]+) ms per step")
TIMEOUT_S = 240
_ALWAYS = {
    "OMP_WAIT_POLICY": "passive",
    "PYTHONDONTWRITEBYTECODE": "1",
    # A graph that a run before left on the disk views its outputs with sizes of no meaning, in torch 2.11
    # and 2.13: "shape '[139997288520186, ...]' is invalid", with nothing attached (text_embedder.py).
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
}
LAUNCHER = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


class RunFailedError(RuntimeError):
    """A script did not end well, or not in time."""


@dataclass
class Times:
    """Step times without the tool, in ms, one entry per turn."""

    slow_ms: list[float] = field(default_factory=list)
    fixed_ms: list[float] = field(default_factory=list)

    @property
    def slow(self) -> float:
        """Median."""
        return median(self.slow_ms)

    @property
    def fixed(self) -> float:
        """Median."""
        return median(self.fixed_ms)

    @property
    def gain(self) -> float:
        """Median of the gains of the turns: a drift of the machine falls on both sides of a turn."""
        return median(s / f for s, f in zip(self.slow_ms, self.fixed_ms, strict=True))


def measure(thread: Thread, *, pairs: int, cores: tuple[int, ...] = ()) -> Times:
    """Run slow, fixed, slow, fixed, ... with nothing attached."""
    times = Times()
    for _ in range(pairs):
        for variant, into in (("a", times.slow_ms), ("b", times.fixed_ms)):
            launcher = LAUNCHER if thread.machine == "D" else []
            printed = _run(
                [sys.executable, *launcher, str(thread.path)],
                {**thread.environment, **thread.shorter, "VARIANT": variant},
                cores=cores, cwd=thread.path.parent,
            )  # fmt: skip
            found = STEP.search(printed)
            if not found:
                raise RunFailedError(f"{thread.id} printed no step time")
            into.append(float(found.group(1)))
    return times


def diagnose(
    thread: Thread, folder: Path, *, cores: tuple[int, ...] = (), trial_seconds: float = 0
) -> dict[str, Any]:
    """Diagnose the slow script and return diagnosis.json."""
    options = ["-q", "--trial-seconds", f"{trial_seconds:g}", "--out", str(folder)]
    target = [*LAUNCHER, str(thread.path)] if thread.machine == "D" else [str(thread.path)]
    # Where fixes are tried, the script must still be training then.
    longer = {"STEPS": "100000", "EPOCHS": "100000"} if trial_seconds else {}
    _run(
        [sys.executable, "-m", "torch_bottleneck", "diagnose", *options, *target],
        {**longer, **thread.environment, "VARIANT": "a"}, cores=cores, cwd=folder.parent, allowed=(0, 3),
    )  # fmt: skip
    stored = folder / "diagnosis.json"
    if not stored.is_file():
        raise RunFailedError(f"{thread.id} left no diagnosis.json")
    diagnosis: dict[str, Any] = json.loads(stored.read_text())
    return diagnosis


def _run(
    command: list[str],
    environment: dict[str, str],
    *,
    cores: tuple[int, ...],
    cwd: Path,
    allowed: tuple[int, ...] = (0,),
) -> str:
    prefix = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
    whole = {**_ALWAYS, **os.environ, **environment}
    with subprocess.Popen(
        [*prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=whole, cwd=cwd,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            os.killpg(process.pid, signal.SIGKILL)
            raise RunFailedError(f"longer than {TIMEOUT_S} s: {Path(command[-1]).name}") from late
    if process.returncode not in allowed:
        raise RunFailedError(f"exit code {process.returncode}: {' | '.join(err.strip().splitlines()[-3:])}")
    return out
