"""verify.json: what was measured, and what a resumed verification starts from.

In: a `Verification`, or the path of one. Out: its text, or the verification. The matching JSON Schema
ships as `model/verify.schema.json`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import InputError
from ..model.verify import VERIFY_SCHEMA, Verification
from .json import encodable

__all__ = ["VERIFY_FILE", "load", "render"]

VERIFY_FILE = "verify.json"


class _Head(msgspec.Struct):
    """Only the number that says whether the rest can be read."""

    schema: int


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
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {file}: {error.strerror or error}.") from None
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema <= VERIFY_SCHEMA:
            return msgspec.json.decode(data, type=Verification)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a verify.json: {error}.") from None
    raise InputError(
        f"{file} has schema {schema}; this version reads up to {VERIFY_SCHEMA}.",
        remedy="Upgrade torch-bottleneck to the version that wrote it.",
    )
