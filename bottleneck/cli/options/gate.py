"""Options of `compare` and `gate`.

In: nothing. Out: decorators that add options, and the table of counters for the help page.
"""

from __future__ import annotations

import click

from ...model.counters import COUNTERS
from ...reporters.base import FORMATS
from .shared import module_option, together
from .values import FiniteRange, PlacePath

ALLOWABLE = ("device", "batch", "world-size", "torch", "step")


def counters_table() -> str:
    """Return the counters with the growth allowed by default, for the help page."""
    lines = ["\b", "Counters, and the growth allowed by default:"]
    for name, spec in COUNTERS.items():
        passes = f"{spec.tolerance:.0%}" if spec.tolerance else "none"
        if spec.slack:
            passes += f" + {spec.slack / 1e6:.2g} MB" if spec.unit == "bytes" else f" + {spec.slack:g}"
        scope = "per step" if spec.scope == "step" else "per run"
        lines.append(f"{name:<20} {passes:<9} {spec.title}, {scope}")
    return "\n".join(lines)


shared_options = together(
    click.option(
        "--config",
        type=PlacePath(dir_okay=False),
        help="TOML file with [tool.bottleneck.gate]. Default: the nearest pyproject.toml, upwards from here.",
    ),
    click.option(
        "--allow",
        type=click.Choice(ALLOWABLE),
        multiple=True,
        help="Compare even though this differs. May be given several times.",
    ),
    click.option(
        "--times",
        type=click.Choice(["auto", "gate", "report", "off"]),
        help="Whether the step time counts: auto, always (gate), shown only (report), or off.",
    ),
    click.option(
        "--time-tolerance",
        type=FiniteRange(min=0, min_open=True, max=10, max_open=True),
        help="Relative increase of the step time that counts: 0.05 is 5 %.",
    ),
    click.option(
        "--undecided",
        type=click.Choice(["stop", "ok", "fail"]),
        help="Exit code if the result is undecided: stop 3, ok 0, fail 1.",
    ),
    click.option(
        "--no-gate",
        "ungated",
        metavar="COUNTER",
        multiple=True,
        help="Report this counter, but do not fail on it. May be given several times.",
    ),
    click.option(
        "--report",
        "reports",
        metavar="FILE",
        multiple=True,
        help="Also write a report: .md, .json, .xml (JUnit), .txt, or FORMAT:FILE.",
    ),
    click.option(
        "--format",
        "format_",
        type=click.Choice(list(FORMATS["Comparison"])),
        default="text",
        show_default=True,
    ),
    click.option("-v", "--verbose", is_flag=True, help="Show every counter, kernel and setting."),
)
"""Options of both."""

gate_options = together(
    module_option,
    click.option(
        "--baseline",
        type=PlacePath(dir_okay=False),
        help="Baseline to compare the script with.",
    ),
    click.option(
        "--update-baseline", is_flag=True, help="Show what changed, write a new baseline, and exit 0."
    ),
    click.option(
        "--base",
        "base_folder",
        type=PlacePath(file_okay=False),
        help="Another checkout of the project: SCRIPT is run there and here, in turns.",
    ),
    click.option(
        "--watch", is_flag=True, help="Run SCRIPT to its end without a profiler and compare whole jobs."
    ),
    click.option("--repeat", type=click.IntRange(min=1), help="Runs per side. Default: 3."),
    click.option("--warmup", type=click.IntRange(min=0), help="Steps to skip first. Default: 8."),
    click.option("--baseline-steps", type=click.IntRange(min=2), help="Steps to time. Default: 20."),
    click.option("--steps", type=click.IntRange(min=1), help="Steps to trace. Default: 4."),
    click.option(
        "--history",
        type=PlacePath(file_okay=False, path_type=None),
        help="Folder that keeps past runs, to fail on a slow drift. Use it on the main branch only.",
    ),
    click.option(
        "--out",
        type=PlacePath(file_okay=False),
        help="Keep the run folders here. Default: they are removed.",
    ),
    shared_options,
)
"""Options of `gate`, in the order of its help page."""
