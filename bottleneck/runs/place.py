"""Where a run's files go, and which of several ranks puts them together.

In: `--out`, the plan, and which of several tasks this is. Out: a `Place`. Runs in the parent
process; no torch here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InputError
from .layout import guests, has_steps, run_of
from .plan import Plan
from .store import partial_name
from .tasks import Task, this_task


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
    shared: Path | None = None
    """Temporary name, if it does not follow from the final one."""
    fellows: Fellows | None = None
    """Tasks that may turn out to be ranks of the same job."""
    named: bool = True
    """The user named the folder: if it is taken, that is an error, and no number is added."""

    @property
    def working(self) -> Path:
        """Temporary name: process folders are written in it."""
        return self.shared or partial_name(self.folder)

    @property
    def meet(self) -> Path:
        """Where the ranks of the job put their folders together."""
        return self.fellows.meet if self.fellows is not None else self.working

    @property
    def world_size(self) -> int:
        """How many ranks share the folder."""
        return len(self.ranks)

    def prepare(self) -> None:
        """Create the working folder.

        Raises:
            InputError: the place is taken or cannot be written.
        """
        taken = self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir()))
        if taken and (self.named or not self.folder.is_dir()):
            raise InputError(
                f"{self.folder} already exists.", remedy="Choose another folder with --out, or remove it."
            )
        try:
            self.working.mkdir(parents=True, exist_ok=True)
            probe = self.working / f".{self.process}.probe"
            probe.touch()
            probe.unlink()
            if self.fellows is not None and self.fellows.task.rank == self.fellows.ranks[0]:
                # Left by a launch that was killed. The others come to it after our script has met theirs.
                shutil.rmtree(self.fellows.meet, ignore_errors=True)
        except OSError as error:
            raise InputError(
                f"Cannot write to {self.folder.parent}: {error.strerror}.",
                remedy="Choose another folder with --out.",
            ) from None

    def final(self) -> Place:
        """Return where the run belongs, now that the script has ended and its run.json names its rank.

        A task whose script was one rank of a process group moves its files to the shared folder. Any
        other keeps its own folder, as does a script that started the other ranks itself. A rank that has met
        rank 0 of another machine, whose folder it sees, moves its files there.
        """
        run = run_of(self.working / self.process)
        fellows = self.fellows
        if run is None:
            return self
        if fellows is not None:
            if run.world_size != fellows.task.size:
                return self
            if any(has_steps(child) for child in self.working.glob("child-*")):
                return self
        elif not run.meet:
            return self._with_guests(run.world_size)
        process = f"rank{run.rank}"
        meet = Path(run.meet) if run.meet else self.meet
        # The folder of a rank that torchrun started is that of its machine, where others still write.
        ours = sorted(self.working.iterdir()) if fellows is not None else [self.working / self.process]
        try:
            meet.mkdir(parents=True, exist_ok=True)
            for path in ours:
                shutil.move(path, meet / (process if path.name == self.process else path.name))
        except OSError:
            if not run.meet:
                raise
            return self  # no longer seen from here
        with contextlib.suppress(OSError):
            self.working.rmdir()
        ranks = fellows.ranks if fellows is not None else self.ranks
        leads = not run.meet and run.rank == ranks[0]
        place = Place(folder=self.folder, process=process, leads=leads, ranks=ranks, shared=meet)
        return place._with_guests(run.world_size) if leads else place

    def _with_guests(self, size: int) -> Place:
        """Wait for the ranks of other machines, too: the report is that of the whole job."""
        came = guests(self.working) if self.leads else set()
        if not came:
            return self
        ranks = tuple(sorted({*self.ranks, *came}))
        folder = self.folder
        if not self.named and len(ranks) == size:
            folder = folder.with_name(re.sub(r"-node\d+$", "", folder.name))
        return replace(self, folder=folder, ranks=ranks, shared=self.working)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fellows:
    """Tasks that were started together, as one job or as many: only their process group shows which."""

    task: Task
    ranks: tuple[int, ...]
    """The ranks that would share a folder."""
    meet: Path
    """The working folder that all of them use."""


def choose_place(out: Path | None, plan: Plan) -> Place:
    """Return where this run goes.

    All ranks that torchrun starts must choose the same name without communicating. Without `--out`
    the name contains the start of their common parent. Ranks on other machines have another parent,
    so each machine gets its own folder. So does each task of SLURM and MPI. Folders of ranks that turn out
    to be of one job, and see each other's, are joined (`Place.final`).
    """
    task = this_task()
    stem = _stem(plan)
    if task.certain and task.size > 1:
        return _place_of_rank(task, out, stem)
    now = time.strftime("%Y%m%d-%H%M%S")
    if task.size == 1:
        folder = out or _claimed(f"{stem}-{now}")
        return Place(folder=folder.absolute(), process="main", leads=True)
    if out is not None:
        folder = out if task.rank == 0 else out.with_name(f"{out.name}-task{task.rank}")
        meet, ranks = out.with_name(f".{out.name}.ranks"), tuple(range(task.size))
    else:
        folder = _claimed(f"{stem}-{now}")
        name = f".{stem}-{task.launch or _common_stamp()}.ranks"
        if task.local_size < task.size:
            name = f"{name}-node{task.node}"
        meet, ranks = Path("reports") / name, tuple(task.on_this_machine)
    fellows = Fellows(task=task, ranks=ranks, meet=meet.absolute())
    return Place(folder=folder.absolute(), process="main", leads=True, fellows=fellows)


def _place_of_rank(task: Task, out: Path | None, stem: str) -> Place:
    again = f"-{task.launch}" if task.launch else ""
    if out is not None:
        # A restart by the launcher must not collide with what the first attempt left.
        folder, ranks = out.with_name(out.name + again), tuple(range(task.size))
    else:
        name = f"{stem}-{_common_stamp()}{again}"
        if task.local_size < task.size:
            name += f"-node{task.node}"
        folder, ranks = Path("reports") / name, tuple(task.on_this_machine)
    return Place(
        folder=folder.absolute(),
        process=f"rank{task.rank}",
        leads=task.rank == ranks[0],
        ranks=ranks,
        named=out is not None,
    )


def free_folder(stem: str, *, root: Path = Path()) -> str:
    """Return a name for a run folder from `root`, which one process alone chooses."""
    name = f"reports/{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(name for name in names if not (root / name).exists())


def _claimed(name: str) -> Path:
    """Return a folder of that name, with a number added if another run already has it.

    Two runs that begin in the same second (tasks of srun, a shell's loop) must not write into each
    other's folder: the run that creates the working folder gets it.
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


def _stem(plan: Plan) -> str:
    name = Path(plan.script).stem if plan.script is not None else str(plan.module).rpartition(".")[2]
    return re.sub(r"[^\w.-]+", "-", name) or "script"


def _common_stamp() -> str:
    """Return a name for this launch that every rank on this machine computes alike.

    The day, and the tick at which our common parent started. Unlike a time of day computed from it,
    that number cannot differ between two ranks.
    """
    parent = os.getppid()
    try:
        # Field 22 of /proc/PID/stat; the name in field 2 may hold anything.
        tick = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        tick = str(parent)
    return f"{time.strftime('%Y%m%d')}-{tick}"
