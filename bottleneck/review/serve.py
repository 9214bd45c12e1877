"""Runs TensorBoard on a folder, on this machine's local address only, and ends it completely.

In: a log folder. Out: a running TensorBoard with its address; its messages go on to stderr, without
those that say nothing. Its helpers (data server, a process per trace) share its process group, which
is ended with it.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import InputError
from ..reporters.stream import tell

_HOST = "127.0.0.1"
_ADDRESS = re.compile(r"TensorBoard \S+ at (http://\S+)")
_SAYS_NOTHING = re.compile(
    r"TensorFlow installation not found|New Tensor Cores eligible operator|Using experimental fast data"
    r"|--load_fast=false|tensorboard/issues/4784|Logging before flag parsing|caught SIG|^\s*$"
    r"|Found (a )?communication ops? not belong"
    r"|^I\d+ .*(plugin|loader)\.py:|security_validator|Illegal Content-Security-Policy|Requires default-src"
)
_START = """
import ctypes, importlib, signal, sys
try:
    # 1: PR_SET_PDEATHSIG. Whoever started this may be killed outright; it must not outlive them.
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
except (OSError, AttributeError):
    pass
names = sys.argv.pop(1).split(",")
importlib.import_module(sys.argv.pop(1)).start(names)
"""
_START_SECONDS = 90.0
_STOP_SECONDS = 5.0


class TensorBoard:
    """A TensorBoard process; whoever starts it stops it (see `running`).

    Attributes:
        address: where it answers, "http://127.0.0.1:6006/".
    """

    def __init__(self, logdir: Path, *, port: int | None = None, names: Sequence[str] = ()) -> None:
        """Start it and wait until it answers.

        `port`: 0 for any free one; None for 6006 or the next free one. It answers to localhost and to
        `names`.

        Raises:
            InputError: it is not installed, or does not start.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise InputError(
                "TensorBoard is not installed in this environment.",
                remedy=f"{sys.executable} -m pip install 'tensorboard>=2.21' torch-tb-profiler",
            )
        if port and _taken(port):
            raise InputError(f"Port {port} is taken.", remedy="Choose another with --port, or 0 for any.")
        command = [sys.executable, "-c", _START, ",".join((_HOST, *names)), f"{__package__}.hosts"]
        command += ["--logdir", str(logdir), "--host", _HOST]
        if port is not None:
            command += ["--port", str(port)]
        self._last: collections.deque[str] = collections.deque(maxlen=15)
        self._found = threading.Event()
        self._ending = False
        self.address = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            # Python 3.11 and newer then leave the working folder out of the import path: a script of the
            # user's there must not stand in for a module of TensorBoard's.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name="tensorboard-messages", daemon=True)
        self._reader.start()
        try:
            self._wait_for_address()
        except BaseException:
            self.stop()
            raise

    def _wait_for_address(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while not self._found.wait(0.1):
            if self._process.poll() is not None:
                self._reader.join(_STOP_SECONDS)
                told = " ".join(" ".join(self._last).split())[-600:]
                code = self._process.returncode
                raise InputError(
                    f"TensorBoard did not start (exit code {code}): {told or 'no message'}",
                    remedy="Run `bottleneck doctor`.",
                )
            if time.monotonic() > end:
                raise InputError(
                    f"TensorBoard did not start within {_START_SECONDS:.0f} s.",
                    remedy="Run `bottleneck doctor`.",
                )

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last.append(line)
            found = _ADDRESS.search(line)
            if found is not None:
                self.address = found[1]
                self._found.set()
            elif self._ending or not self._found.is_set() or _SAYS_NOTHING.search(line):
                continue
            else:
                tell(line.rstrip("\r\n"))

    def wait(self) -> int:
        """Wait until it ends by itself and return its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """End it and every process that it started.

        What it says from now on is about requests that its own end cut off.
        """
        self._ending = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self._reader.join(_STOP_SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return True
    return False


@contextlib.contextmanager
def running(logdir: Path, *, port: int | None = None, names: Sequence[str] = ()) -> Iterator[TensorBoard]:
    """Start TensorBoard as `TensorBoard` does, and stop it at the end."""
    tensorboard = TensorBoard(logdir, port=port, names=names)
    try:
        yield tensorboard
    finally:
        tensorboard.stop()
