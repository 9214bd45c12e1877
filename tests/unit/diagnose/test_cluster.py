"""Ranks read by the workers of a Dask cluster, some of which die."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.fleet_make import Job, make

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.diagnose.all_ranks import read_job
from torch_bottleneck.diagnose.cluster import spread
from torch_bottleneck.errors import InputError, UsageError
from torch_bottleneck.ingest.bundle import load

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RANKS, LATE = 12, 2


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """Dask sets variables for its workers in this process, too, and leaves them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make(folder, Job(ranks=RANKS, steps=3, late=(LATE,), cause="input"))
    return folder


def cluster(workers: int) -> Any:
    """Workers that are given up soon."""
    settings = {
        "distributed.scheduler.allowed-failures": 1,
        # A worker imports what its tasks name.
        "distributed.nanny.pre-spawn-environ.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    with dask.config.set(settings):
        return distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    with cluster(2) as started:
        yield started


def pid_after(seconds: float, _number: int) -> int:
    time.sleep(seconds)
    return os.getpid()


def dies(number: int) -> str:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"did {number}"


def test_a_worker_killed_in_the_middle_costs_nothing(traces: Path, two_workers: Any) -> None:
    ranks = load(traces).ranks
    here = read_job(ranks)
    for kept in traces.glob(".*.rank-summary"):
        kept.unlink()
    killed: list[int] = []
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done == 2:
            with distributed.Client(two_workers, set_as_default=False) as client:
                killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    address = two_workers.scheduler_address
    apart = read_job(ranks, scheduler=address, jobs=2, progress=progress)
    assert killed
    assert seen == list(range(1, RANKS + 1))
    assert apart.unread == ()
    assert apart.summaries == here.summaries
    assert [text for text in apart.problems if text.startswith("1 worker of the cluster died")]
    with pytest.raises(ProcessLookupError):
        os.kill(killed[0], 0)


def test_the_whole_diagnosis_is_the_same(traces: Path, two_workers: Any) -> None:
    found = diagnose_paths([traces], scheduler=two_workers.scheduler_address).fleet
    assert found is not None
    assert found.compared == RANKS
    assert [late.ranks for late in found.stragglers] == [(LATE,)]


def test_ranks_at_an_address_are_fetched_by_the_workers(traces: Path, two_workers: Any) -> None:
    found = diagnose_paths([f"file://{traces}"], scheduler=two_workers.scheduler_address).fleet
    assert found is not None
    assert [late.ranks for late in found.stragglers] == [(LATE,)]


def test_work_that_kills_its_workers_is_told_and_the_rest_is_done() -> None:
    with cluster(1) as alone:
        tasks = {number: partial(dies, number) for number in range(4)}
        found = dict(spread(tasks, scheduler=alone.scheduler_address, jobs=1, given_up=str))
    # Nobody is blamed for another's death, and what a worker had done is not lost with it.
    assert {k: v for k, v in found.items() if k != 1} == {n: f"did {n}" for n in (0, 2, 3)}
    assert "were killed" in found[1]


def test_a_scheduler_that_is_lost_leaves_the_rest_to_us(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It yields nothing more, and what is missing is read here."""
    ranks = load(traces).ranks
    some = read_job(ranks[:3])

    def lost(tasks: dict[int, Any], **_: Any) -> Iterator[tuple[int, Any]]:
        yield 0, tasks[0]()

    monkeypatch.setattr("torch_bottleneck.diagnose.all_ranks.spread", lost)
    job = read_job(ranks[:3], scheduler="tcp://gone:1")
    assert job.summaries == some.summaries
    assert job.problems == ("The cluster gave no answer for 2 of 3 ranks: they were read here.",)


def test_workers_that_can_read_nothing_are_an_error_with_their_reason(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tasks: dict[int, Any], *, given_up: Any, **_: Any) -> Iterator[tuple[int, Any]]:
        for number in tasks:
            yield number, given_up("the worker failed: No module named 'torch_bottleneck'")

    monkeypatch.setattr("torch_bottleneck.diagnose.all_ranks.spread", fail)
    with pytest.raises(InputError, match="No module named 'torch_bottleneck'"):
        diagnose_paths([traces], scheduler="tcp://somewhere:1")


def test_our_own_workers(traces: Path) -> None:
    found = dict(spread({0: partial(pid_after, 0.0, 0)}, scheduler="local", jobs=1, given_up=lambda _: 0))
    assert found[0] not in (0, os.getpid())


def test_schedulers_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {0: partial(dies, 0)}
    with pytest.raises(UsageError, match="no such file"):
        list(spread(tasks, scheduler="nowhere.json", jobs=1, given_up=str))
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(UsageError, match="needs dask-jobqueue"):
        list(spread(tasks, scheduler="slurm", jobs=1, given_up=str))
    monkeypatch.setattr("torch_bottleneck.diagnose.cluster._CONNECT_SECONDS", 1)
    with pytest.raises(InputError, match="cannot be reached"):
        list(spread(tasks, scheduler="tcp://127.0.0.1:9", jobs=1, given_up=str))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match="needs Dask") as error:
        list(spread(tasks, scheduler="local", jobs=1, given_up=str))
    assert "torch-bottleneck[cluster]" in str(error.value)
