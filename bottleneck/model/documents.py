"""Our documents: run.json, diagnosis.json, verify.json, watch.json read back, and text files written whole.

In: a path, or a record. Out: the record, or an error that says what is wrong and what to do; or its text.
The JSON Schemas of the last three are next to this file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import InputError, RunFolderError
from ..files import decode_json, is_file, json_of, read_file
from .diagnosis import SCHEMA, Diagnosis
from .run import RUN_FORMAT, Run
from .verify import VERIFY_SCHEMA, Verification
from .watch import WATCH_FILE, WATCH_SCHEMA, Watch

RUN_FILE = "run.json"
DIAGNOSIS_FILE = "diagnosis.json"
VERIFY_FILE = "verify.json"

_Document = TypeVar("_Document")


class _Head(msgspec.Struct):
    """Only the number that decides whether the rest can be read."""

    schema: int


class _Stamp(msgspec.Struct):
    """The part of run.json that every version of the tool can read."""

    format: int
    tool_version: str = ""


def document_text(document: msgspec.Struct) -> str:
    """Return the record as indented JSON."""
    return msgspec.json.format(json_of(document), indent=2).decode() + "\n"


def run_files(folder: Path) -> list[Path]:
    """Return the run.json of a run folder, or those of its ranks, the first one first."""
    files = (folder / RUN_FILE, *sorted(folder.glob(f"rank*/{RUN_FILE}")))
    return [file for file in files if is_file(file)]


def read_run(file: Path) -> Run:
    """Read run.json.

    Raises:
        RunFolderError: unreadable, cut off, not ours, or of a newer format.
    """
    try:
        data = read_file(file)
    except InputError as error:
        raise RunFolderError(error.message, remedy=error.remedy) from None
    try:
        stamp = decode_json(data, _Stamp)
    except msgspec.ValidationError:
        raise RunFolderError(
            f"{file} has no format number: it was not written by bottleneck.",
            remedy="Give a run folder, a trace file or a folder of traces.",
        ) from None
    except msgspec.DecodeError as error:
        raise RunFolderError(
            f"{file} is cut off or not JSON ({len(data)} bytes): {error}.",
            remedy="Run diagnose again; a trace in this folder can still be analysed by itself.",
        ) from None
    if stamp.format > RUN_FORMAT:
        writer = f" by bottleneck {stamp.tool_version}" if stamp.tool_version else ""
        wanted = stamp.tool_version or "a newer version"
        raise RunFolderError(
            f"{file} has format {stamp.format}, written{writer};"
            f" this version reads formats up to {RUN_FORMAT}.",
            remedy=f"Use bottleneck {wanted} or later to read it.",
        )
    try:
        return decode_json(data, Run)
    except msgspec.DecodeError as error:
        raise RunFolderError(f"{file} does not hold what format {stamp.format} says: {error}.") from None


def load_diagnosis(path: str | Path) -> Diagnosis:
    """Read a diagnosis from a file, or from the diagnosis.json in a run folder.

    Raises:
        InputError: there is none, it is not one, or a newer version of the tool wrote it.
    """
    path = Path(path)
    if path.is_dir():
        folder, path = path, path / DIAGNOSIS_FILE
        if not path.exists():
            raise InputError(
                f"{folder} holds no diagnosis.json.",
                remedy=f"Make one with: bottleneck analyze {folder} --out {folder}",
            )
    folder = path.parent
    again = ""
    if run_files(folder):
        again = f"Make it again with: bottleneck analyze {folder} --out {folder}"
    return _read(path, Diagnosis, newest=SCHEMA, name=DIAGNOSIS_FILE, again=again)


def load_verification(path: Path) -> Verification:
    """Read a verification from a file, or from the verify.json in a folder.

    Raises:
        InputError: there is none, it is not one, or a newer version of the tool wrote it.
    """
    file = path / VERIFY_FILE if path.is_dir() else path
    return _read(file, Verification, newest=VERIFY_SCHEMA, name=VERIFY_FILE)


def load_watch(path: Path) -> Watch:
    """Read the account of a job from a file, or from the watch.json in a folder.

    Raises:
        InputError: there is none, it is not one, or a newer version of the tool wrote it.
    """
    file = path / WATCH_FILE if path.is_dir() else path
    return _read(file, Watch, newest=WATCH_SCHEMA, name=WATCH_FILE)


def _read(path: Path, kind: type[_Document], *, newest: int, name: str, again: str = "") -> _Document:
    """Read a document of ours that bears a schema number.

    Raises:
        InputError: it cannot be read, is not one, or a newer version of the tool wrote it.
    """
    data = read_file(path)
    try:
        schema = decode_json(data, _Head).schema
        if schema <= newest:
            return decode_json(data, kind)
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a {name}: {error}.", remedy=again) from None
    raise InputError(
        f"{path} has schema {schema}; this version reads up to {newest}.",
        remedy="Upgrade torch-bottleneck to the version that wrote it.",
    )


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the whole new one.

    A device, a pipe or a link (/dev/null, /dev/stdout) is written into, since replacing it would
    break it for everyone.

    Raises:
        InputError: the place cannot be written to.
    """
    try:
        if _is_written_into(path):
            with path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                file.write(text)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                file.write(text)
            # mkstemp makes the file private; a report is as readable as any other file of the user's.
            Path(temporary).chmod(0o666 & ~_umask())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror or error}.", remedy="Choose another place with --out."
        ) from None


def expect_writable(path: Path) -> None:
    """Raise the error that `write_text` would raise later; nothing is created.

    Raises:
        InputError: the place cannot be written to.
    """
    if path.is_dir():
        raise InputError(f"Cannot write {path}: it is a folder.", remedy="Name a file.")
    if _is_written_into(path):
        if path.exists() and not os.access(path, os.W_OK):
            raise InputError(f"Cannot write {path}: no permission.", remedy="Name another file.")
        return
    nearest = next(place for place in path.absolute().parents if place.exists())
    if not nearest.is_dir():
        raise InputError(f"Cannot write {path}: {nearest} is not a folder.", remedy="Name another file.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"Cannot write {path}: no permission in {nearest}.", remedy="Name another file.")


def _is_written_into(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_file())


def _umask() -> int:
    """Read the process's umask; POSIX offers no way but to set it and set it back."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
