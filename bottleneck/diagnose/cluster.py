"""Work spread over a Dask cluster: each rank is read where a worker is, and only its summary is sent.

In: what to do for each rank, and the name of a scheduler. Out: results as they come. A worker that dies is
told, and Dask gives its work to another one; work that keeps killing workers is given up.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError, UsageError

_CONNECT_SECONDS = 10
_KILLED = "the workers that read it were killed (too little memory?)"

_T = TypeVar("_T")


def spread(
    tasks: Mapping[int, Callable[[], _T]],
    *,
    scheduler: str,
    jobs: int,
    given_up: Callable[[str], _T],
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[int, _T]]:
    """Yield what the tasks return, as they end; those that the cluster lost are missing.

    `given_up` makes a result of the reason why a task has none; `tell` takes what else there is to say.

    Raises:
        UsageError: a package is missing, or the scheduler has another name.
        InputError: the scheduler cannot be reached.
    """
    with _client(scheduler, jobs) as client:
        from distributed import as_completed
        from distributed.scheduler import KilledWorker

        def result(future: Any) -> Iterator[_T | None]:
            """Yield what came of it: None if workers died with it; nothing if the scheduler is lost."""
            if future.status == "finished":
                yield future.result()
            elif future.status == "error":
                error = future.exception()
                yield None if isinstance(error, KilledWorker) else given_up(f"the worker failed: {error}")
            elif future.status == "lost":  # with its worker, which died when it was done
                yield None
            future.release()

        futures = {client.submit(task, pure=False): number for number, task in tasks.items()}
        suspects = []
        seen = _workers(client)
        for future in as_completed(futures, loop=client.loop):
            seen |= _workers(client)
            for found in result(future):
                if found is None:
                    suspects.append(futures[future])
                else:
                    yield futures[future], found
        # What waited beside work that kills a worker is blamed with it: one at a time it shows who it is.
        for number in suspects:
            for future in as_completed([client.submit(tasks[number], pure=False)], loop=client.loop):
                for found in result(future):
                    yield number, given_up(_KILLED) if found is None else found
        # One that its nanny starts again has another address.
        if (left := _workers(client)) and (lost := seen - left):
            many = f"{len(lost)} workers" if len(lost) > 1 else "1 worker"
            tell(f"{many} of the cluster died meanwhile: what they had was read again by others.")


def _workers(client: Any) -> set[str]:
    """Return the addresses of the workers there are; none where the scheduler does not answer."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        return set(client.nthreads())
    return set()


@contextlib.contextmanager
def _client(scheduler: str, jobs: int) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "--scheduler needs Dask, which is not installed.",
            remedy="pip install 'torch-bottleneck[cluster]'",
        ) from None
    with contextlib.ExitStack() as stack:
        # A worker that dies is told by us, once.
        for name in ("distributed", "distributed.client"):
            quiet = logging.getLogger(name)
            stack.callback(quiet.setLevel, quiet.level)
            quiet.setLevel(logging.CRITICAL)
        where: dict[str, Any]
        if scheduler in ("local", "slurm"):
            cluster = stack.enter_context(_local(jobs) if scheduler == "local" else _slurm(jobs))
            where = {"address": cluster}
        elif "://" in scheduler:
            where = {"address": scheduler}
        elif Path(scheduler).is_file():
            where = {"scheduler_file": scheduler}
        else:
            raise UsageError(
                f"{scheduler} is no scheduler: there is no such file.",
                remedy="Give tcp://HOST:PORT, local, slurm, or the file that dask-scheduler has written.",
            )
        try:
            client = Client(**where, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise InputError(
                f"The scheduler {scheduler} cannot be reached: {error}.", remedy="Check that it is running."
            ) from None
        yield stack.enter_context(client)


def _local(jobs: int) -> Any:
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=jobs, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
    )


def _slurm(jobs: int) -> Any:
    """Start workers as jobs of SLURM, as `jobqueue.slurm` of Dask's own configuration says."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise UsageError(
            "--scheduler slurm needs dask-jobqueue, which is not installed.",
            remedy="pip install dask-jobqueue",
        ) from None
    cluster = SLURMCluster()
    cluster.scale(jobs)
    return cluster
