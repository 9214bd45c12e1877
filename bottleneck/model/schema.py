"""The JSON Schemas of diagnosis.json, verify.json and watch.json, made from the types, shipped beside.

In: `Diagnosis`, `Verification` or `Watch`. Out: its schema as a dict or as the text of the file, which
`python -m torch_bottleneck.model.schema` writes again and a test keeps up to date.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec

from .diagnosis import SCHEMA, Diagnosis
from .verify import VERIFY_SCHEMA, Verification
from .watch import WATCH_SCHEMA, Watch

_SHIPPED: dict[type, tuple[str, str]] = {
    Diagnosis: ("diagnosis.schema.json", f"bottleneck diagnosis, schema {SCHEMA}"),
    Verification: ("verify.schema.json", f"bottleneck verification, schema {VERIFY_SCHEMA}"),
    Watch: ("watch.schema.json", f"bottleneck watch, schema {WATCH_SCHEMA}"),
}
"""File and title by kind of document."""


def shipped(document: type) -> Path:
    """Return the file that has the schema of a kind of document."""
    return Path(__file__).with_name(_SHIPPED[document][0])


def schema_of(document: type) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a kind of document."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _SHIPPED[document][1],
        **_alike(msgspec.json.schema(document)),
    }


def schema_text(document: type) -> str:
    """Return the text of the file."""
    compact = msgspec.json.encode(schema_of(document), order="sorted")
    return msgspec.json.format(compact, indent=2).decode() + "\n"


def _alike(schema: Any) -> Any:
    """Return what all versions make of the types.

    Python indents descriptions until 3.13; msgspec says which keys an object may have from 0.23 on.
    """
    if isinstance(schema, list):
        return [_alike(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: inspect.cleandoc(value) if key == "description" and isinstance(value, str) else _alike(value)
        for key, value in schema.items()
        if key != "propertyNames"
    }


if __name__ == "__main__":
    for kind in _SHIPPED:
        shipped(kind).write_text(schema_text(kind), encoding="utf-8")
