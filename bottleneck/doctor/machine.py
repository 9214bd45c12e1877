"""Checks of the machine: whether the profiler records, and whether there is space we may write to.

In: this machine. Out: checks.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from ..harness.self_test import Report
from .check import Check, try_apart

_GIB = 1024**3
_LITTLE_DISK = 2 * _GIB
_NO_DISK = _GIB // 4
_LITTLE_SHARED = _GIB
_FEW_FILES = 1024
_DRIVER = Path("/proc/driver/nvidia")
_INJECTED = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


def check_profiler(*, seconds: float = 180.0) -> Iterator[Check]:
    """Profile a few operators in a separate process, and look at what was recorded."""
    package = __name__.partition(".")[0]
    code, out, err = try_apart("-m", f"{package}.harness.self_test", seconds=seconds)
    try:
        found = msgspec.json.decode(out.strip().splitlines()[-1], type=Report)
    except (ValueError, IndexError):
        ended = f"did not end within {seconds:.0f} s" if code is None else f"ended with {code}"
        message = " ".join(err.split())[-300:]
        yield Check(
            area="profiler",
            level="problem",
            text=f"A test profile {ended}. {message}".strip(),
            remedy="Check that `import torch` works in this environment.",
        )
        return
    yield from judge_profile(found, messages=err, environ=os.environ, driver=_DRIVER)


def judge_profile(
    found: Report, *, messages: str, environ: Mapping[str, str], driver: Path
) -> Iterator[Check]:
    """Judge the result of a test profile.

    Args:
        found: what was recorded.
        messages: what torch and CUPTI wrote to stderr.
        environ: environment variables.
        driver: the NVIDIA driver's folder in /proc.
    """
    if found.error:
        yield Check(
            area="profiler",
            level="problem",
            text=f"torch cannot profile here: {found.error}",
            remedy="Check that `import torch` works in this environment.",
        )
        return
    build = f"torch {found.torch} for {found.built_for}"
    if not found.kineto or not found.operators:
        yield Check(
            area="profiler",
            level="problem",
            text=f"{build} records no operators: it was built without Kineto.",
            remedy="Install torch from pytorch.org or PyPI.",
        )
        return
    has_gpu = (driver / "version").exists()
    if not found.device:
        text = f"{build} records operators; it uses no GPU"
        if has_gpu:
            yield Check(
                area="profiler",
                level="warning",
                text=f"{text}, though this machine has an NVIDIA driver.",
                remedy="Install a torch built for CUDA, or check CUDA_VISIBLE_DEVICES and `nvidia-smi`.",
            )
        else:
            yield Check(area="profiler", level="ok", text=text)
        return
    if found.kernels:
        yield Check(
            area="profiler",
            level="ok",
            text=f"{build} records operators and kernels on {found.device}",
        )
    else:
        yield Check(
            area="profiler",
            level="problem",
            text=f"{build} records no kernels on {found.device}: CUPTI does not work."
            f" {_why(messages, driver)}".rstrip(),
            remedy=(
                "End other profilers (nsys, ncu, DCGM profiling), and allow profiling for all users:"
                " options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, or run with"
                " CAP_SYS_ADMIN."
            ),
        )
    for name in _INJECTED:
        if environ.get(name):
            yield Check(
                area="profiler",
                level="warning",
                text=f"{name} is set: another profiler attaches to every CUDA program.",
                remedy=f"unset {name}",
            )


def _why(messages: str, driver: Path) -> str:
    """Return the known reasons."""
    said = next((line.strip() for line in messages.splitlines() if "CUPTI" in line), "")
    try:
        restricted = "RmProfilingAdminOnly: 1" in (driver / "params").read_text()
    except OSError:
        restricted = False
    reasons = [said[:300], "The driver allows profiling only for administrators." if restricted else ""]
    return " ".join(filter(None, reasons))


def check_space(folder: Path) -> Iterator[Check]:
    """Check that run folders can be written, and that the machine has what runs and loaders need."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    yield from _writable(place, "run folders go here")
    yield from _writable(Path(tempfile.gettempdir()), "the folder for temporary files")
    shared = Path("/", "dev", "shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        if size < _LITTLE_SHARED:
            yield Check(
                area="space and permissions",
                level="warning",
                text=f"{shared} has only {size / 1e6:.0f} MB. DataLoader workers pass batches through it"
                " and die with a bus error when it is full.",
                remedy="In a container: docker run --ipc=host, or --shm-size=8g.",
            )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < soft < _FEW_FILES:
        yield Check(
            area="space and permissions",
            level="warning",
            text=f"A process may open only {soft} files; DataLoader workers use one per tensor they pass.",
            remedy="ulimit -n 65536",
        )
    found = shutil.which("bottleneck")
    here = Path(sys.executable).parent
    if found is not None and Path(found).parent.resolve() != here.resolve():
        yield Check(
            area="space and permissions",
            level="warning",
            text=f"The command `bottleneck` on the path is {found}, from another environment than {here}.",
            remedy=f"{here / 'python'} -m torch_bottleneck, or activate the environment.",
        )


def _writable(place: Path, what: str) -> Iterator[Check]:
    if not os.access(place, os.W_OK | os.X_OK):
        yield Check(
            area="space and permissions",
            level="problem",
            text=f"{place} cannot be written to ({what}).",
            remedy="Start from another folder, or give --out.",
        )
        return
    free = shutil.disk_usage(place).free
    level = "problem" if free < _NO_DISK else "warning" if free < _LITTLE_DISK else "ok"
    yield Check(
        area="space and permissions",
        level=level,  # type: ignore[arg-type]
        text=f"{place}: {free / 1e9:.1f} GB free ({what})",
        remedy="" if level == "ok" else "A trace of a large model takes hundreds of MB: free some space.",
    )
