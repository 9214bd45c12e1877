"""Options of `verify`: a decorator that adds them, and an error where two contradict each other."""

from __future__ import annotations

import click

from ...errors import UsageError
from ...model.verify import Protocol
from .shared import is_given, module_option, quiet_option, together
from .values import FiniteRange, PlacePath

verify_options = together(
    module_option,
    click.option(
        "--fix",
        "fixes",
        multiple=True,
        metavar="FIX[:NAME=VALUE,...]",
        help="Id of a fix to try, with options if needed; or a file with a diff, your own change. May be"
        " given several times.",
    ),
    click.option(
        "--all",
        "everything",
        is_flag=True,
        help="Try every fix that applies, not only those that answer a finding.",
    ),
    click.option(
        "--combine/--no-combine",
        default=True,
        show_default=True,
        help="At the end, combine the fixes that helped, best first, and keep those that help further.",
    ),
    click.option(
        "--pairs",
        type=click.IntRange(min=2),
        default=Protocol().pairs,
        show_default=True,
        help="Pairs of runs per fix before a decision.",
    ),
    click.option(
        "--max-pairs",
        type=click.IntRange(min=2),
        default=Protocol().max_pairs,
        show_default=True,
        help="Most pairs of runs for a fix that is still undecided.",
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
        help="Time limit of a single run; a longer run counts as failed.",
    ),
    click.option(
        "--steps", type=click.IntRange(min=1), help="Steps to time in each run. Default: as many as needed."
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every run."
    ),
    click.option(
        "--launcher", metavar="WORDS", help='Start runs with this, e.g. "torchrun --nproc-per-node 2".'
    ),
    click.option("--resume", is_flag=True, help="Continue a verification that was stopped."),
    click.option(
        "--out",
        type=PlacePath(),
        help="Folder to write. Default: RUN/verify, or reports/verify-<script>-<time>.",
    ),
    click.option(
        "--patch",
        type=PlacePath(),
        metavar="FILE",
        help="Write the source edits for the best fixes to FILE, as a unified diff.",
    ),
    click.option(
        "--pull-request",
        type=PlacePath(file_okay=False),
        metavar="DIR",
        help="Write a pull request for the best fixes to DIR: changes.patch and pull-request.md.",
    ),
    click.option(
        "--write", is_flag=True, help="Make these edits. Refused unless git has a clean copy of the file."
    ),
    click.option(
        "--format", "format_", type=click.Choice(["text", "md", "json"]), default="text", show_default=True
    ),
    click.option(
        "--yes", is_flag=True, help="Run what RUN names, also if it was copied here or is another user's."
    ),
    quiet_option,
)
"""In the order of the help page."""


def check_together(ctx: click.Context) -> None:
    """Raise UsageError if one option would be silently ignored because of another."""
    fixed = {"fixes": "--fix", "everything": "--all", "pairs": "--pairs", "steps": "--steps"}
    fixed |= {"seed": "--seed", "combine": "--combine"}
    pairs, most, resume = (ctx.params[name] for name in ("pairs", "max_pairs", "resume"))
    for name, option in fixed.items():
        if resume and is_given(ctx, name):
            raise UsageError(
                f"{option} was fixed when the verification began and cannot be given with --resume.",
                remedy="Leave it out, or start a new verification.",
            )
    if pairs > most and is_given(ctx, "max_pairs") and not resume:
        raise UsageError(f"--pairs {pairs} is more than --max-pairs {most}.", remedy="Leave out one of them.")
