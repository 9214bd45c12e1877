"""Text files that are whole or not there.

In: a path, and text. Out: the file, or an error that says why not.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from ..errors import InputError

__all__ = ["expect_writable", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old file or the whole new one.

    A device, a pipe or a link (/dev/null, /dev/stdout) is written into: what takes its place would
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
    """Say now what `write_text` would stumble over after minutes of running; nothing is created.

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
