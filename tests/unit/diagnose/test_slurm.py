"""Ranks read by workers that are jobs of SLURM: `sbatch` and `scancel` are stand-ins that start them here."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from benchmarks.fleet_make import Job, make

from torch_bottleneck.diagnose import diagnose_paths
from torch_bottleneck.diagnose.cluster import spread
from torch_bottleneck.errors import InputError, UsageError

dask = pytest.importorskip("dask")
_interrupted = signal.getsignal(signal.SIGINT)
pytest.importorskip("dask_jobqueue")
# The import has Ctrl-C end the process: other tests run in it, too.
signal.signal(signal.SIGINT, _interrupted)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LATE = 2

SBATCH = """#!/usr/bin/env bash
# Dask removes the script as soon as this returns.
folder={folder}
number=$(ls "$folder" | grep -c script)
cp "$1" "$folder/script$number"
setsid bash "$folder/script$number" > "$folder/out$number" 2>&1 &
echo $! >> "$folder/submitted"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/usr/bin/env bash
echo "$1" >> {folder}/cancelled
kill -- "-$1"
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with what SLURM was asked; its jobs are processes here, each a group of its own."""
    before = dict(os.environ)
    folder, programs = tmp_path / "jobs", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (programs / name).write_text(text.format(folder=folder))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    with dask.config.set(
        {"jobqueue.slurm": {**dask.config.get("jobqueue.slurm"), "cores": 1, "memory": "1GB"}}
    ):
        yield folder
    for number in numbers(folder / "submitted"):
        assert ended(number), "a job is left"
    os.environ.clear()
    os.environ.update(before)


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def ended(group: int) -> bool:
    """Wait until no process of a group runs."""
    for _ in range(300):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def group_of(_number: int) -> int:
    return os.getpgid(0)


def test_work_is_done_by_jobs_which_are_cancelled_when_it_is_done(jobs: Path) -> None:
    tasks = {number: partial(group_of, number) for number in range(6)}
    found = dict(spread(tasks, scheduler="slurm", jobs=2, given_up=lambda reason: reason))
    submitted = numbers(jobs / "submitted")
    assert len(submitted) == 2
    assert set(found) == set(tasks)
    assert set(found.values()) <= set(submitted)
    assert sorted(numbers(jobs / "cancelled")) == sorted(submitted)
    script = (jobs / "script0").read_text()
    assert "#SBATCH -n 1" in script
    assert "#SBATCH --cpus-per-task=1" in script


def test_ranks_read_by_jobs_say_what_they_say_here(jobs: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    make(traces, Job(ranks=4, steps=3, late=(LATE,), cause="input"))
    there = diagnose_paths([traces], scheduler="slurm", jobs=2)
    for kept in traces.glob(".*.rank-summary"):
        kept.unlink()
    here = diagnose_paths([traces])
    assert (there.fleet, there.ranks) == (here.fleet, here.ranks)
    assert there.fleet is not None
    assert there.fleet.stragglers[0].ranks == (LATE,)
    assert numbers(jobs / "submitted")
    assert "were read here" not in " ".join(there.capture.problems)


def test_a_job_that_slurm_refuses_is_told_with_its_words(jobs: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid account' >&2; exit 1\n")
    with pytest.raises(InputError, match=r"SLURM takes no job: sbatch: error: invalid account\."):
        list(spread({0: partial(group_of, 0)}, scheduler="slurm", jobs=2, given_up=str))
    assert not numbers(jobs / "cancelled")


def test_where_slurm_takes_some_of_the_jobs_these_do_the_work(jobs: Path, tmp_path: Path) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    first, rest = sbatch.read_text().split("\n", 1)
    # The first one makes a folder, which the second cannot.
    refuse = f"mkdir {jobs}/one || {{ echo 'sbatch: error: too many jobs' >&2; exit 1; }}"
    sbatch.write_text(f"{first}\n{refuse}\n{rest}")
    tasks = {number: partial(group_of, number) for number in range(4)}
    found = dict(spread(tasks, scheduler="slurm", jobs=2, given_up=lambda reason: reason))
    (submitted,) = numbers(jobs / "submitted")
    assert found == dict.fromkeys(tasks, submitted)
    assert numbers(jobs / "cancelled") == [submitted]


def test_without_the_size_of_a_job_it_is_told_where_that_is_set(jobs: Path) -> None:
    with (
        dask.config.set({"jobqueue.slurm.cores": None}),
        pytest.raises(UsageError) as error,
    ):
        list(spread({0: partial(group_of, 0)}, scheduler="slurm", jobs=1, given_up=str))
    assert "DASK_JOBQUEUE__SLURM__CORES" in str(error.value)


def test_where_there_is_no_slurm_that_is_said(jobs: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "sbatch").unlink()
    with pytest.raises(UsageError, match="needs sbatch"):
        list(spread({0: partial(group_of, 0)}, scheduler="slurm", jobs=1, given_up=str))


def test_ctrl_c_stays_what_it_was(jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "dask_jobqueue"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "bin" / "sbatch").unlink()
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(UsageError):
        list(spread({0: partial(group_of, 0)}, scheduler="slurm", jobs=1, given_up=str))
    assert "dask_jobqueue.runner" in sys.modules
    assert signal.getsignal(signal.SIGINT) is before
