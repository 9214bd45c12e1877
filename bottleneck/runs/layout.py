"""The layout of a run folder: one process -> its files at the top; several -> rank0/, rank1/, ...

In: the folder in which each process wrote its own folder. Out: the run folder under its final
name. Runs in the parent, after the script has ended in whatever way. No torch here.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import RunFolderError
from ..files import json_of
from ..model.documents import RUN_FILE, read_run
from ..model.run import Run, ScriptOutcome
from ..model.watch import WATCH_FILE
from .asking import TRIALS
from .launch import name_signal
from .plan import Plan, beginning_run
from .store import RAW_RECORDS, Store, final_name, publish, write_atomically

_CHILD = re.compile(r"child-\d+$")
_DONE = ".done"
_HERE = ".here"
_NO_RECORD = "the run left no record: its folder was removed meanwhile, or could not be written"
POLL_SECONDS = 0.1


def announce(working: Path, rank: int) -> None:
    """Tell the leading rank that a rank of another machine will put its folder here.

    Raises:
        OSError: this machine does not see that folder.
    """
    (working / f".rank{rank}{_HERE}").touch()


def guests(working: Path) -> set[int]:
    """Return the ranks of other machines that will put their folders here."""
    return {int(path.name[len(".rank") : -len(_HERE)]) for path in working.glob(f".rank*{_HERE}")}


def report_done(working: Path, process: str) -> None:
    """Tell the leading rank that this rank's folder is complete."""
    (working / f".{process}{_DONE}").touch()


def wait_for_ranks(working: Path, ranks: Sequence[int], *, seconds: float) -> list[int]:
    """Wait until every rank has reported that its folder is complete; return those that have not."""
    deadline = time.monotonic() + seconds
    while True:
        missing = [rank for rank in ranks if not (working / f".rank{rank}{_DONE}").exists()]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(POLL_SECONDS)


def record_end(working: Path, process: str, plan: Plan, returncode: int) -> ScriptOutcome:
    """Complete the script's process folder, however the process ended, and return how.

    As the process recorded it, or else from its return code.
    """
    publish_leftovers(working, only=process)
    path = working / process
    left = path.is_dir()
    run = run_of(path)
    if run is None:
        # It died before it could write anything: a fault of the interpreter or of ours.
        store = Store(path, run=msgspec.structs.replace(beginning_run(plan), created="", pid=0))
        outcome = _end_of(returncode)
        if not left:
            outcome = msgspec.structs.replace(outcome, notes=[*outcome.notes, _NO_RECORD])
        store.finish(outcome)
        return outcome
    if run.outcome.how != "running":
        return run.outcome
    outcome = _end_of(returncode)
    if TRIALS in run.artefacts:
        # All was captured, and the script was to be stopped after the trials.
        how = outcome.exception or "the process ended"
        outcome = ScriptOutcome(how="stopped", notes=[f"{how} while fixes were tried in it"])
    write_atomically(path / RUN_FILE, json_of(msgspec.structs.replace(run, outcome=outcome)))
    return outcome


def _end_of(returncode: int) -> ScriptOutcome:
    """Return the outcome of a process that recorded none, from its return code."""
    if returncode < 0:
        return ScriptOutcome(
            how="killed", exit_code=returncode, exception=f"ended by {name_signal(returncode)}"
        )
    return ScriptOutcome(
        how="exited", exit_code=returncode, notes=["the process ended without Python's normal exit"]
    )


def publish_leftovers(working: Path, *, only: str | None = None) -> None:
    """Give their final names to the folders of processes that died.

    With `only` the others may still be running.
    """
    for path in sorted(working.glob(".*.partial")):
        final = final_name(path)
        if final != path and only in (None, final.name):
            publish(path, final)


def collect(working: Path, folder: Path) -> Path:
    """Turn the folder of process folders into a run folder and rename it.

    A process that trained nothing (the launcher of `mp.spawn`, helpers) is dropped when another
    one did. When the script's first process trains, it is the run, and what its children did goes
    into `others/`. What a single process wrote moves to the top.

    The run folder has the name of `folder`, with a number added if that was taken meanwhile.
    """
    publish_leftovers(working)
    _number_children(working)
    for mark in [*working.glob(f".*{_DONE}"), *working.glob(f".*{_HERE}")]:
        mark.unlink()
    processes = sorted(path for path in working.iterdir() if (path / RUN_FILE).is_file())
    trained = [path for path in processes if has_steps(path) or (path / WATCH_FILE).is_file()]
    kept = [path for path in trained if path.name == "main"] or trained or processes[:1]
    for path in processes:
        # Raw records of workers that no process was left to read.
        shutil.rmtree(path / RAW_RECORDS, ignore_errors=True)
        if path in kept:
            continue
        if path in trained or (path / "diverted").is_dir():
            (working / "others").mkdir(exist_ok=True)
            path.rename(working / "others" / path.name)
        else:
            shutil.rmtree(path)
    if len(kept) == 1 and not _is_rank_of_several(kept[0]):
        _move_up(kept[0], working)
    return publish(working, folder)


def run_of(path: Path) -> Run | None:
    """Return the run.json of a process folder, or None where it is missing or broken."""
    try:
        return read_run(path / RUN_FILE)
    except RunFolderError:
        return None


def processes(folder: Path) -> list[Path]:
    """Return the folders of a run's processes: itself, and those of its ranks, the first one first."""
    return [folder, *sorted(folder.glob("rank*"))]


def runs_of(folder: Path) -> list[Run]:
    """Return the runs that the processes wrote, one per rank, leaving out what cannot be read."""
    return [run for run in map(run_of, processes(folder)) if run is not None]


def first_run(folder: Path) -> Run | None:
    """Return the run that the first process wrote."""
    return next(iter(runs_of(folder)), None)


def has_steps(path: Path) -> bool:
    """Return whether a process folder contains measurements."""
    run = run_of(path)
    return run is not None and (
        any(window.steps.index for window in run.windows) or any(path.glob("trace/*"))
    )


def holds_steps(folder: Path) -> bool:
    """Return whether a run folder contains measurements of its process, or of any of its ranks."""
    return any(map(has_steps, processes(folder)))


def _number_children(working: Path) -> None:
    """Rename the folders of the script's own children by the rank in their run.json."""
    children = [path for path in working.iterdir() if _CHILD.match(path.name)]
    taken = {path.name for path in working.iterdir()}
    for path in sorted(children, key=lambda child: int(child.name.removeprefix("child-"))):
        if not has_steps(path):
            continue
        run = run_of(path)
        number = run.rank if run is not None and run.world_size > 1 else 0
        while f"rank{number}" in taken:
            number += 1
        taken.add(f"rank{number}")
        path.rename(working / f"rank{number}")
    _number_main(working, taken)


def _number_main(working: Path, taken: set[str]) -> None:
    """Rename the first process's folder by rank too, if it was one rank of several."""
    main = run_of(working / "main")
    if main is None or main.world_size == 1 or f"rank{main.rank}" in taken:
        return
    others = (run_of(working / name) for name in taken if re.fullmatch(r"rank\d+", name))
    if any(run is not None and run.world_size == main.world_size for run in others):
        (working / "main").rename(working / f"rank{main.rank}")


def _is_rank_of_several(path: Path) -> bool:
    run = run_of(path)
    return run is not None and run.world_size > 1


def _move_up(process: Path, working: Path) -> None:
    for path in list(process.iterdir()):
        path.rename(working / path.name)
    process.rmdir()
