"""Which of several processes this is, as torchrun, MPI and SLURM say it."""

from __future__ import annotations

import pytest

from torch_bottleneck.runs.tasks import Task, is_traced, ranks_named, this_task


def test_a_process_of_which_nothing_is_said_is_alone() -> None:
    assert this_task({}) == Task()
    assert this_task({"WORLD_SIZE": "4"}) == Task(), "a size without a rank says nothing"
    assert this_task({"RANK": "one", "WORLD_SIZE": "2"}) == Task()


def test_torchrun_is_certain() -> None:
    given = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    task = this_task(given)
    assert task == Task(rank=3, size=4, local_rank=1, local_size=2, node=1)
    assert task.on_this_machine == range(2, 4)
    assert this_task({**given, "TORCHELASTIC_RESTART_COUNT": "2"}).launch == "restart2"


def test_torchrun_inside_a_job_of_slurm_or_mpi_is_what_counts() -> None:
    torchrun = {"RANK": "0", "WORLD_SIZE": "1"}
    assert this_task({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", **torchrun}) == Task()
    assert this_task({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", **torchrun}) == Task()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
                "PMIX_NAMESPACE": "prterun-host-32186@1",
            },
            Task(
                rank=5,
                size=8,
                local_rank=1,
                local_size=4,
                node=1,
                certain=False,
                launch="prterun-host-32186-1",
            ),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            Task(rank=1, size=2, local_rank=1, local_size=2, certain=False),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Task(rank=1, size=2, local_rank=1, local_size=2, certain=False)),
    ],
)
def test_tasks_of_mpi(given: dict[str, str], expected: Task) -> None:
    assert this_task(given) == expected


STEP = {
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "6",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
}


def test_tasks_of_slurm() -> None:
    task = this_task(STEP)
    assert task == Task(rank=5, size=6, local_rank=1, local_size=2, node=1, certain=False, launch="job812.0")
    assert task.on_this_machine == range(4, 6)
    repeated = this_task({**STEP, "SLURM_PROCID": "3", "SLURM_STEP_TASKS_PER_NODE": "2(x3)"})
    assert (repeated.local_size, repeated.on_this_machine) == (2, range(2, 4))
    unread = this_task({**STEP, "SLURM_STEP_TASKS_PER_NODE": "many"})
    assert unread.local_size == 6


def test_one_task_of_slurm_is_alone() -> None:
    assert this_task({**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) == Task()


def test_under_mpirun_slurm_speaks_of_mpiruns_daemons() -> None:
    daemon = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    assert this_task({**daemon, "PMI_RANK": "6", "PMI_SIZE": "8"}).rank == 6
    same = this_task({**STEP, "PMI_RANK": "5", "PMI_SIZE": "6"})
    assert same.launch == "job812.0", "srun sets both, and its own variables say more"


def traced(wanted: str, size: int, per_node: int) -> list[int]:
    tasks = [Task(rank=r, size=size, local_rank=r % per_node, local_size=per_node) for r in range(size)]
    return [task.rank for task in tasks if is_traced(wanted, rank=task.rank, size=size, task=task)]


def test_of_many_ranks_the_first_and_the_last_of_each_machine_are_traced() -> None:
    assert traced("", 16, 4) == [0, 3, 4, 7, 8, 11, 12, 15]
    assert traced("", 8, 4) == list(range(8)), "few are all traced"
    assert traced("all", 16, 4) == list(range(16))
    assert traced("1,6-8", 16, 4) == [1, 6, 7, 8]
    alone = [rank for rank in range(16) if is_traced("", rank=rank, size=16, task=Task())]
    assert alone == [0, 15], "of a script that started its ranks itself nobody knows the machines"


@pytest.mark.parametrize("text", ["first", "1;2", "3-", "-", "4-2"])
def test_what_names_no_ranks(text: str) -> None:
    with pytest.raises(ValueError):
        ranks_named(text)
