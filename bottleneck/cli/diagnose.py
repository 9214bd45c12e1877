"""`bottleneck diagnose train.py`: run a script under observation and say what its step waits on.

In: options, then the script (or `-m` module) with its own arguments. Out: the script's effects, then
a report on stdout, and a run folder. This process stays light: the script runs in a process of its
own, so a script that is killed or crashes still gets its report.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..model.codes import BottleneckClass
from ..model.words import shown
from .console import say
from .group import SCRIPT_WORDS
from .options.diagnose import diagnose_options, plan_of
from .script_command import ScriptCommand

if TYPE_CHECKING:
    from ..review.tracking import Log
    from ..runs.plan import Plan
    from ..runs.run_script import RunFolder


@click.command("diagnose", cls=ScriptCommand)
@diagnose_options
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
    tracker: str | None,
    **options: Any,
) -> None:
    """Run SCRIPT as python would, and say what its training step waits on.

    Options of bottleneck come before SCRIPT; what follows SCRIPT is passed to it (one `--` directly
    after SCRIPT is dropped). The script is stopped once enough is measured, unless --run-to-end is
    given. Files it saves while it is stopped go into the run folder, not over your checkpoints.

    \b
    bottleneck diagnose train.py --lr 3e-4
    bottleneck diagnose --steps 4 -m package.train config.yaml
    torchrun --nproc-per-node 4 -m torch_bottleneck diagnose train.py

    Exit codes: 0 diagnosed, 2 bad usage or input, 3 undetermined, 4 the script itself failed, 130
    interrupted. A script that exits by itself with another code than 0 hands it on; with --run-to-end
    also after an exception (1) or a signal (128 + its number).
    """
    from ..review.tracking import log_of
    from ..runs.place import choose_place
    from ..runs.run_script import run_script
    from ..runs.target import find_target

    log = log_of(tracker, Path.cwd())
    target = find_target(module, script, verb="diagnose")
    plan = plan_of(target, (*ctx.meta.get(SCRIPT_WORDS, ()), *target.args), **options)
    place = choose_place(out, plan)
    run = run_script(plan, place=place, say=say, attend=partial(_answer, place.working, plan.trial_seconds))
    ctx.exit(_conclude(run, plan, format_=format_, log=log))


def _answer(working: Path, seconds: float) -> None:
    """Tell a process of the run that has captured everything what to try, if it asks."""
    from ..runs.asking import find_question

    if (folder := find_question(working)) is not None:
        from ..diagnose.attend import answer_with_trials

        answer_with_trials(folder, seconds)


def _conclude(run: RunFolder, plan: Plan, *, format_: str, log: Log) -> int:
    """Analyse the run folder, report, and return the exit code.

    Everything is on disk before anything is printed: the streams may be closed or full.
    """
    from ..runs.layout import holds_steps

    failed = run.exit_code(run_to_end=plan.run_to_end)
    if run.folder is None:
        return failed
    if run.ended_by_ctrl_c:
        raise KeyboardInterrupt
    if run.missing:
        say(f"{run.absence}; the report leaves them out.")
    if failed:
        say(run.failure)
        if not holds_steps(run.folder):
            say(f"nothing was measured before that. The files of the run are in {shown(run.folder)}")
            return failed
    from ..diagnose import diagnose_paths
    from ..diagnose.own_reports import write_own_reports
    from ..reporters.output import print_diagnosis, save
    from ..review.logdir import prepare_beside
    from ..runs.environment import usable_cores

    diagnosis = diagnose_paths([run.folder], jobs=usable_cores())
    diagnosis = write_own_reports(diagnosis, run.folder, tell=say)
    save(diagnosis, run.folder)
    problems = prepare_beside(diagnosis, run.folder)
    print_diagnosis(diagnosis, format_, verbose=plan.verbose)
    for problem in problems:
        say(problem)
    say(f"run folder: {shown(run.folder)} (report.html opens in a browser)")
    for where in log(diagnosis, run.folder):
        say(f"logged to {where}")
    undetermined = diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    return failed or (3 if undetermined and run.world_size == 1 else 0)  # 3: a launcher kills the other ranks
