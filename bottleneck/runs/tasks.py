"""Which of several processes this one is, from the variables that its launcher set.

In: the environment. Out: a `Task`. torchrun, and every launcher that sets its variables, guarantees that
its processes are the ranks of one job. SLURM's `srun` and the launchers of MPI only number what they
start. That may be one job, or independent trainings (a sweep). A batch script's own process has the
number 0 of tasks that were never started. No torch here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

ALL_TRACED = 8
"""So many ranks are all traced; of more only some, unless they are named."""

_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?$")
"""An entry of SLURM_STEP_TASKS_PER_NODE: "4", or "4(x2)" for two nodes of four."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """This process among those that were started with it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    certain: bool = True
    """The processes are ranks of one job; if False, only a process group shows that."""
    launch: str = ""
    """A name that this launch has on every machine; empty if there is none."""

    @property
    def folder(self) -> str:
        """Name of the process folder: "main", or that of the rank where there are several."""
        return f"rank{self.rank}" if self.size > 1 else "main"

    @property
    def on_this_machine(self) -> range:
        """The ranks that were started here, where each machine gets a block of them."""
        first = max(self.rank - self.local_rank, 0)
        return range(first, min(first + self.local_size, self.size))


def this_task(environment: Mapping[str, str] | None = None) -> Task:
    """Return what this process is: a single one, unless a variable says otherwise."""
    given = os.environ if environment is None else environment
    certain = _of_torchrun(given)
    if certain is not None:
        return certain
    mpi, slurm = _of_mpi(given), _of_slurm(given)
    if mpi is None or (slurm is not None and (mpi.rank, mpi.size) == (slurm.rank, slurm.size)):
        # srun sets both, and its own variables say more; under mpirun they describe mpirun's daemons.
        return slurm or Task()
    return mpi


def certain_task() -> Task:
    """Return what this process is for certain: where only a process group can tell, a single one."""
    task = this_task()
    return task if task.certain else Task()


def ranks_named(text: str) -> set[int]:
    """Return the ranks in "0,8-15".

    Raises:
        ValueError: the text names no ranks.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ranks |= set(range(int(first), int(last if dash else first) + 1))
    if not ranks:
        raise ValueError(f"{text!r} names no rank")
    return ranks


def is_traced(wanted: str, *, rank: int, size: int, task: Task) -> bool:
    """Return whether a rank is to be traced: of many only the first and the last of each machine.

    `wanted`: "all", ranks as in `ranks_named`, or nothing.
    """
    if wanted not in ("", "all"):
        return rank in ranks_named(wanted)
    if wanted == "all" or size <= ALL_TRACED:
        return True
    if task.size == size:
        return task.local_rank in (0, task.local_size - 1)
    return rank in (0, size - 1)


def _of_torchrun(given: Mapping[str, str]) -> Task | None:
    rank, size = _number(given, "RANK"), _number(given, "WORLD_SIZE")
    if size is None or (rank is None and size > 1):
        return None
    rank = rank or 0
    local = _number_or(given, "LOCAL_RANK", rank)
    count = _number_or(given, "LOCAL_WORLD_SIZE", size)
    node = _number_or(given, "GROUP_RANK", rank // max(count, 1))
    restarts = _number_or(given, "TORCHELASTIC_RESTART_COUNT", 0)
    return Task(
        rank=rank,
        size=size,
        local_rank=local,
        local_size=count,
        node=node,
        launch=f"restart{restarts}" if restarts else "",
    )


def _of_mpi(given: Mapping[str, str]) -> Task | None:
    """Open MPI, then MPICH and those based on it (Intel MPI, MVAPICH)."""
    for rank_name, size_name, local_names in (
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ),
        ("PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
    ):
        rank, size = _number(given, rank_name), _number(given, size_name)
        if rank is None or size is None or size < 2:
            continue
        count = _number_or(given, local_names[1], size)
        return Task(
            rank=rank,
            size=size,
            local_rank=_number_or(given, local_names[0], rank),
            local_size=count,
            node=rank // max(count, 1),
            certain=False,
            launch=re.sub(r"[^\w.-]+", "-", given.get("PMIX_NAMESPACE", "")),
        )
    return None


def _of_slurm(given: Mapping[str, str]) -> Task | None:
    rank = _number(given, "SLURM_PROCID")
    # SLURM_NTASKS is also set in a batch script, where nothing was started; a step has its own.
    size = _number_or(given, "SLURM_STEP_NUM_TASKS", _number_or(given, "SLURM_NTASKS", 1))
    if rank is None or size < 2:
        return None
    node = _number_or(given, "SLURM_NODEID", 0)
    per_node = _per_node(given.get("SLURM_STEP_TASKS_PER_NODE", ""))
    job, step = given.get("SLURM_JOB_ID", ""), given.get("SLURM_STEP_ID", "")
    return Task(
        rank=rank,
        size=size,
        local_rank=_number_or(given, "SLURM_LOCALID", rank),
        local_size=per_node[node] if node < len(per_node) else size,
        node=node,
        certain=False,
        launch=f"job{job}.{step}" if job and step else "",
    )


def _per_node(text: str) -> list[int]:
    """Return the tasks of each node; empty if the text cannot be read."""
    counts: list[int] = []
    for entry in text.split(","):
        found = _REPEATED.match(entry.strip())
        if found is None:
            return []
        counts += [int(found[1])] * min(int(found[2] or 1), 100_000)
    return counts


def _number(given: Mapping[str, str], name: str) -> int | None:
    try:
        return int(given[name])
    except (KeyError, ValueError):
        return None


def _number_or(given: Mapping[str, str], name: str, default: int) -> int:
    number = _number(given, name)
    return default if number is None else number
