"""`bottleneck analyze PATH...`: diagnose what is already on disk.

In: run folders, traces, memory snapshots, or folders of them, of one or many ranks. Out: the report on stdout
and, with --out, diagnosis.json, report.md and report.html in a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..errors import UsageError
from ..model.codes import BottleneckClass
from .options.shared import format_option, log_option, verbose_option
from .options.values import FiniteRange, PlaceOrAddress, PlacePath, expand_patterns


@click.command("analyze")
@click.argument("paths", nargs=-1, required=True, type=PlaceOrAddress(), callback=expand_patterns)
@click.option(
    "--out",
    type=PlacePath(file_okay=False),
    help="Write diagnosis.json, report.md and report.html into this folder; of ranks worth a look also"
    " their own, into folders in it.",
)
@click.option(
    "--true-step-ms",
    type=FiniteRange(min=0, min_open=True),
    help="Step time measured without a profiler. A bare trace does not contain it, and"
    " profiled steps are inflated.",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes that read the traces of several ranks.  [default: the cores of this machine]",
)
@click.option(
    "--scheduler",
    default="",
    metavar="ADDRESS|FILE|local|slurm",
    help="Read several ranks with Dask: its scheduler's address or file, or workers started here or by SLURM."
    " They must see the same paths.",
)
@log_option
@format_option
@verbose_option
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[Path | str, ...],
    *,
    out: Path | None,
    true_step_ms: float | None,
    jobs: int | None,
    tracker: str | None,
    scheduler: str,
    format_: str,
    verbose: bool,
) -> None:
    """Diagnose PATH...: run folders, Kineto traces (.json, .json.gz), memory snapshots or folders of them.

    A snapshot (torch.cuda.memory._dump_snapshot) may come alone or with its trace. Several traces are
    read as the ranks of one run: which rank is late, why, and what it costs the others. Of more than a few
    ranks, summaries are kept beside the traces (or in the user's cache folder) for the next time.

    PATH may be an address (s3://bucket/traces, gs://..., a pattern): needs torch-bottleneck[cluster].

    \b
    bottleneck analyze trace.json.gz --true-step-ms 41.5
    bottleneck analyze traces/rank*.json.gz --out reports/job

    Exit codes: 0 diagnosed, 2 bad usage or input, 3 undetermined.
    """
    from ..diagnose import diagnose_paths
    from ..diagnose.own_reports import write_own_reports
    from ..reporters.output import emit, fits_terminal, refuse_foreign_reports, render_for, save
    from ..review.tracking import expect_tracker, log_diagnosis
    from ..runs.environment import usable_cores
    from ..verify.record import tried_in, with_tried
    from .console import RankProgress, say

    if tracker is not None:
        expect_tracker(tracker)
    if not fits_terminal(format_, sys.stdout):
        if out is None:
            raise UsageError(
                "An HTML page cannot be shown in a terminal.",
                remedy="Add --out FOLDER, or redirect: > report.html",
            )
        format_ = "text"
    if out is not None:
        refuse_foreign_reports(out)
    progress = RankProgress()
    diagnosis = diagnose_paths(
        list(paths),
        true_step_ms=true_step_ms,
        jobs=jobs or usable_cores(),
        scheduler=scheduler,
        progress=progress,
        preview=progress.first_words,
    )
    if len(paths) == 1 and isinstance(paths[0], Path) and paths[0].is_dir():
        diagnosis = with_tried(diagnosis, tried_in(paths[0]))
    if out is not None:
        diagnosis = write_own_reports(diagnosis, out, true_step_ms=true_step_ms, tell=say)
        save(diagnosis, out)
    emit(render_for(diagnosis, format_, stream=sys.stdout, verbose=verbose))
    if tracker is not None:
        say(f"logged to {log_diagnosis(diagnosis, tracker)}")
    if diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED:
        ctx.exit(3)
