"""What may be typed behind `verify`, and what not together.

In: the options given. Out: a decorator that adds options; an error where two contradict each other.
"""

from __future__ import annotations

from pathlib import Path

import click
from click.core import ParameterSource

from ..errors import UsageError
from ..model.verify import Protocol
from .options import FiniteRange, module_option, quiet_option, together

__all__ = ["check_together", "is_given", "verify_options"]

verify_options = together(
    module_option,
    click.option(
        "--fix",
        "fixes",
        multiple=True,
        metavar="FIX[:NAME=VALUE,...]",
        help="A fix to try, by its id, perhaps with options. May be given several times.",
    ),
    click.option(
        "--all",
        "everything",
        is_flag=True,
        help="Try every fix that applies, not only what answers a finding.",
    ),
    click.option(
        "--combine/--no-combine",
        default=True,
        show_default=True,
        help="At the end, put those that helped together, the best first, and keep what helps further.",
    ),
    click.option(
        "--pairs",
        type=click.IntRange(min=2),
        default=Protocol().pairs,
        show_default=True,
        help="Pairs of runs per fix before anything is decided.",
    ),
    click.option(
        "--max-pairs",
        type=click.IntRange(min=2),
        default=Protocol().max_pairs,
        show_default=True,
        help="Pairs of runs per fix, at most, while it is undecided.",
    ),
    click.option(
        "--budget",
        "budget_minutes",
        type=FiniteRange(min=0, min_open=True),
        default=30.0,
        show_default=True,
        metavar="MINUTES",
        help="Time for the whole verification.",
    ),
    click.option(
        "--run-limit",
        "run_limit_minutes",
        type=FiniteRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        metavar="MINUTES",
        help="Time for a single run, after which it counts as failed.",
    ),
    click.option(
        "--steps", type=click.IntRange(min=1), help="Steps to time in each run. Default: until they tell."
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every run."
    ),
    click.option("--launcher", metavar="WORDS", help='Start with this: "torchrun --nproc-per-node 2".'),
    click.option("--resume", is_flag=True, help="Go on with a verification that was stopped."),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="Folder to write. Default: RUN/verify, or reports/verify-<script>-<time>.",
    ),
    click.option(
        "--patch",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the edits that keep the winning fixes to FILE, as a unified diff.",
    ),
    click.option("--write", is_flag=True, help="Make these edits. Refused where git holds no clean copy."),
    click.option(
        "--format", "format_", type=click.Choice(["text", "md", "json"]), default="text", show_default=True
    ),
    quiet_option,
)
"""In the order of the help page."""


def is_given(ctx: click.Context, name: str) -> bool:
    """Say whether the user has typed the option."""
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def check_together(ctx: click.Context) -> None:
    """Raise UsageError where one option would be passed over in silence because of another."""
    settled = {"fixes": "--fix", "everything": "--all", "pairs": "--pairs", "steps": "--steps"}
    settled |= {"seed": "--seed", "combine": "--combine"}
    pairs, most, resume = (ctx.params[name] for name in ("pairs", "max_pairs", "resume"))
    for name, option in settled.items():
        if resume and is_given(ctx, name):
            raise UsageError(
                f"{option} was settled when the verification began, so --resume does not take it.",
                remedy="Begin a new verification, or leave it out.",
            )
    if pairs > most and is_given(ctx, "max_pairs") and not resume:
        raise UsageError(f"--pairs {pairs} is more than --max-pairs {most}.", remedy="Leave one of them out.")
