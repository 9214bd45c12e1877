"""What doctor says of devices, given a driver that is not this machine's."""

from __future__ import annotations

from typing import Any

import pytest

from torch_bottleneck.doctor import gpu
from torch_bottleneck.doctor.check import Check


class Nvml:
    """A driver with H100s in order: each answer may be changed, None: not supported (NVML error 3)."""

    def __init__(self, *, devices: int = 2, pids: tuple[int, ...] = (), busy: int = 0, **answers: int | None):
        self.devices, self.pids, self.busy = devices, pids, busy
        self.open = False
        self.answers: dict[str, int | None] = {
            "GetMaxClockInfo": 1980,
            "GetApplicationsClock": 1980,
            "GetEnforcedPowerLimit": 700_000,
            "GetPowerManagementDefaultLimit": 700_000,
            "GetCurrentClocksThrottleReasons": 1,  # idle
            "GetComputeMode": 0,
            "GetPersistenceMode": 1,
            **answers,
        }

    def nvmlInit_v2(self) -> int:
        self.open = True
        return 0

    def nvmlShutdown(self) -> int:
        self.open = False
        return 0

    def nvmlSystemGetDriverVersion(self, buffer: Any, _size: int) -> int:
        buffer.value = b"580.82.07"
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, at: Any) -> int:
        at._obj.value = 13000
        return 0

    def nvmlDeviceGetCount_v2(self, at: Any) -> int:
        at._obj.value = self.devices
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, at: Any) -> int:
        at._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, _handle: Any, buffer: Any, _size: int) -> int:
        buffer.value = b"NVIDIA H100 80GB HBM3"
        return 0

    def nvmlDeviceGetMemoryInfo(self, _handle: Any, at: Any) -> int:
        at._obj.total, at._obj.used = 85_520_809_984, 12_000_000_000
        return 0

    def nvmlDeviceGetUtilizationRates(self, _handle: Any, at: Any) -> int:
        at._obj.gpu = self.busy
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _handle: Any, count: Any, rows: Any) -> int:
        count._obj.value = len(self.pids)
        for row, pid in zip(rows, self.pids, strict=False):
            row.pid = pid
        return 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        answer = self.answers.get(name.removeprefix("nvmlDevice"))

        def ask(_handle: Any, *words: Any) -> int:
            if answer is None:
                return 3
            words[-1]._obj.value = answer
            return 0

        return ask


def checked(**changed: Any) -> list[Check]:
    library = Nvml(**changed)
    found = list(gpu.check_gpus(library))
    assert not library.open
    return found


def test_devices_that_are_fine_are_one_line() -> None:
    (found,) = checked()
    assert found.level == "ok"
    assert found.text == (
        "2 × NVIDIA H100 80GB HBM3, 86 GB, 1980 MHz, 700 W; driver 580.82.07, for CUDA up to 13.0"
    )


@pytest.mark.parametrize(
    ("changed", "level", "says", "remedy"),
    [
        (
            {"pids": (41, 42), "busy": 98},
            "warning",
            "processes 41, 42 (98 % busy, 12.0 GB in use)",
            "CUDA_VIS",
        ),
        (
            {"busy": 60},
            "warning",
            "a process that cannot be seen from here (60 % busy",
            "CUDA_VISIBLE_DEVICES",
        ),
        ({"GetCurrentClocksThrottleReasons": 0x24}, "warning", "its power limit and its temperature", "cool"),
        ({"GetEnforcedPowerLimit": 350_000}, "warning", "350 W of its usual 700 W", "--power-limit=700"),
        ({"GetApplicationsClock": 1200}, "note", "at 1200 of 1980 MHz", ""),
        ({"GetComputeMode": 2}, "problem", "takes no programs", "--compute-mode=DEFAULT"),
        ({"GetComputeMode": 3}, "note", "one program at a time", "--compute-mode=DEFAULT"),
        ({"GetPersistenceMode": 0}, "note", "unloads between programs", "--persistence-mode=1"),
    ],
)
def test_what_changes_times_is_told_with_what_to_do(
    changed: dict[str, Any], level: str, says: str, remedy: str
) -> None:
    _, found = checked(devices=1, **changed)
    assert found.level == level
    assert found.text.startswith("GPU 0 ") or found.text.startswith("GPU 0:")
    assert says in found.text
    assert remedy in found.remedy


def test_what_a_device_does_not_tell_is_no_check() -> None:
    (found,) = checked(devices=1, **dict.fromkeys(Nvml().answers))
    assert found.text.startswith("1 × NVIDIA H100 80GB HBM3, 86 GB; driver")


def test_a_library_that_does_not_answer_is_a_warning_and_none_is_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = Nvml()
    library.nvmlInit_v2 = lambda: 18  # type: ignore[method-assign]
    (found,) = gpu.check_gpus(library)
    assert found.level == "warning" and "NVML error 18" in found.text
    monkeypatch.setattr(gpu, "LIBRARY", "lib-that-is-not-there.so")
    assert list(gpu.check_gpus()) == []


def test_cores_are_those_that_the_container_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(gpu.os, "getloadavg", lambda: (40.0, 0.0, 0.0))
    monkeypatch.setattr(gpu, "usable_cores", lambda: 6)
    (found,) = gpu.check_processors()
    assert found.level == "note" and "6 of the machine's 64 cores" in found.text
    monkeypatch.setattr(gpu, "usable_cores", lambda: 64)
    fine, busy = gpu.check_processors()
    assert fine.level == "ok" and busy.level == "warning" and "40.0 threads" in busy.text
