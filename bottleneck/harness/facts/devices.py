"""The machine the program runs on: accelerators, cores, memory, versions.

In: torch, /proc and /sys. Out: `DeviceFacts` and `HostFacts`. Nothing is initialised for the sake
of asking: a device that the program never used is not reported.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from ...model.run import DeviceFacts, HostFacts
from ...runs.environment import cgroup_files, first_affinity, usable_cores
from ..driver import nvlink_gbytes_per_s

REPORTED_PACKAGES = (
    "numpy",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "deepspeed",
    "torchvision",
    "torchaudio",
    "torchdata",
    "triton",
    "flash_attn",
    "xformers",
    "apex",
    "bitsandbytes",
    "megatron",
    "timm",
    "ray",
)
"""Packages whose version explains how a training behaves; only if the program imported them."""


def read_devices() -> list[DeviceFacts]:
    """Return the accelerators this process has used, or one entry of kind "cpu"."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        used = [i for i in range(torch.cuda.device_count()) if _is_used(i)]
        current = torch.cuda.current_device()
        # The current device first: it is the one the step runs on.
        order = sorted(used or [current], key=lambda index: index != current)
        return [_cuda_facts(index) for index in order]
    for kind in ("xpu", "mps"):
        backend = getattr(torch, kind, None)
        with contextlib.suppress(Exception):
            if backend is not None and backend.is_available() and _backend_is_used(kind, backend):
                name = backend.get_device_name() if hasattr(backend, "get_device_name") else kind
                return [DeviceFacts(kind=kind, name=str(name))]
    return [DeviceFacts(kind="cpu", name=_cpu_name(), total_bytes=_memory_bytes())]


def read_host() -> HostFacts:
    """Return what is known of the machine and of the versions in use."""
    load: list[float] = []
    with contextlib.suppress(OSError):
        load = [round(value, 2) for value in os.getloadavg()]
    return HostFacts(
        os=f"{platform.system()} {platform.release()}",
        cpu=_cpu_name(),
        cores=usable_cores(),
        cores_at_start=usable_cores(first_affinity()),
        memory_bytes=_memory_bytes(),
        load_average=load,
        python=platform.python_version(),
        torch=str(torch.__version__),
        cuda=torch.version.cuda or getattr(torch.version, "hip", None),
        cudnn=_cudnn_version(),
        nccl=_nccl_version(),
        packages=_packages(),
    )


def _cuda_facts(index: int) -> DeviceFacts:
    properties: Any = torch.cuda.get_device_properties(index)
    cap: float | None = None
    with contextlib.suppress(Exception):
        # torch 2.9 and later tell; before, the cap cannot be read back.
        cap = float(torch.cuda.get_per_process_memory_fraction(index))
    return DeviceFacts(
        kind="rocm" if getattr(torch.version, "hip", None) else "cuda",
        index=index,
        name=str(properties.name),
        total_bytes=int(properties.total_memory),
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=int(properties.multi_processor_count),
        driver=_driver_version(),
        memory_fraction_cap=cap if cap is not None and cap < 1.0 else None,
        nvlink_gbytes_per_s=_nvlink(properties),
    )


def _nvlink(properties: Any) -> float | None:
    # The driver takes some milliseconds to be asked: only where several ranks may use the links.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    with contextlib.suppress(Exception):
        return nvlink_gbytes_per_s(str(properties.uuid))
    return None


def _is_used(index: int) -> bool:
    with contextlib.suppress(Exception):
        return bool(torch.cuda.memory_reserved(index) > 0)
    return False


def _backend_is_used(kind: str, backend: Any) -> bool:
    if kind == "mps":
        return bool(backend.current_allocated_memory() > 0)
    return bool(backend.is_initialized() and backend.memory_reserved() > 0)


def _driver_version() -> str | None:
    with contextlib.suppress(OSError):
        # The version is the first word of the text that is all digits and points.
        for word in Path("/proc/driver/nvidia/version").read_text().split():
            if word.count(".") >= 1 and word.replace(".", "").isdigit():
                return word
    return None


def _cudnn_version() -> str | None:
    # Until torch 2.11, asking starts CUDA.
    if not (torch.cuda.is_initialized() and torch.backends.cudnn.is_available()):
        return None
    number = torch.backends.cudnn.version()
    return str(number) if number else None


def _nccl_version() -> str | None:
    with contextlib.suppress(Exception):
        if torch.cuda.is_initialized() and torch.distributed.is_nccl_available():
            return ".".join(str(part) for part in torch.cuda.nccl.version())
    return None


def _packages() -> dict[str, str]:
    found = {}
    for name in REPORTED_PACKAGES:
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None) if module is not None else None
        if version is not None:
            found[name] = str(version)
    return found


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    """Return the memory this process may use: the machine's, cut by the cgroup's limit."""
    total: int | None = None
    with contextlib.suppress(ValueError, OSError, AttributeError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in cgroup_files("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limit = int(path.read_text())
            total = limit if total is None else min(total, limit)
    return total
