"""Files from anywhere, read within limits: the one place where JSON and TOML on disk become values.

In: a path. Out: an open file, bytes, or a decoded value; or an error that can be explained. Only regular
files with something in them are opened, so that nothing is waited for: a pipe may have no writer, a
device no end, and what /proc offers says that it is empty. The time that reading takes follows from the
limits on size and depth.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import InputError

__all__ = [
    "MOST_DEPTH", "decode_json", "is_file", "json_of", "named", "open_file", "path_of",
    "project_table", "read_file", "read_json", "read_toml", "table_in",
]  # fmt: skip

MOST_BYTES = 256 * 2**20
"""Of our own documents: the largest are megabytes."""
MOST_TOML_BYTES = 2**20
MOST_DEPTH = 64
"""Lists and tables within each other; our own documents need ten."""

_T = TypeVar("_T")

_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_WRITTEN_OUT = re.compile(r"\\ud(c[89a-f][0-9a-f])")
"""A byte of a file's name that is not UTF-8: Python has a lone surrogate for it, which JSON cannot hold."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"{}[]")))
_LONG_KEY = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]+[ \t]*\.[ \t]*){{{MOST_DEPTH}}}")
"""A key of many parts is a table within a table within a table, and costs the square of their number."""


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a regular file; False also for a name that no file can have."""
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def open_file(path: str | os.PathLike[str]) -> FileIO:
    """Open a regular file that is not empty, for reading.

    Raises:
        InputError: there is none, it is empty or of another kind, or it cannot be opened.
    """
    try:
        # Looked at first: opening alone can do something to a device.
        _must_be_regular(path, Path(path).stat().st_mode)
        file = FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        state = os.fstat(file.fileno())
        _must_be_regular(path, state.st_mode)
        if not state.st_size:
            raise InputError(f"{path} is empty.")
    except BaseException:
        file.close()
        raise
    return file


def _must_be_regular(path: str | os.PathLike[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise InputError(f"{path} is {kind}, not a file.", remedy="Write it to a file first.")


def _unreadable(path: str | os.PathLike[str], error: OSError | ValueError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} does not exist.", remedy="Check the path.")
    why = error.strerror if isinstance(error, OSError) else None
    return InputError(f"{path} cannot be read: {why or error}.")


def read_file(path: str | os.PathLike[str], *, most_bytes: int = MOST_BYTES) -> bytes:
    """Return what is in a regular file.

    Raises:
        InputError: it cannot be read, is empty or of another kind, or is too large.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise InputError(
                f"{path} has {size / 1e6:.0f} MB; such a file has at most {most_bytes / 1e6:.0f} MB."
            )
        parts = []
        try:
            # Not one byte more than was looked at: the file may be growing.
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
        except OSError as error:
            raise _unreadable(path, error) from None
    return b"".join(parts)


def decode_json(data: bytes, kind: type[_T]) -> _T:
    """Return the value of a JSON text.

    Raises:
        msgspec.DecodeError: it is no JSON, is nested too deeply, or holds another kind of value.
    """
    try:
        value = msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise _too_deep() from None
    except UnicodeDecodeError:
        raise msgspec.DecodeError("its text is not UTF-8") from None
    if _is_deeper(data, MOST_DEPTH):
        raise _too_deep()
    return value


def _too_deep() -> msgspec.DecodeError:
    return msgspec.DecodeError(f"it is nested more than {MOST_DEPTH} deep")


def _is_deeper(data: bytes, depth: int) -> bool:
    """Return whether valid JSON is nested deeper than that: each pass takes the innermost brackets away."""
    for text in (data, _STRING.sub(b"", data)):
        brackets = text.translate(None, _NO_BRACKETS)
        for _ in range(depth):
            if not brackets:
                return False
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return False
        # What is left may be brackets inside strings; the second look is without them.
    return True


def read_json(path: str | os.PathLike[str], kind: type[_T]) -> _T:
    """Return the value in a JSON file.

    Raises:
        InputError: the file cannot be read, or is none that may be read.
        msgspec.DecodeError: it is no JSON, is nested too deeply, or holds another kind of value.
    """
    return decode_json(read_file(path), kind)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file; an empty one has none.

    Raises:
        InputError: the file cannot be read, is no TOML, or is nested too deeply.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if is_file(path) and not path.stat().st_size:
        return {}
    try:
        text = read_file(path, most_bytes=MOST_TOML_BYTES).decode("utf-8")
        if _LONG_KEY.search(text) is not None:
            raise RecursionError
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{path} is not valid TOML: it is nested more than {MOST_DEPTH} deep.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from None
    return tables


def project_table(folder: Path, *keys: str) -> tuple[Any, Path] | None:
    """Return what stands under `keys` in the nearest pyproject.toml that has them, and that file.

    Looks in a folder and upwards, to the root of a repository.

    Raises:
        InputError: a file cannot be read, or is no TOML.
    """
    folder = folder.absolute()
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file() and (found := table_in(file, *keys)) is not None:
            return found, file
        if (place / ".git").exists():
            break
    return None


def table_in(file: Path, *keys: str) -> Any:
    """Return what stands under `keys` in a TOML file, or None.

    Raises:
        InputError: the file cannot be read, or is no TOML.
    """
    data: Any = read_toml(file)
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


# -- names that are not UTF-8, in documents that must be ------------------------------------------------


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
