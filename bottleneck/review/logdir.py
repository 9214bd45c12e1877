"""A TensorBoard log folder of one run: adapted traces, event file, page of the Diagnosis tab.

In: a diagnosis, the traces it was made from, a folder name. Out: the folder, whole or not there at all:
the profiler tab reads a folder once, when it first sees it, and never again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import InputError
from ..ingest import bundle as ingest
from ..model.diagnosis import Diagnosis
from ..model.documents import write_text
from ..model.watch import Watch
from ..reporters.output import render_for
from .copy import Copied, copy_trace
from .events import hyperparameters, job_scalars, scalars, write_events
from .lane import Place, idle_of, lane_events, places
from .page import PAGE_FILE, TraceFile, make_page, make_watched_page

FOLDER = "tensorboard"
"""Name of the log folder inside a run folder."""
_UNFINISHED = ".writing"
_LINKS = "\n[Open the diagnosis](#bottleneck) · [open the trace](#pytorch_profiler)\n"
LARGE_BYTES = 2 * 1024**3
"""Larger traces are left out: reading one takes minutes, and the copy would show little of it."""

_BESIDE_BYTES = 32 * 1024**2
"""Larger traces are left to `bottleneck review`: copying one takes as long as reading it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was written."""

    folder: Path
    traces: tuple[TraceFile, ...]
    problems: tuple[str, ...] = ()


def prepare_beside(diagnosis: Diagnosis, folder: Path) -> tuple[str, ...]:
    """Write into a run folder what `tensorboard --logdir reports` shows; return what went wrong."""
    try:
        prepared = prepare_run(
            diagnosis, [folder], folder / FOLDER, run=folder.name, most_bytes=_BESIDE_BYTES
        )
    except Exception as error:  # noqa: BLE001 - an extra: whatever is wrong with it, the diagnosis stands
        return (f"the run folder was not prepared for TensorBoard: {error}",)
    return tuple(f"TensorBoard: {problem}" for problem in prepared.problems)


def prepare_run(
    diagnosis: Diagnosis,
    paths: Sequence[Path],
    folder: Path,
    *,
    run: str = "",
    report: bool = False,
    most_bytes: int = LARGE_BYTES,
) -> Prepared:
    """Write the log folder of one run.

    An earlier folder of ours is replaced, anything else is not. `report` writes report.html as well. Trace
    files above `most_bytes` are left out, with a note.

    Raises:
        InputError: the folder cannot be written to or holds something else, a path holds nothing to
            read, or TensorBoard is not installed.
    """
    ranks = ingest.load(*paths).ranks if paths else ()
    traces: list[TraceFile] = []
    problems: list[str] = []
    found: dict[str, Place] = {}

    def fill(made: Path) -> None:
        for rank in ranks:
            if rank.trace_path is None:
                continue
            size = rank.trace_path.stat().st_size
            if size > most_bytes:
                problems.append(
                    f"{rank.trace_path.name} ({size / 1e6:.0f} MB) is left out: `bottleneck review` shortens"
                    f" traces of up to {LARGE_BYTES / 1e9:.0f} GB. Or trace fewer steps."
                )
                continue
            target = made / f"rank_{rank.rank}.pt.trace.json.gz{_UNFINISHED}"
            try:
                copied = _copy(diagnosis, rank, target)
            except InputError as error:
                target.unlink(missing_ok=True)
                problems.append(f"Rank {rank.rank} has no trace here: {error}")
                continue
            traces.append(_described(copied, rank.rank))
            found.update(places(diagnosis, copied, rank=rank.rank))
        page = make_page(diagnosis, traces=traces, places=found, problems=problems)
        (made / PAGE_FILE).write_bytes(msgspec.json.encode(page))
        if report:
            write_text(made / "report.html", render_for(diagnosis, "html"))
        write_events(
            made,
            run=run or folder.name,
            report=render_for(diagnosis, "md", verbose=True) + _LINKS,
            values=scalars(diagnosis),
            switches=hyperparameters(diagnosis),
            created=diagnosis.created,
        )

    _write_folder(folder, fill)
    return Prepared(folder=folder, traces=tuple(traces), problems=tuple(problems))


def prepare_watched(watch: Watch, folder: Path, *, run: str) -> Prepared:
    """Write the log folder of a watched job, which has no trace.

    Raises:
        InputError: the folder cannot be written to or holds something else, or TensorBoard is not installed.
    """

    def fill(made: Path) -> None:
        (made / PAGE_FILE).write_bytes(msgspec.json.encode(make_watched_page(watch)))
        write_text(made / "report.html", render_for(watch, "html"))
        write_events(
            made,
            run=run,
            report=render_for(watch, "md"),
            values=job_scalars(watch),
            switches={"verdict": "watched"},
        )

    _write_folder(folder, fill)
    return Prepared(folder=folder, traces=())


def _write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under another name, and publish it.

    Raises:
        InputError: it cannot be written to or holds something else, or TensorBoard is not installed.
    """
    _must_be_ours(folder)
    made = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"Cannot write {folder}: {error.strerror or error}.", remedy="Choose another folder with --out."
        ) from None
    try:
        fill(made)
        _publish(made, folder)
    except OSError as error:
        raise InputError(f"Cannot write {folder}: {error.strerror or error}.") from None
    except ImportError as error:
        raise InputError(
            f"TensorBoard's event files cannot be written: {error}.", remedy="pip install 'tensorboard>=2.21'"
        ) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _copy(diagnosis: Diagnosis, rank: ingest.Rank, target: Path) -> Copied:
    assert rank.trace_path is not None
    return copy_trace(
        rank.trace_path,
        target,
        lane=lambda plan, trace, steps: lane_events(
            diagnosis, plan, rank=rank.rank, idle=idle_of(trace, steps, plan, compile_facts=rank.compile)
        ),
    )


def _described(copied: Copied, rank: int) -> TraceFile:
    notes = []
    if len(copied.steps) < copied.of_steps:
        notes.append(
            f"The last {len(copied.steps)} of {copied.of_steps} steps: TensorBoard cannot show more events."
        )
    if copied.without_python:
        notes.append("Python frames are left out.")
    return TraceFile(
        file=copied.path.name.removesuffix(_UNFINISHED),
        worker=copied.path.name.partition(".")[0],
        rank=rank,
        steps=len(copied.steps),
        of_steps=copied.of_steps,
        events=copied.events,
        bytes=copied.bytes,
        note=" ".join(notes),
    )


def _must_be_ours(folder: Path) -> None:
    """Refuse to replace what was not prepared here: `--out reports` would name the runs' own folder.

    Raises:
        InputError: the folder holds something else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / PAGE_FILE).is_file() or (folder / "run.json").is_file():
        raise InputError(
            f"{folder} exists and was not prepared by bottleneck. It would be replaced.",
            remedy="Choose another folder with --out.",
        )


def _publish(made: Path, folder: Path) -> None:
    """Give the finished traces and the folder their names, in place of what bears them.

    Until then they bear names that the profiler tab does not know: it looks into every folder below
    its own, and reads each once.
    """
    for file in made.glob(f"*{_UNFINISHED}"):
        file.rename(file.with_name(file.name.removesuffix(_UNFINISHED)))
    old = made.with_name(f"{made.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    try:
        made.rename(folder)
    except OSError:
        with contextlib.suppress(OSError):
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
