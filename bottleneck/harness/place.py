"""Where a run's files go, and which of several ranks puts them together.

In: `--out`, the script's name, and the environment that torchrun sets. Out: a `Place`. Runs in the
parent process; no torch here.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .store import partial_name

__all__ = ["Place", "choose_place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The folder of one run, as seen by one rank."""

    folder: Path
    """Final name."""
    process: str
    """Name of this rank's folder inside while the run is on: "main", or "rank0", "rank1", ..."""
    leads: bool
    """This rank's parent process puts the folder together and reports."""
    ranks: tuple[int, ...] = (0,)
    """Ranks that share the folder."""

    @property
    def working(self) -> Path:
        """Temporary name: process folders are written in it."""
        return partial_name(self.folder)

    @property
    def world_size(self) -> int:
        """How many ranks share the folder."""
        return len(self.ranks)

    def prepare(self) -> None:
        """Create the working folder.

        Raises:
            InputError: the place is taken or cannot be written.
        """
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise InputError(
                f"{self.folder} exists already.", remedy="Name another folder with --out, or remove it."
            )
        try:
            self.working.mkdir(parents=True, exist_ok=True)
            probe = self.working / f".{self.process}.probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise InputError(
                f"Cannot write in {self.folder.parent}: {error.strerror}.",
                remedy="Choose a place with --out.",
            ) from None


def choose_place(out: Path | None, *, target: str, is_module: bool) -> Place:
    """Return where this run goes.

    All ranks that torchrun starts must come to the same name without talking to each other: with
    no `--out` it says when their common parent started. Ranks on other machines have another
    one, so there each machine gets its own folder.
    """
    rank, world_size = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if world_size <= 1:
        folder = out or _claimed(f"{_stem(target, is_module)}-{time.strftime('%Y%m%d-%H%M%S')}")
        return Place(folder=folder.absolute(), process="main", leads=True)
    if out is not None:
        folder, ranks = out, tuple(range(world_size))
    else:
        local = _number("LOCAL_RANK", rank)
        count = _number("LOCAL_WORLD_SIZE", world_size)
        ranks = tuple(range(rank - local, rank - local + count))
        name = f"{_stem(target, is_module)}-{_common_stamp()}"
        if count < world_size:
            name += f"-node{_number('GROUP_RANK', rank // count)}"
        folder = Path("reports") / name
    return Place(folder=folder.absolute(), process=f"rank{rank}", leads=rank == ranks[0], ranks=ranks)


def _claimed(name: str) -> Path:
    """Return a folder of that name, with a number behind it where another run has it already.

    Two runs that begin in the same second (tasks of srun, a shell's loop) must not write into each
    other's folder: making the working folder decides whose it is.
    """
    reports = Path("reports").absolute()
    for number in itertools.count(1):
        folder = reports / (name if number == 1 else f"{name}-{number}")
        if folder.exists():
            continue
        try:
            partial_name(folder).mkdir(parents=True)
        except FileExistsError:
            if reports.is_dir():
                continue
        except OSError:
            pass  # `prepare` says what is wrong
        return folder
    raise AssertionError("unreachable")


def _stem(target: str, is_module: bool) -> str:
    name = target.rpartition(".")[2] if is_module else Path(target).stem
    return re.sub(r"[^\w.-]+", "-", name) or "script"


def _common_stamp() -> str:
    """Return a name for this launch that every rank on this machine comes to by itself.

    The day, and the tick at which our common parent started: unlike a time of day worked out from
    it, that number cannot come out differently for two ranks.
    """
    parent = os.getppid()
    try:
        # Field 22 of /proc/PID/stat; the name in field 2 may hold anything.
        tick = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        tick = str(parent)
    return f"{time.strftime('%Y%m%d')}-{tick}"


def _number(name: str, default: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default
