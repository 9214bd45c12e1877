"""One vocabulary for what profilers of different versions and vendors call their categories.

In: a `Trace`. Out: `kinds(trace)`, an int8 array with one of the constants below per row.

torch 1.8 to 1.12 wrote "Operator", "Runtime", "Kernel", "Memcpy"; from 1.13 on kineto writes
"cpu_op", "cuda_runtime", "kernel", "gpu_memcpy" (names: `ActivityType.cpp` of pytorch/kineto). ROCm
builds keep kineto's names, and some of them report copies as kernels called "CopyHostToDevice".
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.trace import Trace

__all__ = ["DEVICE_KINDS", "HOST_CALL_KINDS", "Kind", "is_launch", "kinds", "normalise"]


class Kind(IntEnum):
    """What a row is, whatever the dialect."""

    OTHER = 0
    OP = 1
    ANNOTATION = 2
    RUNTIME = 3
    DRIVER = 4
    KERNEL = 5
    MEMCPY = 6
    MEMSET = 7
    SYNC = 8
    """A wait as the device sees it (torch 2.6+ with sync events enabled); not device work."""
    GPU_ANNOTATION = 9
    PYTHON = 10
    OVERHEAD = 11


DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
"""Work on a stream of the device."""
HOST_CALL_KINDS = (Kind.RUNTIME, Kind.DRIVER)
"""Calls into the device's API, on a host thread."""

_CATEGORIES: dict[str, Kind] = {
    "cpu_op": Kind.OP,
    "operator": Kind.OP,
    "user_annotation": Kind.ANNOTATION,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "runtime": Kind.RUNTIME,
    "cuda_runtime": Kind.RUNTIME,
    "hip_runtime": Kind.RUNTIME,
    "xpu_runtime": Kind.RUNTIME,
    "mtia_runtime": Kind.RUNTIME,
    "privateuse1_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.DRIVER,
    "xpu_driver": Kind.DRIVER,
    "privateuse1_driver": Kind.DRIVER,
    "kernel": Kind.KERNEL,
    "memcpy": Kind.MEMCPY,
    "gpu_memcpy": Kind.MEMCPY,
    "memset": Kind.MEMSET,
    "gpu_memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "python_function": Kind.PYTHON,
    "python": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
}

_COPY_KERNELS = ("Memcpy ", "CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice")
_FILL_KERNELS = ("Memset (", "FillBuffer")


def normalise(category: str) -> Kind:
    """Return the kind that a category string of any dialect stands for; OTHER when unknown."""
    return _CATEGORIES.get(category.lower(), Kind.OTHER)


def is_launch(call: str) -> bool:
    """Return whether a runtime or driver call of that name launches kernels.

    Covers cudaLaunchKernel(ExC), cuLaunchKernel(Ex), cudaGraphLaunch, cudaLaunchCooperativeKernel,
    and HIP's hipLaunchKernel, hipModuleLaunchKernel, hipExtModuleLaunchKernel, hipGraphLaunch.
    """
    return "launch" in call.lower() and "HostFunc" not in call


def kinds(trace: Trace) -> NDArray[np.int8]:
    """Return the `Kind` of every row as int8[n]."""
    by_category = np.fromiter((normalise(c) for c in trace.cats), np.int8, len(trace.cats))
    out = by_category[trace.cat] if len(trace) else np.zeros(0, dtype=np.int8)
    for kind, prefixes in ((Kind.MEMCPY, _COPY_KERNELS), (Kind.MEMSET, _FILL_KERNELS)):
        codes = [i for i, name in enumerate(trace.names) if name.startswith(prefixes)]
        if codes:
            wrong = (out == Kind.KERNEL) & np.isin(trace.name, np.asarray(codes, dtype=np.int32))
            out[wrong] = kind
    return out
