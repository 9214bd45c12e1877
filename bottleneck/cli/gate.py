"""`bottleneck gate train.py --baseline FILE`: run the script, compare, and say pass or fail.

In: a script with its arguments, and what it is compared with: a committed baseline, or another
checkout that is run in turns with this one. Out: a report on stdout, files, an exit code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .compare import conclude
from .console import say
from .options.gate import gate_options
from .script_command import ScriptCommand


@click.command("gate", cls=ScriptCommand)
@gate_options
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    module: str | None,
    baseline: Path | None,
    update_baseline: bool,
    base_folder: Path | None,
    watch: bool,
    out: Path | None,
    format_: str,
    reports: tuple[str, ...],
    verbose: bool,
    script: tuple[str, ...],
    **options: Any,
) -> None:
    """Run SCRIPT several times and fail if its training step got worse.

    \b
    bottleneck gate --baseline base.json train.py --epochs 1
    bottleneck gate --baseline base.json --update-baseline train.py --epochs 1
    bottleneck gate --base ../main-checkout train.py --epochs 1

    Counters (synchronisations, kernels, graph breaks, copies, ...) are exact on any machine, with or
    without a GPU, and are compared with the baseline. Step times count only if both sides run in turns
    on this machine (--base). Against a stored baseline they are reported but do not fail the gate,
    unless --times gate is given.

    With --watch, SCRIPT is run to its end each time, and whole jobs are compared: the step time, the job's
    time, and steps that grow where they did not.

    The script's output goes to stderr. Limits come from [tool.bottleneck.gate] in pyproject.toml.

    Exit codes: 0 no regression, 1 regression, 2 bad usage or input, 3 undecided or incomparable,
    4 the script itself failed.
    """
    from ..compare.baseline_file import write_baseline
    from ..compare.gate import WINDOWS, Gate
    from ..compare.settings import settings_for
    from ..model.documents import expect_writable
    from ..reporters.compare.output import wished_reports
    from ..runs.target import find_target

    gate = Gate(
        target=find_target(module, script, verb="gate"),
        baseline=baseline,
        base_folder=base_folder,
        update=update_baseline,
        watch=watch,
    )
    settings = settings_for(Path.cwd(), options)
    gate.check(settings)
    wishes = wished_reports(reports)
    # Before minutes of running, not after.
    for file in (*wishes, *([baseline] if update_baseline and baseline is not None else [])):
        expect_writable(file)
    given = {name: options[name] for name in WINDOWS if options[name] is not None}
    outcome = gate.run(settings, given=given, out=out, say=say)
    if outcome is None:
        return  # another rank reports for all ranks
    code = 0
    if outcome.comparison is not None:
        code = conclude(outcome.comparison, settings, format_=format_, wishes=wishes, verbose=verbose)
    if update_baseline and baseline is not None:
        write_baseline(outcome.new_baseline, baseline)
        say(f"{'rewrote' if outcome.had_baseline else 'wrote'} {baseline}")
        code = 0
    ctx.exit(code)
