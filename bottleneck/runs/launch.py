"""Starts the process in which the script runs, and waits for it.

In: a plan. Out: how the process ended. The child inherits stdin, stdout, stderr, the environment and the
interpreter's flags. No torch here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from .plan import Plan, encode_plan

PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
"""Signals that schedulers and launchers send to this process, since it is the one they started."""

HARNESS = f"{__name__.rpartition('.runs.')[0]}.harness"
"""The package in which the script's process begins: by its name for a module, by its file for a script."""
ENTRY = Path(__file__).parents[1] / "harness" / "__main__.py"
ENVIRONMENT = {
    # Without it CUPTI stays attached after the profiler has stopped, and every later step pays.
    "TEARDOWN_CUPTI": "1",
    # Kineto writes "USDT: ... profiler_start" to the script's stderr at any lower level (2.13).
    "KINETO_LOG_LEVEL": "99",
}
"""Set for the script's process where the user has not set them."""


ATTEND_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended."""

    returncode: int
    """As subprocess gives it: minus the number of a signal."""
    began_ns: int
    """time.perf_counter_ns() when the process was started."""
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    """We were asked to stop, and passed that on to the run."""


def launch(
    plan: Plan,
    *,
    cwd: Path | None = None,
    stdout: int | None = None,
    variables: Mapping[str, str] | None = None,
    attend: Callable[[], None] | None = None,
) -> Ended:
    """Run the plan in a separate process and wait for its end.

    The child handles Ctrl-C: a terminal delivers it to both, so this process only waits. Sent by
    `kill`, it reaches only us and is passed on.

    `attend` is called again and again while the script runs. `variables` come over our environment.
    """
    command = [sys.executable, *command_of(plan)]
    environment = {**ENVIRONMENT, **os.environ, **(variables or {})}
    process: subprocess.Popen[bytes] | None = None
    began_ns = time.perf_counter_ns()

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        if not _terminal_is_ours():
            pass_on(number, frame)

    # Handlers, not SIG_IGN: exec resets a handler in the child, but would keep "ignore".
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, on_interrupt)}
    for name in dict.fromkeys((*PASSED_ON, *filter(None, [plan.on_signal]))):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            previous[number] = signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(command, env=environment, cwd=cwd, stdout=stdout)
        returncode = _wait(process, attend)
        seconds = (time.perf_counter_ns() - began_ns) / 1e9
        return Ended(returncode=returncode, began_ns=began_ns, seconds=seconds)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], attend: Callable[[], None] | None) -> int:
    if attend is None:
        return process.wait()
    while True:
        try:
            return process.wait(ATTEND_SECONDS)
        except subprocess.TimeoutExpired:
            attend()


def command_of(plan: Plan, *, flags: bool = True) -> list[str]:
    """Return the words after the interpreter's name that run a plan.

    `flags`: with the options that this interpreter was started with.
    """
    entry = [str(ENTRY)] if plan.module is None else ["-m", HARNESS]
    return [*(_interpreter_flags() if flags else []), *entry, encode_plan(plan), *plan.args]


def name_signal(returncode: int) -> str:
    """Return the name of the signal of a negative return code, such as "SIGKILL"."""
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _interpreter_flags() -> list[str]:
    """Return the options this interpreter was started with, -u among them."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    unbuffered = getattr(sys.stdout, "write_through", False)
    if unbuffered and not os.environ.get("PYTHONUNBUFFERED"):
        flags = [*flags, "-u"]
    return flags


def _terminal_is_ours() -> bool:
    """Return whether we are the terminal's foreground group: then the child also got Ctrl-C."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
