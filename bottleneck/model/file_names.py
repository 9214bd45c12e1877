r"""Names of files that are not UTF-8, in documents that must be.

In: records with names as Python holds them, a byte that is not UTF-8 as a lone surrogate. Out: JSON in which
such a byte is written out as \udcXX; and from such text the name again, for whoever opens the file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["json_of", "named", "path_of"]

_WRITTEN_OUT = re.compile(r"\\ud(c[89a-f][0-9a-f])")


def json_of(record: object) -> bytes:
    """Return a record or plain data as JSON."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(record)))


def named(text: str) -> str:
    """Return the name that a document holds, as Python and the system know it."""
    return _WRITTEN_OUT.sub(lambda found: chr(int("d" + found[1], 16)), text)


def path_of(text: str) -> Path:
    """Return the path that a document holds."""
    return Path(named(text))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    return value
