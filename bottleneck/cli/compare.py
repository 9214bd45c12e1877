"""`bottleneck compare BASE HEAD`: what grew between two sets of runs, and why.

In: run folders, diagnoses or baselines. Out: a report on stdout, files, an exit code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .options.gate import counters_table, shared_options
from .options.values import TrackedPath

if TYPE_CHECKING:
    from ..model.compare import Comparison
    from ..model.gate import GateSettings

EXIT_CODES = {"ok": 0, "regression": 1, "undecided": 3, "incomparable": 3}


@click.command("compare", epilog=counters_table())
@click.argument("paths", nargs=-1, type=TrackedPath(), metavar="BASE HEAD [BASE HEAD]...")
@click.option(
    "--base",
    "bases",
    type=TrackedPath(),
    multiple=True,
    help="A run of the base side, if the sides were not run in turns. May be given several times.",
)
@click.option(
    "--head",
    "heads",
    type=TrackedPath(),
    multiple=True,
    help="A run of the head side. May be given several times.",
)
@shared_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    paths: tuple[Path, ...],
    *,
    bases: tuple[Path, ...],
    heads: tuple[Path, ...],
    format_: str,
    reports: tuple[str, ...],
    verbose: bool,
    **options: Any,
) -> None:
    """Compare HEAD with BASE: run folders, folders of them, diagnosis.json, baselines, runs:/ID of MLflow.

    Counters (synchronisations, kernels, ...) have no noise: one run per side is enough. Step times stay
    undecided without repeated runs. Give runs that were made in turns as pairs: BASE HEAD BASE HEAD.

    Of watched jobs the account and growth are compared, too: steps that grow only in HEAD are a regression.
    The device, batch, world size, kind of step and torch of both sides must agree, except for what
    --allow names. Limits come from [tool.bottleneck.gate] in pyproject.toml.

    \b
    bottleneck compare reports/before reports/after

    Exit codes: 0 no regression, 1 regression, 2 bad usage or input, 3 undecided or incomparable.
    """
    from ..compare.decide import compare_sides
    from ..compare.settings import settings_for
    from ..compare.sides import read_side
    from ..reporters.compare.output import wished_reports

    wishes = wished_reports(reports)
    base_paths, head_paths, pairs = _sides(paths, bases, heads)
    settings = settings_for(Path.cwd(), options)
    base, head = read_side(base_paths), read_side(head_paths)
    comparison = compare_sides(base, head, settings=settings, interleaved=pairs)
    ctx.exit(conclude(comparison, settings, format_=format_, wishes=wishes, verbose=verbose))


def _sides(
    paths: tuple[Path, ...], bases: tuple[Path, ...], heads: tuple[Path, ...]
) -> tuple[list[Path], list[Path], bool]:
    """Return the runs of each side, and whether they were made in turns."""
    if paths and (bases or heads):
        raise UsageError(
            "Give runs either in pairs or with --base and --head, not both.",
            remedy="bottleneck compare BASE HEAD",
        )
    if bases or heads:
        if not (bases and heads):
            raise UsageError(f"No {'head' if bases else 'base'} given.", remedy="Give --base and --head.")
        return list(bases), list(heads), False
    if len(paths) < 2:
        raise UsageError("compare needs two sides.", remedy="bottleneck compare BASE HEAD")
    if len(paths) % 2:
        raise UsageError(
            f"{len(paths)} paths do not form pairs of BASE HEAD.",
            remedy="Give pairs, or name each run with --base or --head.",
        )
    return list(paths[::2]), list(paths[1::2]), len(paths) > 2


def conclude(
    comparison: Comparison,
    settings: GateSettings,
    *,
    format_: str,
    wishes: dict[Path, str],
    verbose: bool,
) -> int:
    """Print and write the reports, and return the exit code."""
    from ..compare.decide import placed_in_repository
    from ..reporters.compare.output import print_comparison

    comparison = placed_in_repository(comparison, Path.cwd())
    print_comparison(comparison, format_, wishes=wishes, verbose=verbose)
    undecided = {"stop": 3, "ok": 0, "fail": 1}[settings.undecided]
    return undecided if comparison.outcome == "undecided" else EXIT_CODES[comparison.outcome]
