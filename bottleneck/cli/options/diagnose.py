"""Options of `diagnose`.

In: nothing, and what was typed. Out: a decorator that adds options, and the plan that they ask for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...runs.plan import Plan
from .shared import format_option, log_option, module_option, quiet_option, together, verbose_option
from .values import FiniteRange, RanksNamed

if TYPE_CHECKING:
    from ...runs.target import Target

TRIAL_SECONDS = 45.0
"""For trials where the script is stopped afterwards; one that goes on is left alone unless asked."""

diagnose_options = together(
    module_option,
    click.option(
        "--steps",
        type=click.IntRange(min=1),
        default=Plan().steps,
        show_default=True,
        help="Steps to trace with the profiler.",
    ),
    click.option(
        "--ranks",
        type=RanksNamed(),
        default="",
        metavar="LIST|all",
        help="Ranks to trace, as in 0,8-15; all are timed. Default: up to 8 all; of more the first and the "
        "last of each machine, and those that the others wait for.",
    ),
    click.option(
        "--warmup",
        type=click.IntRange(min=0),
        help="Steps to skip first. Default: until step times are stable.",
    ),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="Run folder to write. Default: reports/<script>-<time>.",
    ),
    click.option("--run-to-end", is_flag=True, help="Let the script run to its end after the capture."),
    click.option("--no-memory", is_flag=True, help="Do not record the allocator's history (GPU runs)."),
    click.option(
        "--with-stack", is_flag=True, help="Record Python stacks: names every line, but costs more."
    ),
    click.option(
        "--lines", is_flag=True, help="Record the line of every .item() and similar call, for `compare`."
    ),
    click.option(
        "--max-seconds",
        type=FiniteRange(min=0, min_open=True),
        default=Plan().max_seconds,
        show_default=True,
        help="Time limit for the measured windows, after warm-up. A third of it at most is spent on "
        "timing the step: for 3 s, or until its 95 % interval is within 2 %.",
    ),
    click.option(
        "--trial-seconds",
        type=FiniteRange(min=0),
        envvar="BOTTLENECK_TRIAL_SECONDS",
        show_envvar=True,
        help="Time for trying suggested fixes in the running script, after the capture; 0: none. "
        f"Default: {TRIAL_SECONDS:.0f}; 0 with --run-to-end. Given there, fixes are tried in a copy of the "
        "process, on the CPU only, for which the script waits.",
    ),
    log_option,
    format_option,
    verbose_option,
    quiet_option,
)
"""In the order of the help page; most have the names of a plan's fields."""


def plan_of(
    target: Target,
    words: tuple[str, ...],
    *,
    no_memory: bool,
    run_to_end: bool,
    trial_seconds: float | None,
    **options: Any,
) -> Plan:
    """Return the plan that the options ask for; `words` are the script's."""
    if trial_seconds is None:
        trial_seconds = 0.0 if run_to_end else TRIAL_SECONDS
    return Plan(
        script=target.script,
        module=target.module,
        args=words,
        memory=not no_memory,
        run_to_end=run_to_end,
        trial_seconds=trial_seconds,
        **options,
    )
