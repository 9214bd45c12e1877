"""`bottleneck report RUN`: show a diagnosis again.

In: a run folder or a diagnosis.json. Out: the report as text, Markdown, JSON or one HTML page.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .options import PlacePath, format_option, verbose_option

__all__ = ["command"]


@click.command("report")
@click.argument("run", type=PlacePath())
@format_option
@click.option("--out", default="-", metavar="FILE", help="Write to FILE; - is standard output.")
@verbose_option
def command(run: Path, *, format_: str, out: str, verbose: bool) -> None:
    """Show the diagnosis of RUN, a run folder or a diagnosis.json.

    \b
    bottleneck report RUN --format html    writes RUN/report.html
    """
    from ..model.documents import load_diagnosis
    from ..reporters.output import PAGE_FILE, emit, fits_terminal, render_for
    from ..verify.record import tried_in, with_tried

    folder = run if run.is_dir() else run.parent
    diagnosis = with_tried(load_diagnosis(run), tried_in(folder))
    if out == "-" and not fits_terminal(format_, sys.stdout):
        out = str(folder / PAGE_FILE)
    stream = sys.stdout if out == "-" else None
    emit(render_for(diagnosis, format_, stream=stream, verbose=verbose), out=out)
