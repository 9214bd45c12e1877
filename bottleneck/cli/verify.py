"""`bottleneck verify`: try fixes without editing the script, and compare measured with predicted gains.

In: a run folder, or a script with the fixes to try. Out: a table on stdout; verify.json, verify.md and
every run's own folder on disk. This process stays light: each run is a separate process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from ..model.words import shown
from .console import ask_to_run, say, silent
from .options.shared import is_given
from .options.verify import check_together, verify_options
from .script_command import VerifyCommand

PULL_REQUEST = "pull-request.md"


@click.command("verify", cls=VerifyCommand)
@verify_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RUN | SCRIPT [ARGS]...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    module: str | None,
    words: tuple[str, ...],
    launcher: str | None,
    patch: Path | None,
    pull_request: Path | None,
    write: bool,
    format_: str,
    quiet: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Measure fixes by running the script with and without them, in turns.

    RUN is a folder written by `bottleneck diagnose`; its script, arguments and suggested fixes are
    used. Or name a SCRIPT with its arguments and the fixes to try. The source is not changed: fixes
    are applied while the script runs. Each run is stopped once its steps are timed; checkpoints that
    the script writes before that are written in every run.

    \b
    bottleneck verify reports/train-20260101-120000
    bottleneck verify reports/train-20260101-120000 --all
    bottleneck verify train.py --fix FX101:num_workers=8 --fix FX311 --lr 3e-4
    bottleneck verify --fix faster.diff train.py

    A run folder that was copied from elsewhere, or belongs to another user, says itself what is run:
    you are asked first, or give --yes.

    Exit codes: 0 measured, 2 bad usage or input, 4 the script itself failed, 130 interrupted.
    """
    from ..diagnose import diagnose_paths
    from ..model.documents import expect_writable, write_text
    from ..reporters.output import emit, render_for, save
    from ..reporters.pull_request import render as as_pull_request
    from ..verify.edits import must_be_clean, script_file
    from ..verify.record import accumulate
    from ..verify.run import apply_edits, patch_of_pull_request, run_verification
    from ..verify.source import Asked, find_source, launcher_words, start

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            "verify starts every run itself, so it cannot run under torchrun.",
            remedy='bottleneck verify --launcher "torchrun --nproc-per-node 2" --fix FIX train.py',
        )
    check_together(ctx)
    source = find_source(module, words, launcher=launcher_words(launcher))
    if source.foreign and not yes:
        ask_to_run(source)
    file = script_file(source.target.cwd or Path.cwd(), source.target.script, source.target.module)
    # Before minutes of running, not after.
    if write and file is not None:
        must_be_clean(file)
    for place in (patch, pull_request / PULL_REQUEST if pull_request is not None else None):
        if place is not None:
            expect_writable(place)
    progress = silent if quiet else say
    asked = Asked(**options, max_pairs_given=is_given(ctx, "max_pairs"))
    folder, state, candidates = start(
        source, asked, say=progress, diagnose=lambda run: diagnose_paths([run]), keep=save
    )
    state, interrupted = run_verification(
        source.target, folder, state, candidates, limit_seconds=asked.run_limit_minutes * 60, say=progress
    )
    write_text(folder / "verify.md", render_for(state, "md"))
    accumulate(state, source.run_folder or folder.parent, keep=save, say=say)
    emit(render_for(state, format_, stream=sys.stdout))
    progress(f"verification: {shown(folder)}")
    if pull_request is not None:
        patch_of_pull_request(state, pull_request / "changes.patch", say=say)
        write_text(pull_request / PULL_REQUEST, as_pull_request(state))
        say(f"pull request: {shown(pull_request)}")
    if patch is not None or write:
        apply_edits(state, patch=patch, write=write, say=say)
    ctx.exit(130 if interrupted else 0)
