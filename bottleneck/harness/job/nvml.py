"""The clock of an NVIDIA device, its temperature and power, and why its clock is held back.

In: the driver's own library (NVML), which every driver brings along. Out: a `DeviceLook` at most as often as
its owner asks; None where there is no such device, or the library does not answer. Nothing is made on a
device for the sake of asking.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any, NamedTuple

from ..driver import LIBRARY, ask

__all__ = ["LIBRARY", "REASONS", "SM_CLOCK", "DeviceLook", "DeviceState", "ask"]

SM_CLOCK = 1
"""nvmlClockType_t: that of the multiprocessors."""
_GPU_TEMPERATURE = 0
REASONS = {
    0x04: "its power limit",
    0x08: "the hardware, which slows down",
    0x20: "its temperature",
    0x40: "its temperature, at the limit of the hardware",
    0x80: "its power supply",
}
"""nvmlClocksThrottleReasons (nvml.h): those that hold a busy device back."""


class DeviceLook(NamedTuple):
    """What one device does now; None: it does not say."""

    device: int
    """As torch counts."""
    clock_mhz: float | None
    temperature_c: float | None
    power_mw: float | None
    held_back: int
    """Of `REASONS`, added up."""


class DeviceState:
    """The first device that this process has memory on."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._library: Any = None
        self._handle: ctypes.c_void_p | None = None
        self._device = 0
        self._failed = False

    def look(self) -> DeviceLook | None:
        """Return what it does; takes some ten microseconds, and holds no lock of Python's meanwhile."""
        if self._handle is None and not self._failed:
            with contextlib.suppress(Exception):
                self._find()
        if self._handle is None:
            return None
        return DeviceLook(
            self._device,
            self._ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            self._ask("nvmlDeviceGetTemperature", _GPU_TEMPERATURE),
            self._ask("nvmlDeviceGetPowerUsage"),
            int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0),
        )

    def close(self) -> None:
        """Ask no more."""
        if self._handle is not None:
            self._handle, self._failed = None, True
            self._library.nvmlShutdown()

    def _find(self) -> None:
        device = _used_device()
        if device is None:
            return
        # From here on it is there, or never.
        self._failed = True
        uuid = f"GPU-{sys.modules['torch'].cuda.get_device_properties(device).uuid}".encode()
        library, handle = ctypes.CDLL(LIBRARY), ctypes.c_void_p()
        if library.nvmlInit_v2() == 0:
            if library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)) == 0:
                self._library, self._handle, self._device = library, handle, device
            else:
                library.nvmlShutdown()

    def _ask(self, name: str, *words: int, kind: Any = ctypes.c_uint) -> float | None:
        found = ask(self._library, name, self._handle, *words, kind=kind)
        return None if found is None else float(found)


def _used_device() -> int | None:
    torch = sys.modules.get("torch")
    # Another thread may be importing it. Asking is no reason to make a context on a device.
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    used = (i for i in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(i))
    return next(used, None)
