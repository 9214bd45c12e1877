"""`bottleneck diagnose train.py`: run a script under observation and say what its step waits on.

In: options, then the script (or `-m` module) with its own arguments. Out: the script's effects, then
a report on stdout, and a run folder. This process stays light: the script runs in a process of its
own, so a script that is killed or crashes still gets its report.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import InputError, ScriptError, UsageError
from ..model.codes import BottleneckClass
from ..reporters.base import FORMATS
from ..runs.plan import Plan
from .main import SCRIPT_WORDS
from .numbers import FiniteRange

if TYPE_CHECKING:
    from ..model.diagnosis import Diagnosis
    from ..model.run import ScriptOutcome
    from ..runs.place import Place

__all__ = ["ScriptCommand", "check_script", "command", "shown", "split_words"]

RANKS_SECONDS = 120.0
"""How long rank 0 waits for the other ranks' folders after its own script has ended."""
TENSORBOARD_BYTES = 32 * 1024**2
"""Larger traces are left to `bottleneck review`: copying one takes as long as reading it again."""
LAUNCHERS = {
    "python": "Leave `python` out: bottleneck {verb} train.py",
    "python3": "Leave `python3` out: bottleneck {verb} train.py",
    "torchrun": "Put the launcher first: torchrun ... -m torch_bottleneck {verb} train.py",
    "accelerate": "Put the launcher first: accelerate launch ... -m torch_bottleneck {verb} train.py",
    "deepspeed": "Put the launcher first: deepspeed ... --module torch_bottleneck {verb} train.py",
}

OTHER_KINDS = {
    ".ipynb": ("a notebook", "Make a script of it first: jupyter nbconvert --to script {}"),
    ".json": ("JSON", "A profiler trace is read by: bottleneck analyze {}"),
}
"""Suffix -> what it is, and what to do: JSON that happens to be a Python expression would run."""


class ScriptCommand(click.Command):
    """A command whose options end at the script: everything behind it is the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Close our options after `-m module` too, as python does."""
        return super().parse_args(ctx, self._close_after_module(args))

    def target_position(self, args: list[str]) -> int:
        """Return where the script stands, or the `-m` in its place, or `--`, or the end."""
        valued = {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }
        position = 0
        while position < len(args):
            word = args[position]
            if word in ("--", "-") or not word.startswith("-"):
                break
            if word.startswith("-m") and not word.startswith("--"):
                break
            position += 2 if word in valued else 1
        return min(position, len(args))

    def _close_after_module(self, args: list[str]) -> list[str]:
        position = self.target_position(args)
        word = args[position] if position < len(args) else ""
        if word == "-m":
            return [*args[: position + 2], "--", *args[position + 2 :]]
        if word.startswith("-m"):
            return [*args[:position], "-m", word[2:], "--", *args[position + 1 :]]
        return args


@click.command(
    "diagnose",
    cls=ScriptCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=Plan().steps,
    show_default=True,
    help="Steps to trace with the profiler.",
)
@click.option(
    "--warmup", type=click.IntRange(min=0), help="Steps to skip first. Default: until times settle."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Run folder to write. Default: reports/<script>-<time>.",
)
@click.option("--run-to-end", is_flag=True, help="Let the script run on after the capture.")
@click.option("--no-memory", is_flag=True, help="Leave out the allocator's history (GPU runs).")
@click.option("--with-stack", is_flag=True, help="Record Python stacks: dearer, names every line.")
@click.option("--lines", is_flag=True, help="Name the line of every .item() and the like, for `compare`.")
@click.option(
    "--max-seconds",
    type=FiniteRange(min=0, min_open=True),
    default=Plan().max_seconds,
    show_default=True,
    help="Limit on the measured windows, beyond warm-up.",
)
@click.option("--format", "format_", type=click.Choice(list(FORMATS)), default="text", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Show all findings, evidence, kernels and settings.")
@click.option("-q", "--quiet", is_flag=True, help="No progress lines.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    module: str | None,
    steps: int,
    warmup: int | None,
    out: Path | None,
    run_to_end: bool,
    no_memory: bool,
    with_stack: bool,
    lines: bool,
    max_seconds: float,
    format_: str,
    verbose: bool,
    quiet: bool,
    script: tuple[str, ...],
) -> None:
    """Run SCRIPT as python would, and say what its training step waits on.

    Options of ours come before SCRIPT; what follows it is the script's own (one `--` directly
    behind SCRIPT is dropped). The script is stopped once enough is measured, unless --run-to-end;
    what it saves while stopping goes into the run folder, not over your checkpoints.

    \b
    bottleneck diagnose train.py --lr 3e-4
    bottleneck diagnose --steps 4 -m package.train config.yaml
    torchrun --nproc-per-node 4 -m torch_bottleneck diagnose train.py

    Exit codes: 0 diagnosed, 2 bad usage or input, 3 undetermined, 4 the script itself failed.
    """
    from ..runs.launch import launch
    from ..runs.leftovers import put_aside
    from ..runs.place import choose_place

    target, arguments = split_words(module, script)
    arguments = (*ctx.meta.get(SCRIPT_WORDS, ()), *arguments)
    if module is None:
        check_script(target)
    place = choose_place(out, target=target, is_module=module is not None)
    plan = Plan(
        script=target if module is None else None,
        module=module,
        args=arguments,
        out=str(place.working),
        steps=steps,
        warmup=warmup,
        run_to_end=run_to_end,
        memory=not no_memory,
        with_stack=with_stack,
        lines=lines,
        max_seconds=max_seconds,
        quiet=quiet,
        verbose=verbose,
    )
    left = put_aside(place.working, place.process, alone=place.world_size == 1)
    if left is not None:
        _say(f"a run that was killed before it was whole lies in {shown(left)} now")
    place.prepare()
    returncode = launch(plan)
    ctx.exit(_conclude(place, plan, returncode, format_=format_))


def split_words(module: str | None, words: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return (script or module, its arguments)."""
    if module is not None:
        if module == "--":
            raise UsageError("-m names no module.", remedy=f"bottleneck {_verb()} -m package.module")
        return module, words[1:] if words[:1] == ("--",) else words
    if not words:
        raise UsageError(
            "No script given.", remedy=f"bottleneck {_verb()} [options] train.py [its arguments]"
        )
    target, rest = words[0], words[1:]
    return target, rest[1:] if rest[:1] == ("--",) else rest


def _verb() -> str:
    """Return the verb that was typed: other verbs take scripts as this one does."""
    context = click.get_current_context(silent=True)
    return (context.info_name if context is not None else None) or "diagnose"


def check_script(target: str) -> None:
    """Say at once, and without a traceback, what python would stumble over.

    Raises:
        InputError: there is no such script, or it is no Python source.
    """
    path = Path(target)
    if path.is_dir():
        inside = path / "__main__.py"
        hint = f"Run {inside}, or `-m {path.name}`." if inside.is_file() else "Name the script in it."
        raise InputError(f"{target} is a folder, not a script.", remedy=hint)
    if not path.exists():
        hint = f"The working folder is {Path.cwd()}."
        if path.name in LAUNCHERS:
            hint = LAUNCHERS[path.name].format(verb=_verb())
            if _verb() == "verify" and not path.name.startswith("python"):
                hint = f'Name the launcher with its options apart: --launcher "{path.name} ..."'
        if target.startswith("-"):
            hint = f"Options of bottleneck come before the script: see `bottleneck {_verb()} --help`."
        raise InputError(f"There is no script {target}.", remedy=hint)
    if not path.is_file():
        # Reading a pipe would wait for its writer, and leave nothing for the script's process.
        raise InputError(f"{target} is no file but a pipe or a device.", remedy="Write the script to a file.")
    if path.suffix in OTHER_KINDS:
        kind, hint = OTHER_KINDS[path.suffix]
        raise InputError(f"{target} is {kind}, not Python source.", remedy=hint.format(path))
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {target}: {error.strerror}.") from None
    if source.startswith(b"PK\x03\x04") and path.suffix in (".pyz", ".zip"):
        raise InputError(f"{target} is a zip archive.", remedy="Unpack it, and name the script in it.")
    if b"\0" in source[:65536]:
        raise InputError(f"{target} is a binary file, not Python source.")
    if path.suffix != ".py":
        try:
            compile(source, target, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            raise InputError(f"{target} is not Python source.") from None


def _conclude(place: Place, plan: Plan, returncode: int, *, format_: str) -> int:
    """Put the run folder together, analyse it, report, and return the exit code."""
    from ..runs.layout import collect, holds_steps, record_end, report_done, wait_for_ranks

    outcome = record_end(place.working, place.process, plan, returncode)
    place = place.settled()
    if place.world_size > 1:
        report_done(place.working, place.process)
    if not place.leads:
        # Another rank's process puts the folder together and reports on all of us.
        return ScriptError.exit_code if returncode else 0
    missing: list[int] = []
    if place.world_size > 1:
        missing = wait_for_ranks(place.working, place.ranks, seconds=RANKS_SECONDS)
    folder = collect(place.working, place.folder)
    if returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    if missing:
        _say(f"ranks {missing} left no whole folder within {RANKS_SECONDS:.0f} s; reported without.")
    if returncode:
        _say(_failure(outcome, returncode))
        if not holds_steps(folder):
            _say(f"nothing was measured before that. What is known lies in {shown(folder)}")
            return ScriptError.exit_code
    diagnosis = _report(folder, format_=format_, verbose=plan.verbose)
    _say(f"run folder: {shown(folder)} (report.html opens in a browser)")
    if returncode:
        return ScriptError.exit_code
    undetermined = diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED
    # A launcher takes any exit code but 0 as a failed job and kills the other ranks.
    return 3 if undetermined and place.world_size == 1 else 0


def _report(folder: Path, *, format_: str, verbose: bool) -> Diagnosis:
    from ..diagnose import diagnose_paths
    from ..reporters.output import emit, fits_terminal, render_for, save

    if not fits_terminal(format_, sys.stdout):
        format_ = "text"  # report.html lies in the run folder anyway
    diagnosis = diagnose_paths([folder])
    save(diagnosis, folder)
    emit(render_for(diagnosis, format_, stream=sys.stdout, verbose=verbose))
    _prepare_tensorboard(diagnosis, folder)
    return diagnosis


def _prepare_tensorboard(diagnosis: Diagnosis, folder: Path) -> None:
    """Leave beside the report what `tensorboard --logdir reports` shows; the report never waits for it."""
    try:
        from ..review.logdir import FOLDER, prepare_run

        prepared = prepare_run(
            diagnosis, [folder], folder / FOLDER, run=folder.name, most_bytes=TENSORBOARD_BYTES
        )
        for problem in prepared.problems:
            _say(f"TensorBoard: {problem}")
    except Exception as error:  # noqa: BLE001 - an extra: whatever is wrong with it, the diagnosis stands
        _say(f"the run folder was not prepared for TensorBoard: {error}")


def _failure(outcome: ScriptOutcome, returncode: int) -> str:
    """Return one sentence on how the script failed."""
    if outcome.out_of_memory:
        return f"the script ran out of memory ({outcome.exception})."
    if returncode < 0:
        from ..runs.launch import name_signal

        text = f"the script was ended by {name_signal(returncode)}"
        if returncode == -signal.SIGKILL:
            text += ", which is also what the kernel sends when the machine runs out of memory"
        return f"{text}."
    if outcome.how == "raised":
        text = f"the script failed with {outcome.exception}."
        if str(outcome.exception).startswith("ModuleNotFoundError"):
            text += f" It runs in the interpreter that bottleneck is installed in: {sys.executable}"
        return text
    if outcome.exception:
        return f"the script ended with exit code {outcome.exit_code} ({outcome.exception})."
    return f"the script ended with exit code {returncode}."


def shown(path: Path) -> str:
    """Return a path as short as it can be from where the user stands."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _say(text: str) -> None:
    click.echo(f"bottleneck: {text}", err=True)
