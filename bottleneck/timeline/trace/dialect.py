"""One vocabulary for what profilers of different versions and vendors call their categories.

In: categories and names. Out: `Kind`; families of device calls: launches, waits, copies, allocator.

torch 1.8 to 1.12 wrote "Operator", "Runtime", "Kernel", "Memcpy"; from 1.13 on kineto writes
"cpu_op", "cuda_runtime", "kernel", "gpu_memcpy" (names: `ActivityType.cpp` of pytorch/kineto). ROCm
builds keep kineto's names, and some of them report copies as kernels called "CopyHostToDevice".
"""

from __future__ import annotations

import re
from enum import IntEnum


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

MISNAMED = (
    (Kind.MEMCPY, ("Memcpy ", "CopyHostToDevice", "CopyDeviceToHost", "CopyDeviceToDevice")),
    (Kind.MEMSET, ("Memset (", "FillBuffer")),
)
"""What some dialects call kernels, by the beginnings of their names."""

PROFILER_STEP = re.compile(r"^ProfilerStep#(\d{1,18})$")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#.+$")
WAIT_CALL = re.compile(r"(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize")
DEVICE_WAIT = re.compile(r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
"""What torch.cuda.synchronize() calls."""
STREAM_WAIT = re.compile(r"^Stream Wait Event$")
"""A stream is told to wait for another one; told beside the host's call, which does not name the stream."""
COPY_CALL = re.compile(r"^(cuda|hip|cu)Memcpy")
TO_DEVICE = re.compile("HtoD|HostToDevice")
TO_HOST = re.compile("DtoH|DeviceToHost")
NOT_AWAITED = re.compile(r"DtoD|DeviceToDevice|PtoP|PeerToPeer|Pinned")
"""Copies that a call ending in Async hands over and leaves: no pageable memory has to be staged for them."""
GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
ALLOCATOR_CALL = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|FreeHost|MallocAsync|FreeAsync|HostRegister"
    r"|HostUnregister|MemPool\w*)|^(cu|hip)Mem(Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree|Alloc|Free)"
)
MALLOC_CALL = re.compile(r"Malloc|MemCreate|MemMap")
"""Allocator calls that get memory from the device..."""
FREE_CALL = re.compile(r"^(cuda|hip)Free|MemUnmap")
"""...and those that give it back."""


def normalise(category: str) -> Kind:
    """Return the kind that a category string of any dialect stands for; OTHER when unknown."""
    return _CATEGORIES.get(category.lower(), Kind.OTHER)


def is_launch(call: str) -> bool:
    """Return whether a runtime or driver call of that name launches kernels.

    Covers cudaLaunchKernel(ExC), cuLaunchKernel(Ex), cudaGraphLaunch, cudaLaunchCooperativeKernel,
    and HIP's hipLaunchKernel, hipModuleLaunchKernel, hipExtModuleLaunchKernel, hipGraphLaunch.
    """
    return "launch" in call.lower() and "HostFunc" not in call
