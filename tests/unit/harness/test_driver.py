"""What the driver says of NVLinks, given a driver that is not this machine's."""

from __future__ import annotations

from typing import Any

import pytest

from torch_bottleneck.harness.driver import nvlink_gbytes_per_s


class Nvml:
    """A driver with one device; links beyond those that it has are an error (NVML error 2)."""

    def __init__(self, *, up: int = 18, links: int = 18, mbytes_per_s: int = 26562, failed: int = 0) -> None:
        self.up, self.links, self.mbytes_per_s, self.failed = up, links, mbytes_per_s, failed
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, at: Any) -> int:
        at._obj.value = 1
        return 0 if uuid == b"GPU-1234" else 6

    def nvmlDeviceGetNvLinkState(self, _handle: Any, link: int, at: Any) -> int:
        if link >= self.links:
            return 2
        at._obj.value = int(link < self.up)
        return 0

    def nvmlDeviceGetFieldValues(self, _handle: Any, count: int, at: Any) -> int:
        assert (count, at._obj.field) == (1, 90)
        # Behind an unsigned int the rest of the union is not written.
        at._obj.value, at._obj.failed = self.mbytes_per_s | 0x7F << 40, self.failed
        return 0


@pytest.mark.parametrize(
    ("driver", "uuid", "rate"),
    [
        (Nvml(), "1234", 478.116),
        (Nvml(up=12), "1234", 318.744),
        (Nvml(links=4, up=4, mbytes_per_s=25781), "1234", 103.124),
        (Nvml(up=0), "1234", None),
        (Nvml(failed=3), "1234", None),
        (Nvml(mbytes_per_s=0), "1234", None),
        (Nvml(), "another", None),
    ],
)
def test_links_that_are_up_are_added(driver: Nvml, uuid: str, rate: float | None) -> None:
    assert nvlink_gbytes_per_s(uuid, driver) == (pytest.approx(rate) if rate else None)
    assert driver.open == 0, "left open"


def test_an_old_driver_says_nothing() -> None:
    class Old(Nvml):
        nvmlDeviceGetFieldValues = None  # type: ignore[assignment]

    assert nvlink_gbytes_per_s("1234", Old()) is None
