"""Runs a script in the background: output to a file, a time limit, no orphans.

In: a plan, variables to add, a log file. Out: how the process ended. It leads a session of its own,
so that everything it starts can be ended with it. Ctrl-C reaches only us and is passed on: the
first lets the run stop cleanly, the second ends it at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from .launch import ENVIRONMENT, PASSED_ON, Ended, command_of
from .plan import Plan

GRACE_SECONDS = 15.0
"""From SIGTERM to SIGKILL."""
POLL_SECONDS = 0.05


def launch_apart(
    plan: Plan,
    *,
    log: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (),
    cwd: Path | None = None,
) -> Ended:
    """Run the plan to its end, or to the time limit.

    Past the limit it is terminated, and killed if that does not help. `log` gets its stdout and stderr; the
    words of `launcher`, as in ("torchrun", "--nproc-per-node", "2"), run python themselves.

    Raises:
        OSError: the process cannot be started.
    """
    # A launcher starts python itself, and takes no options of the interpreter.
    command = [*launcher, *command_of(plan, flags=False)] if launcher else [sys.executable, *command_of(plan)]
    signals: list[int] = []
    previous: dict[int, object] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        signals.append(number)

    for name in ("SIGINT", *PASSED_ON):
        number = getattr(signal, name, None)
        if number is not None and (
            name == "SIGINT" or (name in ("SIGTERM", "SIGHUP") and signal.getsignal(number) is signal.SIG_DFL)
        ):
            previous[number] = signal.signal(number, note)
    began_ns, began = time.perf_counter_ns(), time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                env={**ENVIRONMENT, **os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
            )
        timed_out = _wait(process, signals, began + seconds)
        return Ended(
            returncode=process.returncode,
            began_ns=began_ns,
            seconds=time.monotonic() - began,
            timed_out=timed_out,
            interrupted=bool(signals),
        )
    finally:
        if process is not None:
            # Also what it started and did not wait for: data loader workers, ranks.
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def _wait(process: subprocess.Popen[bytes], signals: list[int], deadline: float) -> bool:
    """Wait for the end, pass signals on, and return whether the time limit was reached."""
    handed = 0
    limits = [(deadline, signal.SIGTERM), (deadline + GRACE_SECONDS, signal.SIGKILL)]
    reached = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_SECONDS)
            return reached > 0
        if len(signals) > handed:
            number = signals[handed]
            handed += 1
            if handed > 2:
                _signal_group(process.pid, signal.SIGKILL)
            else:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
            if handed == 1:
                # A clean stop may take some time, but not forever.
                deadline = min(limits[0][0], time.monotonic() + GRACE_SECONDS)
                limits = [(deadline, signal.SIGTERM), (deadline + GRACE_SECONDS, signal.SIGKILL)]
        if reached < len(limits) and time.monotonic() > limits[reached][0]:
            _signal_group(process.pid, limits[reached][1])
            reached += 1


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
