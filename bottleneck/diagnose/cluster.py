"""Work spread over a Dask cluster: each rank is read where a worker is, and only its summary is sent.

In: what to do for each rank, and the name of a scheduler. Out: results as they come. A worker that dies is
told, and Dask gives its work to another one; work that keeps killing workers is given up.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError, UsageError

_CONNECT_SECONDS = 10
_SUBMIT_SECONDS = 60
"""For all jobs of SLURM together; what is not submitted by then is waited for like a job in the queue."""
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
        for name in ("distributed", "distributed.client", "asyncio", "tornado.application"):
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
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        import dask
        from dask_jobqueue import SLURMCluster
        from dask_jobqueue.slurm import SLURMJob
        from distributed import Status
    except ImportError:
        raise UsageError(
            "--scheduler slurm needs dask-jobqueue, which is not installed.",
            remedy="pip install dask-jobqueue",
        ) from None
    finally:
        # The import has Ctrl-C end the process at once, and as if it had done its work.
        signal.signal(signal.SIGINT, interrupted)
    if shutil.which("sbatch") is None:
        raise UsageError(
            "--scheduler slurm needs sbatch, which is not there.",
            remedy="Run it on a login node of the cluster.",
        )
    # A cluster that is refused its size in the making is never closed.
    if not all(dask.config.get(f"jobqueue.slurm.{size}", None) for size in ("cores", "memory")):
        raise UsageError(
            "Dask does not know how large a job of SLURM is to be.",
            remedy="Set cores and memory of jobqueue.slurm in ~/.config/dask/jobqueue.yaml, or export"
            " DASK_JOBQUEUE__SLURM__CORES=1 DASK_JOBQUEUE__SLURM__MEMORY=8GB.",
        )
    refused: list[str] = []

    class Submitted(SLURMJob):  # type: ignore[misc]
        """Dask logs that a job was refused, and what waits for its worker waits for ever."""

        async def _submit_job(self, script_filename: str) -> Any:
            try:
                return await super()._submit_job(script_filename)
            except (OSError, RuntimeError) as error:
                refused.append(str(error))
                self.status = Status.failed
                raise

        async def close(self) -> None:
            await super().close()
            # The cluster asks for it of jobs that something still refers to, as the error of another one.
            self.status = Status.closed

    cluster = SLURMCluster(job_cls=Submitted)
    cluster.scale(jobs)
    until = time.monotonic() + _SUBMIT_SECONDS
    while len(cluster.workers) < jobs and len(refused) < jobs and time.monotonic() < until:
        time.sleep(0.05)
    if len(refused) >= jobs:  # of fewer, the others do the work
        cluster.close()
        told = [line for line in refused[0].splitlines() if line.strip()]
        raise InputError(
            f"SLURM takes no job: {told[-1] if told else 'sbatch failed'}.",
            remedy="Check jobqueue.slurm in ~/.config/dask/jobqueue.yaml: queue, account, memory.",
        )
    return cluster
