"""A copy of the script's process, in which fixes are tried while the script itself waits.

In: a process that computes on the CPU, between two steps. Out: that process, unchanged, once its copy has
ended. A fork takes the training along as it stands: parameters, optimizer, random numbers, the place in
the loader's order, and every counter of the script's. A GPU's context does not survive it.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ...clocks import monotonic, sleep
from .. import loader_private, torch_private
from ..events.replacing import Replacements
from ..windows import presence
from .isolation import NotPrivateError

_OPENMP = re.compile(r"/lib(?:gomp|omp|iomp5)[^/]*\.so[^/]*$")
_PAUSE_HARD = 2
"""omp_pause_hard of OpenMP 5.0: all threads go, and come back when they are needed."""
_POLL_SECONDS = 0.02


def make_copy() -> int:
    """Fork; return 0 in the copy, and its process number here.

    Raises:
        NotPrivateError: this process cannot be copied.
    """
    if torch_private.device_kind() != "cpu":
        raise NotPrivateError("what runs on a GPU cannot be copied")
    handler = signal.getsignal(signal.SIGCHLD)
    if callable(handler) and not str(getattr(handler, "__module__", "")).startswith("torch.utils.data"):
        raise NotPrivateError("the script watches the processes that it starts")
    _end_operator_threads()
    try:
        with presence.kept_in_forks(), _no_word_of_threads():
            return os.fork()
    except OSError as error:
        raise NotPrivateError(f"the process cannot be copied ({error.strerror})") from error


def wait_for(copy: int, *, seconds: float, unless: Callable[[], bool]) -> str:
    """Wait for the end of a copy; return "" or why it was ended."""
    deadline = monotonic() + seconds
    while True:
        try:
            gone, status = os.waitpid(copy, os.WNOHANG)
        except ChildProcessError:
            return ""  # the script waits for whatever ends
        if gone:
            return f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
        if unless() or monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(copy, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(copy, 0)
            return "the run was interrupted" if unless() else "it did not end in time"
        sleep(_POLL_SECONDS)


def _end_operator_threads() -> None:
    """Have OpenMP end its threads: the copy would wait for ever for those that it believes to have."""
    paused = False
    for path in _openmp_libraries():
        pause = getattr(ctypes.CDLL(path), "omp_pause_resource_all", None)
        if pause is not None:
            paused = pause(_PAUSE_HARD) == 0
            if not paused:
                break
    if not paused and torch.get_num_threads() > 1:
        raise NotPrivateError("the threads of operators cannot be ended, and do not survive a copy")


def _openmp_libraries() -> list[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line[line.index("/") :] for line in lines if _OPENMP.search(line)})


@contextlib.contextmanager
def _no_word_of_threads() -> Iterator[None]:
    """Python 3.12 warns of forks where there are threads. The script's filters are as they were afterwards.

    `catch_warnings` would have the script's own warnings shown a second time.
    """
    ours = ("ignore", None, DeprecationWarning, None, 0)
    filters = warnings.filters
    filters.insert(0, ours)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            filters.remove(ours)  # type: ignore[attr-defined]


class OwnPasses:
    """In the copy: loaders' passes, whose workers serve the script's process, get workers of their own."""

    def __init__(self, loader_of: Callable[[Any], Any]) -> None:
        """Replace nothing yet."""
        self._loader_of = loader_of
        self._own: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._replaced = Replacements()

    def install(self) -> None:
        """Replace them as they are asked for their next batch. The copy ends with it in place."""
        # A fork server of the script is no child of the copy, and would not keep workers from writing.
        multiprocessing.set_start_method("fork", force=True)
        for kind in loader_private.batch_sources():
            self._replaced.put(kind, "_next_data", self._make_next)

    def _make_next(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def _next_data(iterator: Any) -> Any:
            if not loader_private.serves_another_process(iterator):
                return original(iterator)
            if iterator not in self._own:
                loader = self._loader_of(iterator)
                if loader is None:
                    raise NotPrivateError("a loader's workers serve the script's process")
                loader.multiprocessing_context = None
                self._own[iterator] = loader_private.begin_pass(loader_private.without_pass(loader), None)
            return original(self._own[iterator])

        return _next_data
