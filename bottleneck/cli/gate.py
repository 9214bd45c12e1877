"""`bottleneck gate train.py --baseline FILE`: run the script, compare, and say pass or fail.

In: a script with its arguments, and what it is held against: a committed baseline, or another
checkout that is run in turns with this one. Out: a report on stdout, files, an exit code.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError, UndeterminedError, UsageError
from ..runs.plan import Plan
from .compare import conclude, gate_options, settings_for, wished_reports
from .diagnose import ScriptCommand, check_script, split_words

if TYPE_CHECKING:
    from ..compare.sides import Side
    from ..model.baseline import Baseline
    from ..model.gate import GateSettings
    from ..model.run import SourceSite

__all__ = ["command"]

_TRACE_BYTES = 1_000_000_000
_SECONDS = 600.0
"""A window cut short by the clock counts other steps than the baseline did: CI has time limits of its own."""
_WINDOWS = ("warmup", "baseline_steps", "steps")


@click.command(
    "gate",
    cls=ScriptCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@click.option(
    "--baseline",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Baseline to hold the script against.",
)
@click.option(
    "--update-baseline", is_flag=True, help="Write the baseline anew, after telling what changed; exit 0."
)
@click.option(
    "--base",
    "base_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Another checkout of the project: SCRIPT is run there in turns with here.",
)
@click.option("--repeat", type=click.IntRange(min=1), help="Runs per side. Default: 3.")
@click.option("--warmup", type=click.IntRange(min=0), help="Steps to skip first. Default: 8.")
@click.option("--baseline-steps", type=click.IntRange(min=2), help="Steps to time. Default: 20.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps to trace. Default: 4.")
@click.option(
    "--history",
    type=click.Path(file_okay=False),
    help="Folder that keeps the past runs: fails on a slow drift. Use it on the main branch only.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the run folders here. Default: they are removed.",
)
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
    out: Path | None,
    format_: str,
    reports: tuple[str, ...],
    verbose: bool,
    script: tuple[str, ...],
    **options: Any,
) -> None:
    """Run SCRIPT several times and fail if its training step has become worse.

    \b
    bottleneck gate --baseline base.json train.py --epochs 1
    bottleneck gate --baseline base.json --update-baseline train.py --epochs 1
    bottleneck gate --base ../main-checkout train.py --epochs 1

    Counters (synchronisations, kernels, graph breaks, copies, ...) are exact on any machine, a CPU-only
    one too, and are held against the baseline. Step times are decided only where both sides run in
    turns on this machine (--base); against a stored baseline they are told, not gated (--times gate).

    The script's output goes to stderr. Limits: [tool.bottleneck.gate] of pyproject.toml.

    Exit codes: 0 no regression, 1 regression, 2 bad usage or input, 3 undecided or incomparable,
    4 the script itself failed.
    """
    from ..compare.history import read_history
    from ..model.files import expect_writable

    target, arguments = split_words(module, script)
    if module is None:
        check_script(target)
    _check(baseline, base_folder, update=update_baseline, script=target if module is None else None)
    wishes = wished_reports(reports)
    # Before minutes of running, not after.
    for file in (*wishes, *([baseline] if update_baseline and baseline is not None else [])):
        expect_writable(file)
    settings = settings_for(Path.cwd(), options)
    if settings.history is not None:
        read_history(Path(settings.history), series="")
    stored = _stored(baseline, update=update_baseline)
    windows = _windows(settings, stored, options, update=update_baseline)
    plan = Plan(
        script=target if module is None else None,
        module=module,
        args=arguments,
        memory=False,
        quiet=True,
        lines=True,
        # A trace that is first probed for its size begins some steps later, and other steps count.
        trace_bytes_cap=_TRACE_BYTES,
        max_seconds=_SECONDS,
        **windows,
    )
    with ExitStack() as stack:
        into = out if out is not None else _temporary(stack)
        head, base = _measure(plan, settings, base_folder=base_folder, into=into)
        if head is None:
            return  # another rank reports on all of us
        head = _with_plan(head, windows)
        if stored is not None:
            base = _side(str(baseline), stored)
        code = 0
        if base is not None:
            code = _compare(
                base,
                head,
                settings,
                interleaved=base_folder is not None,
                format_=format_,
                wishes=wishes,
                verbose=verbose,
            )
        if update_baseline:
            _update(baseline, head, old=stored, times=settings.times != "off")
            code = 0
    ctx.exit(code)


def _check(baseline: Path | None, base_folder: Path | None, *, update: bool, script: str | None) -> None:
    """Say at once what does not go together.

    Raises:
        UsageError: nothing to compare with, or two things.
        InputError: a place is not there.
    """
    if baseline is None and base_folder is None:
        raise UsageError(
            "Nothing to hold the script against.",
            remedy="Give --baseline FILE (write it first with --update-baseline) or --base DIR.",
        )
    if baseline is not None and base_folder is not None:
        raise UsageError("--baseline and --base are two things to hold it against.", remedy="Give one.")
    if update and baseline is None:
        raise UsageError("--update-baseline needs --baseline FILE.")
    if base_folder is None:
        return
    if not base_folder.is_dir():
        raise InputError(f"There is no folder {base_folder}.", remedy="Name another checkout with --base.")
    if script is not None:
        if Path(script).is_absolute():
            raise UsageError(
                f"{script} is one file for both sides.", remedy="Name it from the working folder."
            )
        check_script(str(base_folder / script))


def _stored(baseline: Path | None, *, update: bool) -> Baseline | None:
    from ..compare.baseline_file import read_baseline

    if baseline is None or (update and not baseline.exists()):
        return None
    return read_baseline(baseline)


def _windows(
    settings: GateSettings, stored: Baseline | None, options: dict[str, Any], *, update: bool
) -> dict[str, Any]:
    """Return the window lengths: given, else those of the baseline, else the project's.

    The same steps must be counted on both sides: a baseline therefore brings its own windows.
    """
    windows = {name: int(getattr(settings, name)) for name in _WINDOWS}
    if stored is not None and not update:
        windows |= {name: steps for name, steps in stored.plan.items() if name in _WINDOWS}
    return windows | {name: options[name] for name in _WINDOWS if options.get(name) is not None}


def _temporary(stack: ExitStack) -> Path:
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise UsageError("Several ranks need one folder that all of them see.", remedy="Give --out DIR.")
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bottleneck-gate-")))


def _measure(
    plan: Plan, settings: GateSettings, *, base_folder: Path | None, into: Path
) -> tuple[Side | None, Side | None]:
    """Run, and return (head, base); base only where it was run too."""
    from ..compare.repeats import Arm, run_in_turns
    from ..compare.sides import read_side

    arms: tuple[Arm, ...] = (Arm(name="head"),)
    if base_folder is not None:
        arms = (Arm(name="base", cwd=base_folder), *arms)
    # Counters need no repeats; without times to tell, one run does.
    repeat = 1 if settings.times == "off" else settings.repeat
    folders = run_in_turns(plan, arms, repeat=repeat, into=into, say=_say)
    if not folders["head"]:
        return None, None
    head = _side(plan.target, read_side(folders["head"], root=Path.cwd()).baseline)
    if head.baseline.counters is None or not head.baseline.counters.values:
        raise UndeterminedError(
            "The runs hold nothing to compare: no counter was measured.",
            remedy="See what `bottleneck diagnose` says of the script.",
        )
    if base_folder is None:
        return head, None
    base = read_side(folders["base"], root=base_folder).baseline
    _check_apart(base, base_folder)
    return head, _side(f"{base_folder}/{plan.target}", base)


def _check_apart(base: Baseline, base_folder: Path) -> None:
    """The runs of the other checkout must have run its own code.

    Raises:
        InputError: they took files of this checkout.
    """
    from ..compare.repeats import foreign_files

    sites: list[SourceSite | None] = []
    if base.counters is not None:
        sites += [item.site for item in base.counters.syncs]
        sites += [item.site for item in base.counters.breaks]
    if base.workload is not None:
        sites += [item.site for item in base.workload.loaders]
        sites += [item.site for item in base.workload.optimizers]
    files = foreign_files(sites, here=Path.cwd(), there=base_folder.absolute())
    if files:
        raise InputError(
            f"The run in {base_folder} took {files[0]} from this checkout, so both sides ran the same code.",
            remedy="Uninstall the project: it must be imported from the working folder.",
        )


def _side(label: str, baseline: Baseline) -> Side:
    from ..compare.sides import Side

    return Side(label=label, baseline=baseline)


def _with_plan(side: Side, windows: dict[str, int]) -> Side:
    import msgspec

    return _side(side.label, msgspec.structs.replace(side.baseline, plan=dict(sorted(windows.items()))))


def _compare(
    base: Side,
    head: Side,
    settings: GateSettings,
    *,
    interleaved: bool,
    format_: str,
    wishes: dict[Path, str],
    verbose: bool,
) -> int:
    from ..compare.baseline_file import baseline_text
    from ..compare.decide import compare_sides
    from ..compare.history import append, entry_of, find_drifts, read_history

    entry = None
    drifts: tuple[Any, ...] = ()
    if settings.history is not None:
        entry = entry_of(head.baseline, against="" if interleaved else baseline_text(base.baseline))
        past = read_history(Path(settings.history), entry.series)
        drifts = find_drifts([*past, entry], settings)
    comparison = compare_sides(base, head, settings=settings, interleaved=interleaved, drifts=drifts)
    if entry is not None and settings.history is not None and comparison.outcome != "incomparable":
        append(Path(settings.history), entry)
    return conclude(comparison, settings, format_=format_, wishes=wishes, verbose=verbose)


def _update(baseline: Path | None, head: Side, *, old: Baseline | None, times: bool) -> None:
    from ..compare.baseline_file import write_baseline
    from ..compare.join import counters_only

    assert baseline is not None
    write_baseline(head.baseline if times else counters_only(head.baseline), baseline)
    _say(f"{'rewrote' if old is not None else 'wrote'} {baseline}")


def _say(text: str) -> None:
    click.echo(f"bottleneck: {text}", err=True)
