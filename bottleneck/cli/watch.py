"""`bottleneck watch train.py`: run a script to its end, and say where the time of the whole job went.

In: options, then the script (or `-m` module) with its own arguments. Out: the script's effects and exit code,
a report on stdout once it has ended, and a run folder with watch.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..model.words import shown
from ..runs.plan import Plan
from .console import say
from .group import SCRIPT_WORDS
from .options import module_option, quiet_option
from .script_command import ScriptCommand

if TYPE_CHECKING:
    from ..runs.run_script import RunFolder

__all__ = ["command"]


@click.command("watch", cls=ScriptCommand)
@module_option
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run folder to write. Default: reports/<script>-<time>.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "md", "json", "brief"]),
    default="text",
    show_default=True,
)
@quiet_option
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    module: str | None,
    script: tuple[str, ...],
    out: Path | None,
    format_: str,
    quiet: bool,
) -> None:
    """Run SCRIPT to its end as python would, and say where the time of the whole job went.

    Imports, set-up, first steps, training steps, epoch starts, validation, checkpoints, pauses, exit: each
    with its count, its line, and what it would be with its fix where that is arithmetic on what was measured;
    and whether the steps become slower, and what grows beside them. No profiler is attached.

    The run folder holds watch.json, report.md and report.html. A killed job leaves everything up to its last
    seconds, and if this command is killed with it, `report` reads what it left. `report`, `compare` and
    `review` take the folder; `gate --watch` compares whole jobs.

    \b
    bottleneck watch train.py --epochs 10
    bottleneck watch -m package.train config.yaml

    Under torchrun, each rank is watched (`torchrun ... -m torch_bottleneck watch train.py`): its account is
    in rank0/, rank1/, ... of the run folder, and the first one reports.

    Exit code: that of the script (1 after an exception, 128 + its number after a signal).
    """
    from ..catalog.job import with_fixes
    from ..errors import InputError
    from ..reporters.output import emit, render_watch, save_watch
    from ..runs.job import account_of, join_ranks
    from ..runs.place import choose_place
    from ..runs.run_script import run_script
    from ..runs.target import find_target

    target = find_target(module, script, verb="watch")
    arguments = (*ctx.meta.get(SCRIPT_WORDS, ()), *target.args)
    plan = Plan(script=target.script, module=module, args=arguments, watch=True, quiet=quiet)
    place = choose_place(out, plan)

    def write_account(run: RunFolder, folder: Path) -> None:
        code = run.exit_code(run_to_end=True)
        if code:
            say(run.failure)
        try:
            account_of(run, folder=folder, exit_code=code)
        except InputError as error:
            say(f"the job left no account: {error}")

    run = run_script(plan, place=place, say=say, at_end=write_account)
    if run.folder is not None:
        if run.missing:
            say(f"{run.absence}.")
        watch = join_ranks(run.folder)
        if watch is not None:
            watch = with_fixes(watch)
            save_watch(watch, run.folder)
            emit(render_watch(watch, format_, stream=sys.stdout))
        say(f"run folder: {shown(run.folder)}")
    ctx.exit(run.exit_code(run_to_end=True))
