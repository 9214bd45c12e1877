"""`bottleneck review RUN...`: look at runs in TensorBoard, one or several side by side.

In: run folders, traces, or a folder of runs. Out: a log folder with adapted traces, the diagnosis as
text and figures, and a running TensorBoard on this machine's own address.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..model.diagnosis import Diagnosis

__all__ = ["command"]


@click.command("review")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Prepare into this folder and keep it. Default: a temporary one, gone when TensorBoard ends.",
)
@click.option("--no-serve", is_flag=True, help="Only prepare the folder (--out, or tensorboard-review).")
@click.option("--port", type=click.IntRange(0, 65535), help="Default: 6006 or the next free; 0: any.")
def command(runs: tuple[Path, ...], *, out: Path | None, no_serve: bool, port: int | None) -> None:
    """Show RUN... in TensorBoard: run folders, traces, or a folder of runs.

    The traces are copied with the names that TensorBoard's profiler tab understands (its figures are
    wrong on those of torch 2), with the diagnosis drawn above them; the tab *Diagnosis* says what to
    change and zooms to each cause. Nothing needs the internet. The runs themselves stay untouched.

    \b
    bottleneck review reports/train-20260101-120000
    bottleneck review before/ after/ --port 6007
    bottleneck review --no-serve --out logs traces/
    """
    # Ended from outside, neither TensorBoard nor the temporary folder may be left behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores one of them, and means it
            signal.signal(number, _leave)
    if no_serve and out is None:
        out = Path("tensorboard-review")
    folder = out if out is not None else Path(tempfile.mkdtemp(prefix="bottleneck-review-"))
    try:
        _prepare(_expand(runs), folder)
        if no_serve:
            click.echo(f"Prepared {folder}. Show it with: tensorboard --logdir {folder}")
        else:
            _serve(folder, port=port)
    finally:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)


def _expand(runs: Sequence[Path]) -> list[Path]:
    """Replace a folder of runs by the runs in it.

    Raises:
        InputError: a path does not exist, or was prepared before.
    """
    from ..review.page import PAGE_FILE

    found: list[Path] = []
    for path in runs:
        if not path.exists():
            raise InputError(f"{path} does not exist.", remedy="Give a run folder or a trace.")
        if (path / PAGE_FILE).is_file():
            raise InputError(
                f"{path} was prepared for TensorBoard before.",
                remedy=f"Show it with `tensorboard --logdir {path}`, or give its run.",
            )
        inside = []
        if path.is_dir() and not _is_run(path):
            inside = [
                below for below in sorted(path.iterdir()) if _is_run(below) and not below.name.startswith(".")
            ]
        # One process folder per rank is one run.
        ranks = bool(inside) and all(below.name.startswith("rank") for below in inside)
        found += inside if inside and not ranks else [path]
    return list(dict.fromkeys(found))


def _is_run(path: Path) -> bool:
    return (path / "run.json").is_file() or (path / "diagnosis.json").is_file()


def _prepare(runs: Sequence[Path], folder: Path) -> None:
    """Write the log folder; a run that cannot be read is told and left out while others can."""
    from ..review.logdir import prepare_run

    failure: InputError | None = None
    taken: set[str] = set()
    for path in runs:
        try:
            diagnosis, sources = _diagnosis(path)
            name = _free_name(path, taken)
            prepared = prepare_run(diagnosis, sources, folder / name, run=name, report=True)
        except InputError as error:
            if len(runs) == 1:
                raise
            failure = error
            _say(f"{path} is left out: {error}")
            continue
        taken.add(name)
        for problem in prepared.problems:
            _say(problem)
    if failure is not None and not taken:
        raise failure


def _diagnosis(path: Path) -> tuple[Diagnosis, list[Path]]:
    """Return the diagnosis of a run and what its traces are read from, nothing if it has none.

    A stored diagnosis counts when this version wrote it, or when there is nothing else.
    """
    from .. import __version__
    from ..diagnose import diagnose_paths
    from ..errors import NotATraceError
    from ..model.documents import load_diagnosis

    stored = path / "diagnosis.json" if path.is_dir() else None
    has_run = path.is_dir() and ((path / "run.json").is_file() or any(path.glob("rank*/run.json")))
    if stored is None or not stored.is_file():
        return diagnose_paths([path]), [path]
    if has_run:
        try:
            diagnosis = load_diagnosis(stored)
        except InputError:
            return diagnose_paths([path]), [path]
        if diagnosis.tool_version == __version__ and diagnosis.timeline is not None:
            return diagnosis, [path]
        return diagnose_paths([path]), [path]
    try:
        return diagnose_paths([path]), [path]
    except NotATraceError:
        return load_diagnosis(stored), []


def _free_name(path: Path, taken: set[str]) -> str:
    """Return a name for the run, from its path; numbered when another one bears it."""
    # Not resolved: a link is named by whoever made it.
    whole = os.path.basename(os.path.abspath(path))  # noqa: PTH100, PTH119
    stem = whole.partition(".")[0] or whole.strip(".") or "run"
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def _serve(folder: Path, *, port: int | None) -> None:
    from ..review.serve import running

    with running(folder, port=port) as tensorboard:
        click.echo(f"Review: {tensorboard.address}#bottleneck   (Ctrl-C ends it)")
        sys.stdout.flush()
        try:
            code = tensorboard.wait()
        except KeyboardInterrupt:
            return
    raise InputError(
        f"TensorBoard ended by itself, with exit code {code}.", remedy="See `bottleneck doctor`."
    )


def _leave(number: int, frame: object) -> None:
    del frame
    sys.exit(128 + number)


def _say(text: str) -> None:
    click.echo(f"bottleneck: {text}", err=True)
