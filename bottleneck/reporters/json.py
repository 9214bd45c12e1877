"""diagnosis.json: the contract that other programs read and every other report is rendered from.

In: a diagnosis. Out: its text, which `model.documents` reads back. The matching JSON Schema ships as
`model/diagnosis.schema.json`.
"""

from __future__ import annotations

import re

import msgspec

from ..model.compare import Comparison
from ..model.diagnosis import Diagnosis
from ..model.documents import document_text

__all__ = ["document_text", "render", "render_comparison"]

# Lists of numbers, one per line, and lists of those. JSON's strings hold no line break, so none of
# this can be inside one.
_NUMBERS = re.compile(r"\[\n\s+(?:(?:-?\d[\d.eE+-]*|null),?\n\s+)+\]")
_ROWS = re.compile(r"\[\n\s+(?:\[[-\d.eE+ ,]*\],?\n\s+)+\]")


def _on_one_line(numbers: re.Match[str]) -> str:
    """Columns and spans would otherwise take one line per number."""
    return f"[{' '.join(numbers[0][1:-1].split())}]"


def render(diagnosis: Diagnosis) -> str:
    """Return the diagnosis as indented JSON."""
    text = document_text(diagnosis)
    for lists in (_NUMBERS, _ROWS):
        text = lists.sub(_on_one_line, text)
    return text


def render_comparison(comparison: Comparison) -> str:
    """Return a comparison as indented JSON, its counters by name."""
    data = msgspec.json.encode(comparison, order="deterministic")
    return msgspec.json.format(data, indent=2).decode() + "\n"
