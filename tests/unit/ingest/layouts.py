"""The same events as text in the layouts that trace files are found in.

In: events as plain mappings, in file order. Out: the bytes of a whole file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    Events: TypeAlias = Sequence[dict[str, Any]]

__all__ = ["BASE_NS", "LAYOUTS", "document"]

BASE_NS = 1790857026000000000


def document(events: Events) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": list(events),
        "traceName": "t.json",
    }


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _ordered(event: dict[str, Any]) -> dict[str, Any]:
    """Keys in kineto's order, whatever there is of them."""
    order = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
    return {k: event[k] for k in order if k in event} | event


def _header() -> str:
    kept = {k: v for k, v in document([]).items() if k not in ("traceEvents", "traceName")}
    return "".join(f"  {_text(k)}: {_text(v)},\n" for k, v in kept.items())


def kineto_until_2_12(events: Events) -> bytes:
    def one(event: dict[str, Any]) -> str:
        fields = [f"{_text(k)}: {_text(v)}" for k, v in _ordered(event).items() if k != "args"]
        body = "  {\n    " + ", ".join(fields[:5]) + "".join(f",\n    {f}" for f in fields[5:])
        if "args" in event:
            body += ',\n    "args": {\n      ' + _text(event["args"])[1:-1] + "\n    }"
        return body + "\n  }"

    text = "\n  {\n" + _header() + '  "traceEvents": [\n' + ",\n".join(map(one, events))
    return (text + '\n  ],\n  "traceName": "t.json"\n}').encode()


def kineto_from_2_13(events: Events) -> bytes:
    def one(event: dict[str, Any]) -> str:
        fields = [f"    {_text(k)}: {_text(v)}" for k, v in _ordered(event).items() if k != "args"]
        body = "\n  {\n" + ",\n".join(fields)
        if "args" in event:
            body += '\n    ,\n    "args": {\n      ' + _text(event["args"])[1:-1] + "\n    }"
        return body + "\n  }"

    text = " {\n" + _header() + '    "traceEvents": [\n    ' + ",".join(map(one, events))
    return (text + '\n  ],"traceName": "t.json" }').encode()


def compact(events: Events) -> bytes:
    return json.dumps(document(events), separators=(",", ":")).encode()


def indented(events: Events) -> bytes:
    return json.dumps(document(events), indent=4).encode()


def sorted_keys(events: Events) -> bytes:
    return json.dumps(document(events), sort_keys=True).encode()


def header_last(events: Events) -> bytes:
    document_ = document(events)
    return json.dumps({"traceEvents": document_.pop("traceEvents"), **document_}, indent=1).encode()


def with_byte_order_mark(events: Events) -> bytes:
    return b"\xef\xbb\xbf" + compact(events)


def bare_list(events: Events) -> bytes:
    return json.dumps(list(events), indent=2).encode()


LAYOUTS: dict[str, Callable[[Events], bytes]] = {
    layout.__name__: layout
    for layout in (
        kineto_until_2_12,
        kineto_from_2_13,
        compact,
        indented,
        sorted_keys,
        header_last,
        with_byte_order_mark,
        bare_list,
    )
}
