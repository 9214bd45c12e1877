"""`bottleneck report RUN`: show a diagnosis again, or the account of a job.

In: a run folder, a diagnosis.json or a watch.json. Out: the report as text, Markdown, JSON or one HTML page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .options.shared import format_option, verbose_option
from .options.values import PlacePath


@click.command("report")
@click.argument("run", type=PlacePath())
@format_option
@click.option("--out", default="-", metavar="FILE", help="Write to FILE; - is standard output.")
@verbose_option
def command(run: Path, *, format_: str, out: str, verbose: bool) -> None:
    """Show the diagnosis of RUN, a run folder or a diagnosis.json; or the account that `watch` has written.

    \b
    bottleneck report RUN --format html    writes RUN/report.html
    """
    from ..catalog.job import with_fixes
    from ..diagnose.own_reports import linked
    from ..model.documents import DIAGNOSIS_FILE, load_diagnosis, load_watch
    from ..model.watch import WATCH_FILE
    from ..reporters.output import PAGE_FILE, emit, fits_terminal, render_for
    from ..runs.job import left_account
    from ..verify.record import tried_in, with_tried

    folder = run if run.is_dir() else run.parent
    if out == "-" and not fits_terminal(format_, sys.stdout):
        out = str(folder / PAGE_FILE)
    stream = sys.stdout if out == "-" else None
    watched = run / WATCH_FILE if run.is_dir() else run
    if watched.name == WATCH_FILE and watched.exists() and not (run / DIAGNOSIS_FILE).exists():
        emit(render_for(with_fixes(load_watch(watched)), format_, stream=stream), out=out)
        return
    left = None if (folder / DIAGNOSIS_FILE).exists() else left_account(run)
    if left is not None:
        emit(render_for(with_fixes(left), format_, stream=stream), out=out)
        return
    diagnosis = with_tried(load_diagnosis(run), tried_in(folder))
    if diagnosis.ranks:
        diagnosis = linked(diagnosis, Path(out).parent if out != "-" else folder)
    emit(render_for(diagnosis, format_, stream=stream, verbose=verbose), out=out)
