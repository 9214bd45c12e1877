"""`bottleneck compare BASE HEAD`: what grew between two sets of runs, and why.

In: run folders, diagnoses or baselines. Out: a report on stdout, files, an exit code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from ..model.counters import COUNTERS
from .numbers import FiniteRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.compare import Annotation, Comparison
    from ..model.gate import GateSettings

__all__ = ["EXIT_CODES", "command", "conclude", "gate_options", "settings_for"]

FORMATS = ("text", "md", "json", "junit", "github", "gitlab")
ALLOWABLE = ("device", "batch", "world-size", "torch", "step")
EXIT_CODES = {"ok": 0, "regression": 1, "undecided": 3, "incomparable": 3}


def gate_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `compare` and `gate` share."""
    for option in reversed(
        [
            click.option(
                "--config",
                type=click.Path(path_type=Path, dir_okay=False),
                help="TOML file with [tool.bottleneck.gate]. Default: the nearest pyproject.toml upwards.",
            ),
            click.option(
                "--allow",
                type=click.Choice(ALLOWABLE),
                multiple=True,
                help="Compare although this differs. May be given several times.",
            ),
            click.option(
                "--times",
                type=click.Choice(["auto", "gate", "report", "off"]),
                help="Whether the step time counts for the outcome.",
            ),
            click.option(
                "--time-tolerance",
                type=FiniteRange(min=0, min_open=True, max=10, max_open=True),
                help="Increase of the step time that matters, relative: 0.05 is 5 %.",
            ),
            click.option(
                "--undecided",
                type=click.Choice(["stop", "ok", "fail"]),
                help="Exit code where the evidence does not decide: stop 3, ok 0, fail 1.",
            ),
            click.option(
                "--no-gate",
                "ungated",
                metavar="COUNTER",
                multiple=True,
                help="Tell this counter, do not fail on it. May be given several times.",
            ),
            click.option(
                "--report",
                "reports",
                metavar="FILE",
                multiple=True,
                help="Also write a report: .md, .json, .xml (JUnit), .txt, or FORMAT:FILE.",
            ),
            click.option(
                "--format", "format_", type=click.Choice(FORMATS), default="text", show_default=True
            ),
            click.option("-v", "--verbose", is_flag=True, help="Show every counter, kernel and setting."),
        ]
    ):
        function = option(function)
    return function


def counters_table() -> str:
    """Return the counters with the growth that passes by default, for the help page."""
    lines = ["\b", "Counters, and the growth that passes by default:"]
    for name, spec in COUNTERS.items():
        passes = f"{spec.tolerance:.0%}" if spec.tolerance else "none"
        if spec.slack:
            passes += f" + {spec.slack / 1e6:.2g} MB" if spec.unit == "bytes" else f" + {spec.slack:g}"
        scope = "per step" if spec.scope == "step" else "per run"
        lines.append(f"{name:<20} {passes:<9} {spec.title}, {scope}")
    return "\n".join(lines)


@click.command("compare", epilog=counters_table())
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="BASE HEAD [BASE HEAD]...")
@click.option(
    "--base",
    "bases",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A run of the base side, where the sides were not run in turns. May be given several times.",
)
@click.option(
    "--head",
    "heads",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A run of the head side. May be given several times.",
)
@gate_options
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
    """Compare HEAD with BASE: run folders, folders of runs, diagnosis.json files or baselines.

    Counters (synchronisations, kernels, graph breaks, ...) have no noise: one run a side decides. Step
    times are decided from repeated runs; one run a side leaves them undecided. Runs made in turns are
    given in pairs: BASE HEAD BASE HEAD BASE HEAD.

    Refuses sides with another device, batch, world size, kind of step or torch, unless --allow says
    otherwise. Limits come from [tool.bottleneck.gate] of pyproject.toml.

    Exit codes: 0 no regression, 1 regression, 2 bad usage or input, 3 undecided or incomparable.
    """
    from ..compare.decide import compare_sides
    from ..compare.sides import read_side

    wishes = wished_reports(reports)
    base_paths, head_paths, pairs = _sides(paths, bases, heads)
    settings = settings_for(Path.cwd(), options)
    base, head = read_side(base_paths), read_side(head_paths)
    comparison = compare_sides(base, head, settings=settings, interleaved=pairs)
    ctx.exit(conclude(comparison, settings, format_=format_, wishes=wishes, verbose=verbose))


def _sides(
    paths: tuple[Path, ...], bases: tuple[Path, ...], heads: tuple[Path, ...]
) -> tuple[list[Path], list[Path], bool]:
    """Return the runs of either side, and whether they were made in turns."""
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
        raise UsageError("Two sides are needed.", remedy="bottleneck compare BASE HEAD")
    if len(paths) % 2:
        raise UsageError(
            f"{len(paths)} paths are no pairs of BASE HEAD.",
            remedy="Give pairs, or --base and --head for each run.",
        )
    return list(paths[::2]), list(paths[1::2]), len(paths) > 2


def settings_for(folder: Path, options: dict[str, Any]) -> GateSettings:
    """Return the settings of the project, with the command line's options over them.

    Raises:
        UsageError: an option or the project's table names something that does not exist.
    """
    from ..compare.settings import find_settings, read_settings, with_options

    for name in options.get("ungated") or ():
        if name not in COUNTERS:
            raise UsageError(f"There is no counter {name!r}.", remedy=f"Counters: {', '.join(COUNTERS)}.")
    config = options.pop("config", None)
    settings = find_settings(folder) if config is None else read_settings(config)
    allow = tuple(dict.fromkeys([*settings.allow, *(options.pop("allow", None) or ())]))
    return with_options(settings, allow=allow, **options)


def wished_reports(reports: tuple[str, ...]) -> dict[Path, str]:
    """Return file -> format for every --report.

    Raises:
        UsageError: a name tells no format.
    """
    from ..reporters.compare_output import SUFFIXES

    wishes: dict[Path, str] = {}
    for text in reports:
        head, colon, rest = text.partition(":")
        if colon and head in FORMATS and rest:
            wishes[Path(rest)] = head
        elif Path(text).suffix in SUFFIXES:
            wishes[Path(text)] = SUFFIXES[Path(text).suffix]
        else:
            raise UsageError(
                f"--report {text} does not say which format.",
                remedy=f"End it in {', '.join(SUFFIXES)}, or write FORMAT:FILE with {', '.join(FORMATS)}.",
            )
    return wishes


def conclude(
    comparison: Comparison,
    settings: GateSettings,
    *,
    format_: str,
    wishes: dict[Path, str],
    verbose: bool,
) -> int:
    """Print and write the reports, and return the exit code."""
    from ..reporters.compare_output import render_comparison, write_job_summary, write_reports
    from ..reporters.output import emit

    comparison = _told_from_the_repository(comparison, Path.cwd())
    emit(render_comparison(comparison, format_, stream=sys.stdout, verbose=verbose))
    write_reports(comparison, wishes, verbose=verbose)
    write_job_summary(comparison)
    if comparison.outcome == "undecided":
        return {"stop": 3, "ok": 0, "fail": 1}[settings.undecided]
    return EXIT_CODES[comparison.outcome]


def _told_from_the_repository(comparison: Comparison, folder: Path) -> Comparison:
    """Tell the places of annotations from the root of the repository, as GitHub and GitLab want them."""
    import msgspec

    top = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)
    prefix = folder.relative_to(top)
    if not prefix.parts:
        return comparison

    def moved(note: Annotation) -> Annotation:
        if note.site is None or Path(note.site.file).is_absolute():
            return note
        site = msgspec.structs.replace(note.site, file=str(prefix / note.site.file))
        return msgspec.structs.replace(note, site=site)

    return msgspec.structs.replace(comparison, annotations=tuple(map(moved, comparison.annotations)))
