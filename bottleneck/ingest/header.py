"""Reads what a trace file contains besides events, by pattern: profilers write it as invalid JSON.

In: the text before and after the event array. Out: the fields of `TraceMeta`. torch's
`add_metadata('k', 'v "q"')` writes unescaped quotes and `add_metadata_json('x', 'NaN')` a bare NaN,
so the header as a whole is never parsed, only the values that are used, each alone.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*"?(-?\d{1,19})(?!\d)')
_VERSION = re.compile(r'"(?:torch_version|pytorch_version|PyTorch version)"\s*:\s*"([^"]+)"', re.IGNORECASE)
_MOST_TRIES = 16
"""Each reads on to where its value ends or breaks, which may be the end of the text."""
_SHAPES = re.compile(r'"record_shapes"\s*:\s*"?(1|true)', re.IGNORECASE)


class Header(NamedTuple):
    """Values found outside the events."""

    base_ns: int
    torch_version: str | None
    device_properties: tuple[dict[str, object], ...]
    distributed: dict[str, object] | None
    shapes: bool = False
    """Operators were recorded with the shapes of their arguments."""


def _value(text: str, key: str) -> object:
    """Return the last well-formed value of `key`, or None."""
    places = [match.end() for match in re.finditer(rf'"{key}"\s*:\s*(?=[\[{{])', text)]
    for place in reversed(places[-_MOST_TRIES:]):
        try:
            found: object = json.JSONDecoder().raw_decode(text, place)[0]
        except (ValueError, RecursionError):
            continue
        return found
    return None


def read_header(before: bytes, after: bytes) -> Header:
    """Read the values from the text before and after the array; older kineto wrote some after."""
    text = before.decode("utf-8", errors="replace") + "\n" + after.decode("utf-8", errors="replace")
    base = _BASE.search(text)
    version = _VERSION.search(text)
    devices = _value(text, "deviceProperties")
    distributed = _value(text, "distributedInfo")
    return Header(
        base_ns=int(base[1]) if base else 0,
        torch_version=version[1] if version else None,
        device_properties=tuple(d for d in devices if isinstance(d, dict))
        if isinstance(devices, list)
        else (),
        distributed=distributed if isinstance(distributed, dict) else None,
        shapes=_SHAPES.search(text) is not None,
    )
