"""One session of torch.profiler, driven by our cuts, and its trace file.

In: start, step and stop at safe points of the training thread. Out: a Kineto trace with one
`ProfilerStep#k` per step, in the form torch-tb-profiler reads, compressed fast.

Costs measured on CPU, one thread, 12 910 operators per 11.5 ms step: 1.5 to 1.7 x the step time
while recording; stop() 3 us per event; export 1.5 to 5 us and about 270 bytes per event.
`record_shapes` would make that 2.0 to 2.2 x and 420 bytes, so it stays off: kernel names and
the settings in force say which precision was used.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

from torch import profiler

from ...clocks import perf_counter_ns
from ...runs.launch import ENVIRONMENT
from .. import profile_forks, torch_private
from ..signals import signals_go_elsewhere

EVENT_BYTES_PER_MS = 250_000
"""No step writes more: recording takes at least 1 us per event and an event is under 270 bytes."""


def prepare_environment() -> None:
    """Ask kineto to detach CUPTI after each profile, and to say nothing; must precede the first profile.

    Left attached it slows launches for good (1.30 x on a launch-bound H200 step).
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what the profiler warns of about its own use: the script did not ask for it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.profiler")
        yield


class TraceSession:
    """A profile of `warmup` steps that are not recorded and then as many as the caller wishes."""

    def __init__(self, *, warmup: int, gpu: bool, with_stack: bool) -> None:
        self.warmup = warmup
        self.passed = 0
        """Whole steps since `start`, the profiler's own warm-up included."""
        self.start_ms = 0.0
        self.stop_ms = 0.0
        self.export_ms = 0.0
        self._gpu = gpu
        self._with_stack = with_stack
        self._profile: Any = None
        self._last = 0
        self._stopped = False
        self._thread = 0

    @property
    def recorded(self) -> int:
        """Whole steps recorded so far."""
        return max(0, self.passed - self.warmup)

    @property
    def running(self) -> bool:
        """Started and not stopped."""
        return self._profile is not None and not self._stopped

    def start(self) -> None:
        """Begin; the current moment is the start of the first step."""
        began = perf_counter_ns()
        activities = [profiler.ProfilerActivity.CPU]
        config = None
        if self._gpu:
            activities.append(profiler.ProfilerActivity.CUDA)
            config = torch_private.experimental_config({"enable_cuda_sync_events": True})
        action = profiler.ProfilerAction
        # A callable of ours, not profiler.schedule(): the number of steps is decided on the way.
        self._profile = profiler.profile(
            activities=activities,
            schedule=lambda step: action.WARMUP if step < self.warmup else action.RECORD,
            with_stack=self._with_stack,
            experimental_config=config,
        )
        self._thread = get_ident()
        profile_forks.profile_begins()
        with _quiet(), signals_go_elsewhere():
            self._profile.start()
        self.start_ms = (perf_counter_ns() - began) / 1e6

    def step(self) -> None:
        """A step has ended and another begins."""
        self.passed += 1
        with _quiet():
            self._profile.step()

    def stop(self, *, at_cut: bool) -> None:
        """End the recording; `at_cut` says that a step ends here, so that it counts as whole.

        Raises:
            RuntimeError: this is not the thread that began. torch keeps the state of a recording per
                thread; asked by another one it stops nothing, and to write what it then returns is
                a segmentation fault.
        """
        if not self.running:
            return
        self._stopped = True
        if self._thread != get_ident():
            profile_forks.end_before_destructors()
            raise RuntimeError("another thread began it, and torch lets only that one end it")
        began = perf_counter_ns()
        self._last = self._profile.step_num
        if at_cut:
            self.passed += 1
        with profile_forks.profile_ends():
            self._profile.stop()
        self.stop_ms = (perf_counter_ns() - began) / 1e6

    def abandon(self) -> None:
        """Stop after a failure, so that nothing goes on recording; whatever happens is swallowed."""
        with contextlib.suppress(Exception):
            self.stop(at_cut=False)
        self._profile = None

    def forked(self) -> None:
        """This process is a fork, and the recording is its parent's."""
        if self.running:
            profile_forks.record_nothing(with_stack=self._with_stack)

    def end_inherited(self) -> None:
        """This process is a fork that is to be captured itself: nothing of its parent's may be on."""
        if self.running and not self._gpu:
            profile_forks.end_inherited(self._profile)

    def export(self, raw: Path) -> int:
        """Write the plain JSON trace and return its size in bytes; frees the profiler's memory.

        Raises:
            RuntimeError: kineto could not write, or recorded nothing.
        """
        began = perf_counter_ns()
        self._profile.export_chrome_trace(str(raw))
        self._profile = None
        self.export_ms = (perf_counter_ns() - began) / 1e6
        return raw.stat().st_size

    def mark_partial(self, raw: Path) -> None:
        """Rename the last step, which no cut has ended, so that nobody counts it as a whole one."""
        data = raw.read_bytes()
        name = f'"ProfilerStep#{self._last}"'.encode()
        raw.write_bytes(data.replace(name, b'"partial step"'))


def compress(raw: Path, target: Path) -> None:
    """Compress `raw` to `target` (.gz) and delete it; the target appears whole or not at all."""
    partial = target.with_name(f".{target.name}.tmp")
    try:
        from isal import igzip

        opener: Any = igzip.open
        level = 2
    except ImportError:
        opener, level = gzip.open, 1
    try:
        with raw.open("rb") as source, opener(partial, "wb", compresslevel=level) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        partial.replace(target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    raw.unlink()
