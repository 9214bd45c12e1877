"""diagnosis.json: the contract that other programs read and every other report is rendered from.

In: a diagnosis, or the path of a diagnosis.json or of the folder that holds it. Out: its text, or the
diagnosis. The matching JSON Schema ships as `model/diagnosis.schema.json`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..errors import InputError
from ..model.diagnosis import SCHEMA, Diagnosis

__all__ = ["encodable", "load", "read_document", "render"]

Document = TypeVar("Document")


# Lists of numbers, one per line, and lists of those. JSON's strings hold no line break, so none of
# this can be inside one.
_NUMBERS = re.compile(r"\[\n\s+(?:(?:-?\d[\d.eE+-]*|null),?\n\s+)+\]")
_ROWS = re.compile(r"\[\n\s+(?:\[[-\d.eE+ ,]*\],?\n\s+)+\]")


def _on_one_line(numbers: re.Match[str]) -> str:
    """Columns and spans would otherwise take one line per number."""
    return f"[{' '.join(numbers[0][1:-1].split())}]"


class _Head(msgspec.Struct):
    """Only the number that says whether the rest can be read."""

    schema: int


def render(diagnosis: Diagnosis, *, verbose: bool = False) -> str:
    """Return the diagnosis as indented JSON; always the whole of it, so `verbose` changes nothing."""
    del verbose
    try:
        data = msgspec.json.encode(diagnosis)
    except UnicodeEncodeError:
        # A path or argument that was no UTF-8 reaches Python as lone surrogates, which JSON cannot hold.
        data = msgspec.json.encode(encodable(msgspec.to_builtins(diagnosis)))
    text = msgspec.json.format(data, indent=2).decode()
    for lists in (_NUMBERS, _ROWS):
        text = lists.sub(_on_one_line, text)
    return text + "\n"


def load(path: str | Path) -> Diagnosis:
    """Read a diagnosis from a file, or from the diagnosis.json in a run folder.

    Raises:
        InputError: there is none, it is not one, or a newer version of the tool wrote it.
    """
    path = Path(path)
    if path.is_dir():
        folder, path = path, path / "diagnosis.json"
        if not path.exists():
            raise InputError(
                f"{folder} holds no diagnosis.json.",
                remedy=f"Make one with: bottleneck analyze {folder} --out {folder}",
            )
    folder = path.parent
    again = ""
    if (folder / "run.json").is_file() or any(folder.glob("rank*/run.json")):
        again = f"Make it again with: bottleneck analyze {folder} --out {folder}"
    return read_document(path, Diagnosis, newest=SCHEMA, name="diagnosis.json", again=again)


def read_document(path: Path, kind: type[Document], *, newest: int, name: str, again: str = "") -> Document:
    """Read a document of ours that bears a schema number.

    Args:
        path: the file.
        kind: what it holds.
        newest: the highest schema number that this version reads.
        name: what such a file is called.
        again: what to do about a damaged one.

    Raises:
        InputError: it cannot be read, is not one, or a newer version of the tool wrote it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema <= newest:
            return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a {name}: {error}.", remedy=again) from None
    raise InputError(
        f"{path} has schema {schema}; this version reads up to {newest}.",
        remedy="Upgrade torch-bottleneck to the version that wrote it.",
    )


def encodable(value: Any) -> Any:
    r"""Return the same document with every lone surrogate written out as \udcXX."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {encodable(key): encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encodable(item) for item in value]
    return value
