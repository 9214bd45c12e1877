"""Loads an untrusted pickle of plain data: containers, numbers and text of the language itself.

In: a path, plain or gzip. Out: dicts, lists, tuples, sets, str, bytes, int, float, bool, None. Every
name that the pickle asks for is refused before it is looked up, so that nothing can be called or
imported; a pickle that asks for absurd amounts of memory meets a limit that turns it into an error.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import pickle
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from ..errors import InputError, SnapshotError
from ..files import open_file

_GZIP = b"\x1f\x8b"
_PROTO = b"\x80"
_BYTES_PER_BYTE = 80
"""Memory that a real snapshot takes when loaded, per byte of its pickle: 15 to 40 measured."""
_PACKED = 20
"""How much smaller gzip makes a snapshot: 10 to 20 times measured."""
_SPARE_BYTES = 2 * 2**30

_DAMAGE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What the unpickler raises on bytes that no pickler wrote."""


class _Plain(pickle.Unpickler):
    """Knows no classes and no functions."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(
            f"The pickle would create {module}.{name}; a memory snapshot contains only plain data.",
            remedy="It was not loaded, because such a file can run any program. Check where it comes from.",
        )

    def persistent_load(self, _pid: object) -> NoReturn:
        raise SnapshotError("The pickle refers to objects outside itself; a memory snapshot does not.")


def looks_like_pickle(path: Path) -> bool:
    """Return whether a file begins as a pickle of protocol 2 or later, gzipped or not."""
    with contextlib.suppress(InputError, OSError, EOFError, zlib.error), _opened(path) as file:
        head = file.read(2)
        return head[:1] == _PROTO and len(head) == 2 and head[1] <= pickle.HIGHEST_PROTOCOL
    return False


def load_plain(path: str | os.PathLike[str]) -> Any:
    """Load a pickle that may build containers and scalars only.

    Raises:
        InputError: the file does not exist or cannot be read.
        SnapshotError: it is no pickle, is cut off, or wants to build anything else.
    """
    place = Path(path)
    with open_file(place) as file:
        size = os.fstat(file.fileno()).st_size
    try:
        packed = _is_packed(place)
        with _opened(place) as file, _memory_limit(size * (_PACKED if packed else 1)):
            return _Plain(file, encoding="utf-8", errors="replace").load()
    except InputError as error:
        raise type(error)(f"{place}: {error.message}", remedy=error.remedy) from None
    except MemoryError:
        raise SnapshotError(
            f"{place} needs more memory than its {size} bytes can explain, or than the machine has.",
            remedy="Record with fewer max_entries, or analyse it on a larger machine.",
        ) from None
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror or error}.") from None
    except (EOFError, zlib.error):
        raise SnapshotError(
            f"{place} is cut off ({size} bytes).", remedy="The program probably ended while writing it."
        ) from None
    except _DAMAGE as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise SnapshotError(f"{place} is not a pickle, or it is damaged: {reason}.") from None


def _is_packed(path: Path) -> bool:
    with open_file(path) as file:
        return file.read(2) == _GZIP


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    packed = _is_packed(path)
    with io.BufferedReader(open_file(path)) as file:
        if packed:
            with gzip.GzipFile(fileobj=file) as inner:
                yield inner  # type: ignore[misc]
        else:
            yield file


@contextlib.contextmanager
def _memory_limit(size: int) -> Iterator[None]:
    """Bound what loading may take: a few bytes of pickle can ask for a table of 64 GB."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        wanted = pages * resource.getpagesize() + size * _BYTES_PER_BYTE + _SPARE_BYTES
        limit = wanted if before[0] == resource.RLIM_INFINITY else min(wanted, before[0])
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
