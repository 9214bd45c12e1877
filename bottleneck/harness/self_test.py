"""A small profile of this machine's own, to see whether the profiler records what a GPU does.

In: nothing. Out: one line of JSON on stdout (`Report`). Run as `python -m ....harness.self_test` by
`bottleneck doctor`, in a process of its own: a broken driver may take it down.
"""

from __future__ import annotations

import sys

import msgspec


class Report(msgspec.Struct, kw_only=True):
    """What was found."""

    torch: str = ""
    built_for: str = ""
    """"CUDA 13.0", "ROCm 6.4", or "CPU"."""
    kineto: bool = False
    device: str = ""
    """Name of the first accelerator that torch can use; empty without one."""
    operators: int = 0
    """Operators recorded on the host."""
    kernels: int = 0
    """Kernels recorded on the device."""
    error: str = ""


def _profile(report: Report) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    report.torch = str(torch.__version__)
    hip, cuda = getattr(torch.version, "hip", None), torch.version.cuda
    report.built_for = f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "CPU"
    report.kineto = bool(torch.profiler.kineto_available())
    activities = [ProfilerActivity.CPU]
    device = "cpu"
    if torch.cuda.is_available():
        device = "cuda"
        report.device = torch.cuda.get_device_name(0)
        activities.append(ProfilerActivity.CUDA)
    a = torch.randn(64, 64, device=device)
    a @ a
    with profile(activities=activities) as recorded:
        for _ in range(3):
            a = (a @ a).tanh()
        if device == "cuda":
            torch.cuda.synchronize()
    for event in recorded.events() or ():
        if event.device_type == torch.autograd.DeviceType.CPU:
            report.operators += event.name.startswith("aten::")
        else:
            report.kernels += 1


def main() -> None:
    """Profile, and print what was found."""
    report = Report()
    try:
        _profile(report)
    except Exception as error:
        report.error = f"{type(error).__name__}: {error}"
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


if __name__ == "__main__":
    main()
