"""`bottleneck verify`: try fixes on a script that nobody edits, and hold the predictions against it.

In: a run folder, or a script with the fixes to try. Out: a table on stdout; verify.json, verify.md and
every run's own folder on disk. This process stays light: each run is a process of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ..errors import InputError, UsageError
from ..model.verify import Protocol
from .diagnose import ScriptCommand, shown
from .numbers import FiniteRange

if TYPE_CHECKING:
    from ..model.verify import Verification

__all__ = ["command"]

_OURS_BEHIND_SCRIPT = ("--fix", "--all", "--resume")
"""Options that may also stand directly behind SCRIPT, before its own arguments."""


class _VerifyCommand(ScriptCommand):
    """Options may follow a run folder, which takes no arguments, and some of them a script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Bring our options to the front."""
        position = self.target_position(args)
        if position < len(args) and args[position] != "--":
            target, rest = args[position], args[position + 1 :]
            if Path(target).is_dir():
                args = [*args[:position], *rest, target]
            else:
                ours = _leading(rest)
                args = [*args[:position], *rest[:ours], target, *rest[ours:]]
        return super().parse_args(ctx, args)


def _leading(words: list[str]) -> int:
    """Return how many of the words behind a script are options of ours."""
    count = 0
    while count < len(words):
        name = words[count].partition("=")[0]
        if name not in _OURS_BEHIND_SCRIPT:
            break
        count += 2 if words[count] == "--fix" else 1
    return min(count, len(words))


@click.command(
    "verify",
    cls=_VerifyCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@click.option(
    "--fix",
    "fixes",
    multiple=True,
    metavar="FX...[:NAME=VALUE,...]",
    help="A fix to try, perhaps with options: FX101:num_workers=8. May be given several times.",
)
@click.option(
    "--all", "everything", is_flag=True, help="Try every fix that applies, not only what answers a finding."
)
@click.option(
    "--combine/--no-combine",
    default=True,
    show_default=True,
    help="At the end, put those that helped together, the best first, and keep what helps further.",
)
@click.option(
    "--pairs",
    type=click.IntRange(min=2),
    default=Protocol().pairs,
    show_default=True,
    help="Pairs of runs per fix before anything is decided.",
)
@click.option(
    "--max-pairs",
    type=click.IntRange(min=2),
    default=Protocol().max_pairs,
    show_default=True,
    help="Pairs of runs per fix, at most, while it is undecided.",
)
@click.option(
    "--budget",
    type=FiniteRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="MINUTES",
    help="Time for the whole verification.",
)
@click.option(
    "--run-limit",
    type=FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="MINUTES",
    help="Time for a single run, after which it counts as failed.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), help="Steps to time in each run. Default: until they tell."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every run.")
@click.option("--launcher", metavar="WORDS", help='Start with this: "torchrun --nproc-per-node 2".')
@click.option("--resume", is_flag=True, help="Go on with a verification that was stopped.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder to write. Default: RUN/verify, or reports/verify-<script>-<time>.",
)
@click.option(
    "--patch",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the edits that keep the winning fixes to FILE, as a unified diff.",
)
@click.option("--write", is_flag=True, help="Make these edits. Refused where git holds no clean copy.")
@click.option(
    "--format", "format_", type=click.Choice(["text", "md", "json"]), default="text", show_default=True
)
@click.option("-q", "--quiet", is_flag=True, help="No progress lines.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="RUN | SCRIPT [ARGS]...")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    module: str | None,
    fixes: tuple[str, ...],
    everything: bool,
    combine: bool,
    pairs: int,
    max_pairs: int,
    budget: float,
    run_limit: float,
    steps: int | None,
    seed: int,
    launcher: str | None,
    resume: bool,
    out: Path | None,
    patch: Path | None,
    write: bool,
    format_: str,
    quiet: bool,
    words: tuple[str, ...],
) -> None:
    """Measure fixes by running the script with and without them, in turns.

    RUN is a folder that `bottleneck diagnose` has written: its script, arguments and suggestions are
    taken from there. Or name a SCRIPT with its arguments and the fixes to try. The source is not
    touched: fixes are applied while the script runs. Each run is stopped once its steps are timed;
    checkpoints that the script writes until then are written in every run.

    \b
    bottleneck verify reports/train-20260101-120000
    bottleneck verify reports/train-20260101-120000 --all
    bottleneck verify train.py --fix FX101:num_workers=8 --fix FX311 --lr 3e-4

    Exit codes: 0 measured, 2 bad usage or input, 4 the script itself failed, 130 interrupted.
    """
    from ..model.files import expect_writable
    from ..verify.arms import Arms
    from ..verify.edits import must_be_clean, script_file, with_edits
    from ..verify.session import Session
    from .verify_source import begin, find_source, launcher_words, resume_from

    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            "verify starts every run itself, so it cannot itself run under torchrun.",
            remedy='bottleneck verify --launcher "torchrun --nproc-per-node 2" --fix FX... train.py',
        )
    _check_together(ctx, resume=resume)
    say = _silent if quiet else _say
    protocol = Protocol(
        pairs=pairs,
        max_pairs=max(pairs, max_pairs),
        budget_seconds=budget * 60,
        seed=seed,
        steps=steps,
    )
    source = find_source(module, words, launcher=launcher_words(launcher))
    file = script_file(source.target.cwd or Path.cwd(), source.target.script, source.target.module)
    # Before minutes of running, not after.
    if write and file is not None:
        must_be_clean(file)
    if patch is not None:
        expect_writable(patch)
    if resume:
        given = _is_given(ctx, "max_pairs")
        folder, state, candidates = resume_from(
            source, out, budget_seconds=protocol.budget_seconds, max_pairs=max_pairs if given else None
        )
    else:
        folder, state, candidates = begin(
            source, out, protocol, fixes=fixes, everything=everything, combine=combine, say=say
        )
    session = Session(
        arms=Arms(
            target=source.target,
            folder=folder,
            seed=state.protocol.seed,
            session=1 + max((run.session for run in state.runs), default=0),
            limit_seconds=run_limit * 60,
            steps=state.protocol.steps,
        ),
        state=state,
        candidates=candidates,
        save=lambda current: _save(current, folder),
        say=say,
    )
    interrupted = False
    try:
        session.run()
    except KeyboardInterrupt:
        # Between two runs; what was measured is on disk and is reported all the same.
        interrupted = True
    finally:
        session.arms.clean()
    state = with_edits(session.state)
    _save(state, folder, report=True)
    _accumulate(state, folder, source.run_folder)
    _report(state, format_)
    say(f"verification: {shown(folder)}")
    if patch is not None or write:
        _apply(state, patch=patch, write=write)
    ctx.exit(130 if interrupted or session.interrupted else 0)


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _check_together(ctx: click.Context, *, resume: bool) -> None:
    """Refuse options of which one would be passed over in silence.

    Raises:
        UsageError: two options contradict each other.
    """
    if resume:
        settled = {"fixes": "--fix", "everything": "--all", "pairs": "--pairs", "steps": "--steps"}
        settled |= {"seed": "--seed", "combine": "--combine"}
        for name, option in settled.items():
            if _is_given(ctx, name):
                raise UsageError(
                    f"{option} was settled when the verification began, so --resume does not take it.",
                    remedy="Begin a new verification, or leave it out.",
                )
    pairs, most = ctx.params["pairs"], ctx.params["max_pairs"]
    if pairs > most and _is_given(ctx, "max_pairs") and not resume:
        raise UsageError(f"--pairs {pairs} is more than --max-pairs {most}.", remedy="Leave one of them out.")


def _save(state: Verification, folder: Path, *, report: bool = False) -> None:
    from ..model.documents import VERIFY_FILE, document_text
    from ..model.files import write_text
    from ..reporters.verify_markdown import render as as_markdown

    write_text(folder / VERIFY_FILE, document_text(state))
    if report:
        write_text(folder / "verify.md", as_markdown(state))


def _accumulate(state: Verification, folder: Path, run_folder: Path | None) -> None:
    """Show in the run's own reports what was measured of its fixes, wherever that was written to."""
    from ..model.documents import DIAGNOSIS_FILE, load_diagnosis
    from ..reporters.output import save
    from ..verify.record import tried_in, with_tried

    run = run_folder or folder.parent
    if not (run / DIAGNOSIS_FILE).is_file() or not any(row.verdict != "not run" for row in state.outcomes):
        return
    try:
        save(with_tried(load_diagnosis(run), [*tried_in(run), state]), run)
    except InputError as error:
        # A run folder that cannot be written to: the verification itself is whole.
        _say(f"the reports in {shown(run)} are left as they were: {error}")


def _report(state: Verification, format_: str) -> None:
    from ..reporters.output import emit, traits

    if format_ == "json":
        from ..model.documents import document_text

        emit(document_text(state))
    elif format_ == "md":
        from ..reporters.verify_markdown import render as as_markdown

        emit(as_markdown(state))
    else:
        from ..reporters.verify_terminal import render as as_text

        able = traits(sys.stdout)
        emit(as_text(state, width=able.width, color=able.color, unicode=able.unicode))


def _apply(state: Verification, *, patch: Path | None, write: bool) -> None:
    """Write the diffs to a file, or into the sources.

    Raises:
        InputError: there is nothing to write, or git holds no clean copy of a source.
    """
    from ..model.files import write_text
    from ..verify.edits import SAID_ALREADY, joined_diff, write_edits

    if not state.combination:
        raise InputError("No fix was proven to help, so there is nothing to change.")
    if not any(edit.diff for edit in state.edits):
        raise InputError(
            "None of the edits is known to the letter.", remedy="The report says what to change, and where."
        )
    if patch is not None:
        write_text(patch, joined_diff(state.edits))
        _say(f"patch: {shown(patch)}")
    if write:
        for file in write_edits(state.edits):
            _say(f"changed {shown(file)}")
    for edit in state.edits:
        if not edit.diff and edit.reason != SAID_ALREADY:
            _say(f"{edit.fix} is left to you: {edit.reason}")


def _say(text: str) -> None:
    click.echo(f"bottleneck: {text}", err=True)


def _silent(_text: str) -> None:
    pass
