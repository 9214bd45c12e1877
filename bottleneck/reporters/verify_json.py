"""verify.json: what was measured, and what a resumed verification starts from.

In: a `Verification`, or the path of one. Out: its text, or the verification. The matching JSON Schema
ships as `model/verify.schema.json`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..model.verify import VERIFY_SCHEMA, Verification
from .json import encodable, read_document

__all__ = ["VERIFY_FILE", "load", "render"]

VERIFY_FILE = "verify.json"


def render(verification: Verification) -> str:
    """Return the verification as indented JSON."""
    try:
        data = msgspec.json.encode(verification)
    except UnicodeEncodeError:
        # A path or argument that was no UTF-8 reaches Python as lone surrogates, which JSON cannot hold.
        data = msgspec.json.encode(encodable(msgspec.to_builtins(verification)))
    return msgspec.json.format(data, indent=2).decode() + "\n"


def load(path: Path) -> Verification:
    """Read a verification from a file, or from the verify.json in a folder.

    Raises:
        InputError: there is none, it is not one, or a newer version of the tool wrote it.
    """
    file = path / VERIFY_FILE if path.is_dir() else path
    return read_document(file, Verification, newest=VERIFY_SCHEMA, name=VERIFY_FILE)
