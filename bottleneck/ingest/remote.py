"""Runs and traces that lie elsewhere: s3://, gs://, hdfs://, memory:// and whatever else fsspec knows.

In: an address of a file, a folder, or a pattern. Out: what lies there of each rank; and the files of one
rank, brought into a folder of this machine. Nothing but names is read before.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import InputError, UsageError

_ADDRESS = re.compile(r"[a-zA-Z][\w+.-]*(?:::[\w+.-]+)*://.")
_BARE = (".json", ".json.gz", ".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
_OF_A_RUN = re.compile(r"[^/]+\.json|(?:trace|memory)/[^/]+")
"""Files of a process's run folder, and not the reports and copies beside them."""
_CHUNK_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFiles:
    """The files of one rank."""

    base: str
    """Address of the folder that their names are told from."""
    name: str
    """Of its run folder, or of its trace."""
    files: tuple[str, ...]

    @property
    def address(self) -> str:
        """Of its run folder, or of its trace."""
        return f"{self.base}/{self.name}" if self.is_bare else self.base

    @property
    def is_bare(self) -> bool:
        """It is a trace without a run folder."""
        return self.files == (self.name,)


def is_address(text: object) -> bool:
    """Return whether this is an address and no path."""
    return isinstance(text, str) and _ADDRESS.match(text) is not None


def find(address: str) -> list[RemoteFiles]:
    """Return what lies there, a piece per rank, in the order of names.

    Raises:
        InputError: nothing that can be analysed lies there, or it cannot be reached.
        UsageError: a package is missing.
    """
    system, place = _system(address)
    try:
        places = sorted(system.glob(place)) if re.search(r"[*?\[]", place) else [place]
        files = sorted({file for each in places for file in system.find(each)})
    except Exception as error:  # noqa: BLE001  # each of fsspec's systems has errors of its own
        raise _unreachable(address, error) from None
    folders = [
        file.removesuffix("/run.json")
        for file in files
        if file.endswith("/run.json") and "/others/" not in file
    ]
    protocol = address.partition("://")[0]
    found = [*_of_runs(files, folders, protocol)] or [
        RemoteFiles(base=f"{protocol}://{file.rpartition('/')[0]}", name=PurePosixPath(file).name, files=(
            PurePosixPath(file).name,))
        for file in files
        if file.endswith(_BARE)
    ]  # fmt: skip
    runs = {folder.rpartition("/")[0] for folder in folders} if len(folders) > 1 else set()
    if len(runs) > 1:
        raise InputError(f"{address} contains {len(runs)} runs.", remedy="Give one of them.")
    if not found:
        raise InputError(f"{address} holds neither a run nor a trace.", remedy="Check the address.")
    return found


def _of_runs(files: list[str], folders: list[str], protocol: str) -> Iterator[RemoteFiles]:
    for folder in folders:
        inside = [file.removeprefix(f"{folder}/") for file in files if file.startswith(f"{folder}/")]
        yield RemoteFiles(
            base=f"{protocol}://{folder}",
            name=PurePosixPath(folder).name,
            files=tuple(file for file in inside if _OF_A_RUN.fullmatch(file)),
        )


def fetch(rank: RemoteFiles, into: Path) -> Path:
    """Copy the files of a rank into a folder, and return its run folder there, or its trace.

    Raises:
        InputError: they cannot be reached, or there is no room.
    """
    system, place = _system(rank.base)
    here = into / rank.name
    top = into if rank.is_bare else here
    for file in rank.files:
        target = top / file
        if not target.resolve().is_relative_to(into.resolve()):
            raise InputError(f"{rank.base}/{file} has a name that leads elsewhere.")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with system.open(f"{place}/{file}", "rb") as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, _CHUNK_BYTES)
        except Exception as error:  # noqa: BLE001  # as above
            raise _unreachable(f"{rank.base}/{file}", error) from None
    return here


def state(rank: RemoteFiles) -> tuple[str, ...]:
    """Return what changes when the files of a rank do: the store's own marks of them.

    Raises:
        InputError: they cannot be reached.
    """
    system, place = _system(rank.base)
    try:
        return tuple(f"{rank.base}/{file} {system.ukey(f'{place}/{file}')}" for file in rank.files)
    except Exception as error:  # noqa: BLE001  # as above
        raise _unreachable(rank.address, error) from None


def _system(address: str) -> tuple[Any, str]:
    """Return fsspec's file system for an address, and the place in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError(
            f"{address} is read with fsspec, which is not installed.",
            remedy="pip install 'torch-bottleneck[cluster]'",
        ) from None
    try:
        system, place = url_to_fs(address)
    except (ImportError, ValueError) as error:  # fsspec names the package, or the protocol
        raise UsageError(f"{address} cannot be read: {error}.") from None
    except Exception as error:  # noqa: BLE001  # as above
        raise _unreachable(address, error) from None
    return system, str(place).rstrip("/")


def _unreachable(address: str, error: Exception) -> InputError:
    why = str(error).partition("\n")[0] or type(error).__name__
    return InputError(f"{address} cannot be read: {why}", remedy="Check the address and your credentials.")
