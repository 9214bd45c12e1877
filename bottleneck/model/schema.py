"""The JSON Schema of diagnosis.json, made from the types and shipped beside them.

In: nothing. Out: the schema as a dict or as the text of `diagnosis.schema.json`, which
`python -m torch_bottleneck.model.schema` writes anew and a test keeps fresh.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from .diagnosis import SCHEMA, Diagnosis

__all__ = ["SCHEMA_FILE", "diagnosis_schema", "schema_text"]

SCHEMA_FILE = Path(__file__).with_name("diagnosis.schema.json")


def diagnosis_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a diagnosis."""
    schema = msgspec.json.schema(Diagnosis)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"bottleneck diagnosis, schema {SCHEMA}",
        **schema,
    }


def schema_text() -> str:
    """Return the text of `diagnosis.schema.json`."""
    compact = msgspec.json.encode(diagnosis_schema(), order="sorted")
    return msgspec.json.format(compact, indent=2).decode() + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
