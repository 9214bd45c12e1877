"""`bottleneck doctor [PATH...]`: finds what would go wrong in this environment.

In: this environment, and paths to traces if given. Out: one line per check, with what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError
from .options.values import PlacePath

if TYPE_CHECKING:
    from ..doctor.check import Check

_MARKS = {"ok": "ok     ", "note": "note   ", "warning": "warning", "problem": "PROBLEM"}


@click.command("doctor")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=PlacePath())
@click.option("--quick", is_flag=True, help="Skip the slow checks: a test profile, loading plugins.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, paths: tuple[Path, ...], *, quick: bool, format_: str) -> None:
    """Check versions, GPUs, cores, the profiler, permissions and space; with PATH..., also traces.

    \b
    bottleneck doctor traces/

    Nothing is changed. Exit codes: 0 no problem (there may be warnings), 2 a problem.
    """
    for path in paths:
        if not path.exists():
            # Before the checks that take seconds.
            raise InputError(f"{path} does not exist.", remedy="Check the path.")
    checks: list[Check] = []
    for check in _checks(paths, quick=quick):
        checks.append(check)
        if format_ == "text":
            _show(check)
    if format_ == "json":
        import msgspec

        from ..reporters.output import emit

        emit(msgspec.json.format(msgspec.json.encode(checks), indent=2).decode() + "\n")
    if any(check.level == "problem" for check in checks):
        ctx.exit(2)


def _checks(paths: tuple[Path, ...], *, quick: bool) -> Iterator[Check]:
    from ..doctor.files import check_files
    from ..doctor.gpu import check_gpus, check_processors
    from ..doctor.machine import check_profiler, check_space
    from ..doctor.versions import check_plugins, check_versions
    from ..runs.environment import available_memory

    yield from check_versions()
    # Before our own test profile, which would be other work.
    yield from check_gpus()
    yield from check_processors()
    if not quick:
        yield from check_plugins()
        yield from check_profiler()
    yield from check_space(Path("reports"))
    if paths:
        yield from check_files(paths, memory=available_memory())


def _show(check: Check) -> None:
    from ..model.words import clean
    from ..reporters.output import emit

    text = f"{_MARKS[check.level]}  {check.area}: {clean(check.text)}\n"
    if check.remedy:
        text += f"{'':9}To do: {clean(check.remedy)}\n"
    emit(text)
