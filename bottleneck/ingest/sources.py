"""Opens a trace file whatever it is packed in, and gives its bytes piece by piece.

In: a path. Out: a `Source` to read from, plain or inflated, that never raises at a cut: a damaged
or truncated compressed stream ends early with `damaged` saying so. What is recognisably not JSON
(a pickle, an archive, an empty file, a folder) is refused here with what it is.

Inflating uses the fastest of isal, zlib-ng and the standard library that is installed; all three
have the interface of `zlib.decompressobj`.
"""

from __future__ import annotations

import importlib
import os
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Protocol

from ..errors import NotATraceError
from ..files import is_file, open_file

_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31
"""`wbits` of zlib for a stream with a gzip header."""
_COMPRESSED_READ = 128 * 1024
_INFLATERS = ("isal.isal_zlib", "zlib_ng.zlib_ng", "zlib")

_FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a zip archive", "Unpack it and give the .json file inside."),
    (b"BZh", "a bzip2 archive", "Unpack it first (bunzip2)."),
    (b"\xfd7zXZ", "an xz archive", "Unpack it first (unxz)."),
    (b"\x28\xb5\x2f\xfd", "a zstandard archive", "Unpack it first (unzstd)."),
    (b"\x80\x02", "a Python pickle", "Give a memory snapshot as a separate input, not as a trace."),
    (b"\x80\x03", "a Python pickle", "Give a memory snapshot as a separate input, not as a trace."),
    (b"\x80\x04", "a Python pickle", "Give a memory snapshot as a separate input, not as a trace."),
    (b"\x80\x05", "a Python pickle", "Give a memory snapshot as a separate input, not as a trace."),
    (b"\x7fELF", "a program", ""),
    (b"\x89PNG", "an image", ""),
    (b"SQLite format 3", "an SQLite database", "Nsight Systems exports are not read."),
)


PERFETTO_SUFFIXES = (".pftrace", ".pftrace.gz", ".perfetto-trace")
_PERFETTO = (
    b"\n",
    "a trace in Perfetto's own format",
    'Export it as JSON: prof.export_chrome_trace("trace.json").',
)


class _Inflater(Protocol):
    """The part of `zlib.decompressobj` that is used here."""

    eof: bool
    unused_data: bytes
    unconsumed_tail: bytes

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def _inflating() -> ModuleType:
    for name in _INFLATERS:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise AssertionError("zlib is part of the standard library")


class Source:
    """Bytes of one trace file, inflated if need be.

    Attributes:
        damaged: why the stream ended before its end; empty while it has not.
    """

    def __init__(self, file: FileIO, *, compressed: bool) -> None:
        self._file = file
        self._zlib = _inflating()
        self._inflater = self._new_inflater() if compressed else None
        self._pending = b""
        self.damaged = ""

    def _new_inflater(self) -> _Inflater:
        made: _Inflater = self._zlib.decompressobj(wbits=_GZIP_FORMAT)
        return made

    def readinto(self, target: memoryview) -> int:
        """Fill as much of `target` as one read gives; 0 at the end of the stream."""
        if self._inflater is None:
            try:
                return self._file.readinto(target) or 0
            except OSError as error:
                self.damaged = f"reading it failed ({error.strerror or error})"
                return 0
        data = self._inflate(len(target))
        target[: len(data)] = data
        return len(data)

    def _inflate(self, size: int) -> bytes:
        while self._inflater is not None and not self.damaged:
            if self._inflater.eof:
                rest = self._inflater.unused_data.lstrip(b"\0") or self._packed(1)
                if not rest:
                    return b""
                self._inflater = self._new_inflater()
                self._pending = rest
            data = self._pending or self._packed(_COMPRESSED_READ)
            if not data:
                self._end("the compressed stream ends early")
                return b""
            try:
                out = self._inflater.decompress(data, size)
            except self._zlib.error as error:
                self.damaged = f"the compressed stream is damaged ({error})"
                return b""
            self._pending = self._inflater.unconsumed_tail
            if out:
                return out
        return b""

    def _packed(self, size: int) -> bytes:
        try:
            return self._file.read(size) or b""
        except OSError as error:
            self._end(f"reading it failed ({error.strerror or error})")
            return b""

    def _end(self, why: str) -> None:
        """Keep the first reason."""
        self.damaged = self.damaged or why

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_source(path: str | os.PathLike[str]) -> Source:
    """Open a trace file.

    Raises:
        NotATraceError: the file is empty, a folder, or of a recognised foreign kind.
        InputError: the file does not exist or cannot be read.
    """
    name = os.fspath(path)
    if Path(name).is_dir():
        raise NotATraceError(f"{name} is a folder.", remedy="Give a trace file or a run folder.")
    if is_file(name) and not Path(name).stat().st_size:
        raise NotATraceError(f"{name} is empty.", remedy="The profiler was probably killed while writing it.")
    file = open_file(name)
    magic = file.read(16) or b""
    # Its first packet begins as white space does; JSON goes on with more of that, or with a bracket.
    is_perfetto = name.endswith(PERFETTO_SUFFIXES) or (magic[:1] == b"\n" and magic.strip()[:1] not in b"{[")
    foreign = (_PERFETTO,) if is_perfetto else (row for row in _FOREIGN if magic.startswith(row[0]))
    for _, what, remedy in foreign:
        file.close()
        raise NotATraceError(f"{name} is {what}, not a Kineto trace.", remedy=remedy)
    file.seek(0)
    return Source(file, compressed=magic.startswith(_GZIP))
