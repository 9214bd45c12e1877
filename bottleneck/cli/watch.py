"""`bottleneck watch train.py`: run a script to its end, and say where the time of the whole job went.

In: options, then the script (or `-m` module) with its own arguments; or a run that goes on already. Out: the
script's effects and exit code, a report on stdout once it has ended, and a run folder with watch.json.
"""

from __future__ import annotations

from pathlib import Path

import click
from msgspec.structs import replace

from ..errors import UsageError
from ..runs.plan import Plan
from .console import say
from .group import SCRIPT_WORDS
from .options.shared import module_option, quiet_option
from .options.values import PlacePath
from .script_command import ScriptCommand

SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGRTMIN", "SIGRTMAX")
"""Those that mean nothing by themselves."""


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
@click.option("--live", is_flag=True, help="Show the account on the whole terminal while the job runs.")
@click.option(
    "--on-signal",
    type=click.Choice(SIGNALS),
    help="When this signal comes, to this command or to the script: capture and diagnose, and go on.",
)
@click.option(
    "--diagnose",
    "running",
    type=PlacePath(file_okay=False),
    metavar="RUN",
    help="Instead of running SCRIPT: capture and diagnose the job that writes the folder RUN now.",
)
@click.option(
    "--attach",
    "pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Instead of running SCRIPT: watch a process that runs already, to its end (Python 3.14 and newer).",
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
    live: bool,
    on_signal: str | None,
    running: Path | None,
    pid: int | None,
    quiet: bool,
) -> None:
    """Run SCRIPT to its end as python would, and say where the time of the whole job went.

    Imports, set-up, first steps, training steps, epoch starts, validation, checkpoints, pauses, exit: each
    with its count, its line, and what it would be with its fix where that is arithmetic on what was measured;
    and whether the steps become slower, and what grows beside them. No profiler is attached, unless you ask
    for a capture: --on-signal, or --diagnose from another terminal.

    The run folder holds watch.json, report.md and report.html. A killed job leaves everything up to its last
    seconds, and if this command is killed with it, `report` reads what it left. `report`, `compare` and
    `review` take the folder; `gate --watch` compares whole jobs.

    \b
    bottleneck watch train.py --epochs 10
    bottleneck watch -m package.train config.yaml
    bottleneck watch --diagnose RUN

    Under torchrun, each rank is watched (`torchrun ... -m torch_bottleneck watch train.py`): its account is
    in rank0/, rank1/, ... of the run folder, and the first one reports.

    Exit code: that of the script (1 after an exception, 128 + its number after a signal).
    """
    from ..runs.target import find_target
    from ..watching.asking import diagnose_running
    from ..watching.job import show_capture, watch_job

    if sum((running is not None, pid is not None, module is not None or bool(script))) > 1:
        raise UsageError("SCRIPT, --diagnose and --attach exclude each other.", remedy="Give one of them.")
    if running is not None:
        ctx.exit(show_capture(diagnose_running(running, say=say), format_, say=say))
    plan = Plan(watch=True, on_signal=on_signal or "", quiet=quiet or live)
    if pid is None:
        target = find_target(module, script, verb="watch")
        words = (*ctx.meta.get(SCRIPT_WORDS, ()), *target.args)
        plan = replace(plan, script=target.script, module=module, args=words)
    ctx.exit(watch_job(plan, out, format_, live=live, say=say, pid=pid))
