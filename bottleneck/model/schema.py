"""The JSON Schemas of diagnosis.json, verify.json and watch.json, made from the types, shipped beside.

In: nothing. Out: a schema as a dict or as the text of `diagnosis.schema.json`, or of one of the others, which
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

__all__ = [
    "SCHEMA_FILE",
    "VERIFY_SCHEMA_FILE",
    "WATCH_SCHEMA_FILE",
    "diagnosis_schema",
    "schema_text",
    "verify_schema",
    "verify_schema_text",
    "watch_schema",
    "watch_schema_text",
]

SCHEMA_FILE = Path(__file__).with_name("diagnosis.schema.json")
VERIFY_SCHEMA_FILE = Path(__file__).with_name("verify.schema.json")
WATCH_SCHEMA_FILE = Path(__file__).with_name("watch.schema.json")


def diagnosis_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a diagnosis."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"bottleneck diagnosis, schema {SCHEMA}",
        **_described_alike(msgspec.json.schema(Diagnosis)),
    }


def schema_text() -> str:
    """Return the text of `diagnosis.schema.json`."""
    return _text(diagnosis_schema())


def verify_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a verification."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"bottleneck verification, schema {VERIFY_SCHEMA}",
        **_described_alike(msgspec.json.schema(Verification)),
    }


def verify_schema_text() -> str:
    """Return the text of `verify.schema.json`."""
    return _text(verify_schema())


def watch_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the account of a job."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"bottleneck watch, schema {WATCH_SCHEMA}",
        **_described_alike(msgspec.json.schema(Watch)),
    }


def watch_schema_text() -> str:
    """Return the text of `watch.schema.json`."""
    return _text(watch_schema())


def _text(schema: dict[str, Any]) -> str:
    compact = msgspec.json.encode(schema, order="sorted")
    return msgspec.json.format(compact, indent=2).decode() + "\n"


def _described_alike(schema: Any) -> Any:
    """Return the schema with its descriptions unindented, as Python 3.13 and newer keep docstrings."""
    if isinstance(schema, list):
        return [_described_alike(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: inspect.cleandoc(value)
        if key == "description" and isinstance(value, str)
        else _described_alike(value)
        for key, value in schema.items()
    }


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    VERIFY_SCHEMA_FILE.write_text(verify_schema_text(), encoding="utf-8")
    WATCH_SCHEMA_FILE.write_text(watch_schema_text(), encoding="utf-8")
