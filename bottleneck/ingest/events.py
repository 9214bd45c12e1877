"""The shape of an event in a trace file.

In: nothing, or a single event as a plain mapping. Out: the types to decode events into.

Only complete events ("ph": "X") carry fields here; every other phase is decoded into a struct
without fields, which makes skipping it nearly free. Values that do not fit the types go through
`coerce_event`, one event at a time.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from ..timeline.trace.table import NONE

_INT64_MAX = 2**63 - 1

Number: TypeAlias = int | str
"""ROCm wrote streams as "0x0", the earliest kineto External ids as strings."""


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an event that become columns."""

    correlation: Number = NONE
    stream: Number = NONE
    original_stream: Number = NONE
    """torch 2.15: the work of a CUDA graph may be shown on a lane of its own, which `stream` then is."""
    device: Number = NONE
    bytes: Number = NONE
    sequence: Number = msgspec.field(default=NONE, name="Sequence number")
    message_elements: Number = msgspec.field(default=NONE, name="In msg nelems")
    dtype: Any = ""
    """Element type of a collective's message, by kineto's name: "Float", "BFloat16"."""
    collective: Any = msgspec.field(default="", name="Collective name")
    group: Any = msgspec.field(default="", name="Process Group Name")
    group_ranks: Any = msgspec.field(default="", name="Process Group Ranks")
    group_description: Any = msgspec.field(default="", name="Process Group Description")
    in_split: Any = msgspec.field(default="", name="In split size")
    """Elements for each rank of the group; empty where all get as many."""
    out_split: Any = msgspec.field(default="", name="Out split size")
    group_sequence: Number = msgspec.field(default=NONE, name="Seq")
    warps_each: float | str = msgspec.field(default=NONE, name="warps per SM")
    """Warps of a kernel for each multiprocessor of the device."""


_NO_ARGS = Args()


class XEvent(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="X"):
    """A complete event; `ts` and `dur` in microseconds as the file writes them."""

    ts: float
    name: str = ""
    cat: str = ""
    dur: float = 0.0
    pid: int | str = ""
    tid: int | str = ""
    args: Args = _NO_ARGS


class XEventExact(XEvent, frozen=True, gc=False, tag_field="ph", tag="X"):
    """The same for absolute time stamps, which a float holds to a quarter microsecond only."""

    ts: Decimal  # type: ignore[assignment]  # read through _to_ns_exact alone


class Metadata(msgspec.Struct, frozen=True, gc=False, tag_field="ph", tag="M"):
    """A metadata event: the name of a process or a thread."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: dict[str, Any] = {}


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """Base of the phases that carry nothing we use: flows, instants, counters, async events."""


_SKIPPED_PHASES = "BEsftiIPCbneSTpFONDRcVvarm(),="
_SKIPPED = [
    msgspec.defstruct(
        f"Phase{ord(phase)}", [], bases=(Skipped,), tag_field="ph", tag=phase, frozen=True, gc=False
    )
    for phase in dict.fromkeys(_SKIPPED_PHASES)
]

Event: TypeAlias = XEvent | Metadata | Skipped


def event_types(*, exact: bool = False) -> Any:
    """Return the tagged union to decode one event into; `exact` keeps the digits of `ts`."""
    union: Any = (XEventExact if exact else XEvent) | Metadata
    for phase in _SKIPPED:
        union = union | phase
    return union


def as_int(value: object) -> int:
    """Return a number written in any way as a 64-bit integer; NONE when it is not one."""
    number: object = value
    if isinstance(value, str):
        try:
            number = int(value, 0)
        except ValueError:
            return NONE
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int):
        return NONE
    return number if -_INT64_MAX <= number <= _INT64_MAX else NONE


def _as_us(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def _as_id(value: object) -> int | str:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (int, str)) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


_ARGS = tuple((f.name, f.encode_name, f.default) for f in msgspec.structs.fields(Args))


def coerce_event(raw: object) -> Event | None:
    """Make an event of whatever a JSON parser found, forgiving wrong types.

    None when it is no event at all or is a complete event without a time.
    """
    if not isinstance(raw, dict):
        return None
    phase = raw.get("ph")
    args = raw.get("args")
    args = args if isinstance(args, dict) else {}
    if phase == "M":
        return Metadata(
            name=_text(raw.get("name")),
            pid=_as_id(raw.get("pid")),
            tid=_as_id(raw.get("tid")),
            args=args,
        )
    if phase != "X":
        return Skipped() if isinstance(phase, str) else None
    ts = _as_us(raw.get("ts"))
    if ts is None:
        return None
    return XEvent(
        ts=ts,
        name=_text(raw.get("name")),
        cat=_text(raw.get("cat")),
        dur=_as_us(raw.get("dur")) or 0.0,
        pid=_as_id(raw.get("pid")),
        tid=_as_id(raw.get("tid")),
        args=Args(
            **{
                field: as_int(args.get(key, NONE)) if default == NONE else args.get(key, default)
                for field, key, default in _ARGS
            }
        ),
    )
