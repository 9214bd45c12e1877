"""Checks of NVIDIA devices and processors: whether times taken here mean something.

In: the driver's own library (NVML), the system. Out: checks: a line for each kind of device, and one for
everything that changes what a step takes: others at work, a clock or power held back, modes.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..harness.job.nvml import LIBRARY, REASONS, SM_CLOCK, ask
from ..runs.environment import usable_cores
from .check import Check, Level

_EXCLUSIVE, _PROHIBITED = 3, 2
"""nvmlComputeMode_t."""
_BUSY_PERCENT = 5
_NAME_BYTES = 96
_MOST_PROCESSES = 64
_MUCH_LOAD = 0.5


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("compute", ctypes.c_uint),
    )


def check_gpus(library: Any = None) -> Iterator[Check]:
    """Look at every NVIDIA device; nothing is made on one.

    Args:
        library: NVML; None: the driver's, if there is one.
    """
    if library is None:
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError:
            return  # no driver
    if code := library.nvmlInit_v2():
        text = f"The driver's library does not answer (NVML error {code})."
        yield _check("warning", text, "Run `nvidia-smi`: after an update of the driver, restart the machine.")
        return
    try:
        driver = ctypes.create_string_buffer(_NAME_BYTES)
        library.nvmlSystemGetDriverVersion(driver, _NAME_BYTES)
        newest = ask(library, "nvmlSystemGetCudaDriverVersion_v2") or 0
        told = f"driver {driver.value.decode()}, for CUDA up to {newest // 1000}.{newest % 1000 // 10}"
        kinds: Counter[str] = Counter()
        found: list[Check] = []
        for index in range(ask(library, "nvmlDeviceGetCount_v2") or 0):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                device = _Device(library, handle, f"GPU {index}")
                kinds[device.kind()] += 1
                found += device.checks()
        for kind, count in kinds.items():
            yield _check("ok", f"{count} × {kind}; {told}")
        yield from found
    finally:
        library.nvmlShutdown()


def _check(level: Level, text: str, remedy: str = "") -> Check:
    return Check(area="GPU", level=level, text=text, remedy=remedy)


class _Device:
    """One device, as NVML tells of it; what it does not tell is no check."""

    def __init__(self, library: Any, handle: Any, name: str) -> None:
        self._library = library
        self._handle = handle
        self._name = name

    def _ask(self, name: str, *words: int, kind: Any = ctypes.c_uint) -> int | None:
        return ask(self._library, f"nvmlDevice{name}", self._handle, *words, kind=kind)

    def kind(self) -> str:
        """Name, memory, largest clock and power limit."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._library.nvmlDeviceGetName(self._handle, name, _NAME_BYTES)
        memory, clock = self._memory(), self._ask("GetMaxClockInfo", SM_CLOCK)
        power_mw = self._ask("GetEnforcedPowerLimit")
        return ", ".join(
            [
                name.value.decode(),
                *([f"{memory.total / 1e9:.0f} GB"] if memory is not None else []),
                *([f"{clock} MHz"] if clock else []),
                *([f"{power_mw / 1e3:.0f} W"] if power_mw else []),
            ]
        )

    def _memory(self) -> _Memory | None:
        memory = _Memory()
        failed = self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        return None if failed else memory

    def checks(self) -> Iterator[Check]:
        """What is not as it should be."""
        yield from self._others()
        yield from self._clocks()
        mode = self._ask("GetComputeMode")
        if mode == _PROHIBITED:
            yield _check("problem", f"{self._name} takes no programs.", "nvidia-smi --compute-mode=DEFAULT")
        elif mode == _EXCLUSIVE:
            text = f"{self._name} takes one program at a time: ranks or a second run cannot share it."
            yield _check("note", text, "nvidia-smi --compute-mode=DEFAULT")
        if self._ask("GetPersistenceMode") == 0:
            text = f"{self._name}: the driver unloads between programs, so each starts seconds later."
            yield _check("note", text, "nvidia-smi --persistence-mode=1")

    def _others(self) -> Iterator[Check]:
        count = ctypes.c_uint(_MOST_PROCESSES)
        processes = (_Process * _MOST_PROCESSES)()
        function = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        listed = function is not None and not function(self._handle, ctypes.byref(count), processes)
        pids = [process.pid for process in processes[: count.value]] if listed else []
        busy = _Utilisation()
        if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(busy)):
            busy.gpu = 0
        if not pids and busy.gpu < _BUSY_PERCENT:
            return
        # Those of other containers are not listed, but what they do shows.
        who = f"processes {', '.join(map(str, pids))}" if pids else "a process that cannot be seen from here"
        memory = self._memory()
        held = f", {memory.used / 1e9:.1f} GB in use" if memory is not None else ""
        text = f"{self._name} has other work: {who} ({busy.gpu} % busy{held}). Steps take longer beside it."
        yield _check("warning", text, "End it, or choose another device with CUDA_VISIBLE_DEVICES.")

    def _clocks(self) -> Iterator[Check]:
        reasons = self._ask("GetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0
        if held := [reason for bit, reason in REASONS.items() if reasons & bit]:
            text = f"{self._name} is slowed down now by {' and '.join(held)}."
            yield _check("warning", text, "Let it cool down, or compare times of the same state only.")
        limit, usual = self._ask("GetEnforcedPowerLimit"), self._ask("GetPowerManagementDefaultLimit")
        if limit and usual and limit < usual:
            text = f"{self._name} may use {limit / 1e3:.0f} W of its usual {usual / 1e3:.0f} W."
            yield _check("warning", text, f"nvidia-smi --power-limit={usual // 1000}")
        clock, most = self._ask("GetApplicationsClock", SM_CLOCK), self._ask("GetMaxClockInfo", SM_CLOCK)
        if clock and most and clock < most:
            yield _check("note", f"{self._name} is set to run programs at {clock} of {most} MHz.")


def check_processors() -> Iterator[Check]:
    """Tell how many processors this process really has, and whether others use them."""
    usable, all_ = usable_cores(), os.cpu_count() or 1
    text = f"{usable} of the machine's {all_} cores may be used"
    if usable < all_:
        text += ": affinity or the container's quota allow no more; count workers and threads by that"
    yield Check(area="processors", level="ok" if usable == all_ else "note", text=text)
    load = os.getloadavg()[0]
    if usable == all_ and load > _MUCH_LOAD * all_:
        yield Check(
            area="processors",
            level="warning",
            text=f"Other programs are at work: on average {load:.1f} threads in the last minute.",
            remedy="Times taken now vary: wait, or trust counters and shares more than times.",
        )
