"""How a number of bytes is written, the same in findings and in every report.

In: bytes. Out: text with binary units and three figures, as torch's own messages have them.
"""

from __future__ import annotations

__all__ = ["byte_size"]


def byte_size(value: float) -> str:
    """Write a number of bytes: "512 B", "1.5 GiB", "640 MiB"."""
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or abs(amount) >= 100 else f"{amount:.3g} {unit}"
