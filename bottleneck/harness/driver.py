"""The NVIDIA driver's own library (NVML), which every driver brings along: what it says of a device's links.

In: the library. Out: `ask`, and the rate of a device's NVLinks.

    nvml.h: nvmlDeviceGetNvLinkState, nvmlDeviceGetFieldValues, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["LIBRARY", "ask", "nvlink_gbytes_per_s"]

LIBRARY = "libnvidia-ml.so.1"
_MOST_LINKS = 18
"""NVML_NVLINK_MAX_LINKS."""
_LINK_SPEED = 90
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: of each active link in one direction, in MB/s."""


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t; of its value only that of an unsigned int."""

    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_int),
        ("failed", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


def ask(library: Any, name: str, *words: Any, kind: Any = ctypes.c_uint) -> int | None:
    """Return the one number that a function of NVML gives; None where it fails or is not there."""
    answer, function = kind(), getattr(library, name, None)
    if function is None or function(*words, ctypes.byref(answer)) != 0:
        return None
    return int(answer.value)


def nvlink_gbytes_per_s(uuid: str, library: Any = None) -> float | None:
    """Return what all NVLinks of a device that are up carry together in one direction, GB/s (1e9).

    None without such links, and where the driver does not say.

    Args:
        uuid: of the device, as torch gives it.
        library: NVML; None: the driver's.

    Raises:
        OSError: there is no such library.
    """
    library, handle = library or ctypes.CDLL(LIBRARY), ctypes.c_void_p()
    if library.nvmlInit_v2() != 0:
        return None
    try:
        if library.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle)) != 0:
            return None
        up = sum(ask(library, "nvmlDeviceGetNvLinkState", handle, link) == 1 for link in range(_MOST_LINKS))
        speed = FieldValue(field=_LINK_SPEED)
        values = getattr(library, "nvmlDeviceGetFieldValues", None)
        if not up or values is None or values(handle, 1, ctypes.byref(speed)) != 0 or speed.failed:
            return None
        mbytes_per_s = speed.value & 0xFFFFFFFF
        return up * mbytes_per_s / 1e3 if mbytes_per_s else None
    finally:
        library.nvmlShutdown()
