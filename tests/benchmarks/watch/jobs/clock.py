"""Clocks by hand for the jobs beside this file: where their time goes, as their author says.

In: `with clock("validation"): ...`, `begin`/`end`, `lap` at the end of each step. Out: a line per clock that
stops, in the file that CLOCKS names (and one more for each rank above 0), so that a killed job leaves its own.
A clock inside another is taken out of it. Imported first: what lies before is the interpreter's. Until the
first lap, what an import statement loads anywhere is clocked as imports: libraries have many in functions.
"""

import builtins
import contextlib
import gc
import os
import sys
import threading
import time

_RANK = os.environ.get("RANK", "0")
_FILE = os.open(
    os.environ.get("CLOCKS", "/dev/null") + (_RANK if _RANK != "0" else ""),
    os.O_WRONLY | os.O_CREAT | os.O_APPEND,
)
_open: list[list[float]] = []
_lap: list[float] = []
_garbage = [0.0, 0.0]


def _write(part: str, seconds: float) -> None:
    os.write(_FILE, f"{part}\t{seconds:.7f}\n".encode())


def _before_us() -> float:
    """Return the seconds since the process began; in ticks of 10 ms."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def begin() -> None:
    """Start a clock."""
    _open.append([time.perf_counter(), 0.0])


def end(part: str) -> None:
    """Stop the clock that was started last."""
    began, inner = _open.pop()
    whole = time.perf_counter() - began
    if _open:
        _open[-1][1] += whole
    elif _lap:
        _lap[1] += whole
    _write(part, whole - inner)


@contextlib.contextmanager
def clock(part: str):
    """Clock a block."""
    begin()
    try:
        yield
    finally:
        end(part)


def lap(*, first: bool = False) -> None:
    """A step ends here (or, `first`, the first one begins): what no clock has taken since the last is its."""
    now = time.perf_counter()
    if first:
        builtins.__import__ = _imports
    else:
        _write("step", now - _lap[0] - _lap[1])
    if _garbage[1] > 1e-4:
        _write("garbage collections", _garbage[1])
    _garbage[1] = 0.0
    _lap[:] = [now, 0.0]


def no_more_laps() -> None:
    """The last step has ended."""
    _lap.clear()


def _collected(phase: str, _: object) -> None:
    # Those of imports and set-up are a part of these, and so are those within other clocks.
    if phase == "start":
        _garbage[0] = time.perf_counter()
    elif _lap and not _open:
        took = time.perf_counter() - _garbage[0]
        _garbage[1] += took
        _lap[1] += took


_imports = builtins.__import__
_importing: list[str] = []


def _import(name, *words, **more):
    if _importing or not _open or threading.current_thread() is not threading.main_thread():
        return _imports(name, *words, **more)
    _importing.append(name)
    modules = len(sys.modules)
    begin()
    try:
        return _imports(name, *words, **more)
    finally:
        _importing.clear()
        if len(sys.modules) > modules:
            end("interpreter and imports")
        else:
            _open.pop()


builtins.__import__ = _import
_write("interpreter and imports", _before_us())
gc.callbacks.append(_collected)
