"""What a verification starts from: a run folder, a script, or a verification that was stopped.

In: the command line's words. Out: a `Source`, then the folder to write, the first state, and the
candidates in their order.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import shlex
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from .. import __version__
from ..errors import InputError, ScriptError, UsageError
from ..files import named, path_of
from ..model.diagnosis import Diagnosis
from ..model.documents import (
    DIAGNOSIS_FILE,
    VERIFY_FILE,
    load_diagnosis,
    load_verification,
    read_run,
    run_files,
)
from ..model.run import Run
from ..model.verify import Protocol, Verification
from ..model.words import shown
from ..runs.layout import holds_steps
from ..runs.place import choose_place
from ..runs.plan import Plan
from ..runs.run_script import run_script
from ..runs.target import Target, find_target
from .record import VERIFY_FOLDER
from .rows import Candidate, candidate_again
from .wishes import candidates_from, candidates_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is to be run."""

    target: Target
    run_folder: Path | None = None
    """The run that it comes from."""
    verification: Path | None = None
    """The verification that it comes from."""
    foreign: str = ""
    """Why the folder may be somebody else's; nothing is then run unasked. Empty: it is the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for, as its options say it."""

    fixes: tuple[str, ...]
    everything: bool
    """Try whatever applies."""
    combine: bool
    """Try those that helped together."""
    pairs: int
    max_pairs: int
    max_pairs_given: bool
    budget_minutes: float
    run_limit_minutes: float
    steps: int | None
    seed: int
    resume: bool
    out: Path | None
    """Folder to write."""


def launcher_words(text: str | None) -> tuple[str, ...]:
    """Return the words of --launcher.

    Raises:
        UsageError: they cannot be told apart, or name no program.
    """
    try:
        words = tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(f"--launcher {text!r} cannot be read: {error}.") from None
    if words and shutil.which(words[0]) is None:
        raise UsageError(f"--launcher: there is no program {words[0]!r}.")
    return words


def find_source(module: str | None, words: tuple[str, ...], *, launcher: tuple[str, ...]) -> Source:
    """Find the run or script that the command line names.

    Raises:
        UsageError: nothing is named.
        InputError: what is named is neither a run nor a script.
    """
    if module is None and not (words and words[0]):
        raise UsageError("Nothing to verify.", remedy="bottleneck verify RUN, or verify --fix FIX train.py")
    if module is None and Path(words[0]).is_dir():
        if len(words) > 1:
            raise UsageError(f"A run folder takes no arguments: {' '.join(words[1:])}.")
        return _from_folder(Path(words[0]), launcher)
    target = find_target(module, words, verb="verify")
    return Source(target=dataclasses.replace(target, launcher=launcher, cwd=Path.cwd()))


def _from_folder(folder: Path, launcher: tuple[str, ...]) -> Source:
    if (folder / VERIFY_FILE).is_file():
        state = load_verification(folder)
        target = Target(
            script=named(state.script) if state.script is not None else None,
            module=state.module,
            args=tuple(map(named, state.args)),
            launcher=launcher or state.launcher,
            cwd=_existing(path_of(state.cwd), folder),
        )
        return Source(
            target=target, verification=folder, foreign=_foreign(folder, folder / VERIFY_FILE, state.place)
        )
    file = next(iter(run_files(folder)), None)
    if file is None:
        raise InputError(
            f"{folder} is not a run folder: it has no run.json.",
            remedy="Give a folder written by `bottleneck diagnose`, or a script.",
        )
    run = read_run(file)
    if run.world_size > 1 and run.launched is not False and not launcher:
        raise InputError(
            f"{folder} was run on {run.world_size} ranks.",
            remedy=f'Say how to start them: --launcher "torchrun --nproc-per-node {run.world_size}".',
        )
    target = _target_of(run, folder, launcher)
    return Source(target=target, run_folder=folder, foreign=_foreign(folder, file, run.place))


def _foreign(folder: Path, file: Path, place: int) -> str:
    """Return why a folder may have been made by somebody else, or elsewhere."""
    here = folder.absolute()
    if any(part.stat().st_uid != os.getuid() for part in (here, file)):
        return "it belongs to another user"
    if place not in (here.stat().st_ino, here.parent.stat().st_ino):
        return "it was copied here, or made by an earlier version"
    return ""


def _target_of(run: Run, folder: Path, launcher: tuple[str, ...]) -> Target:
    if not any(run.command[:1]):
        raise InputError(
            f"{folder} does not record which script it ran.",
            remedy="Name the script: bottleneck verify train.py",
        )
    first, *arguments = map(named, run.command)
    cwd = _existing(path_of(run.cwd), folder)
    if first.startswith("-m "):
        return Target(module=first.removeprefix("-m "), args=tuple(arguments), launcher=launcher, cwd=cwd)
    if not (cwd / first).is_file():
        raise InputError(
            f"The script of {folder} no longer exists: {cwd / first}.",
            remedy="Name it: bottleneck verify --fix FIX train.py",
        )
    return Target(script=first, args=tuple(arguments), launcher=launcher, cwd=cwd)


def _existing(cwd: Path, folder: Path) -> Path:
    if not cwd.is_dir():
        raise InputError(
            f"{folder} was run in {cwd}, which does not exist here.",
            remedy="Go to the script's folder and name it: bottleneck verify --fix FIX train.py",
        )
    return cwd


def start(
    source: Source,
    asked: Asked,
    *,
    say: Callable[[str], None],
    diagnose: Callable[[Path], Diagnosis],
    keep: Callable[[Diagnosis, Path], object],
) -> tuple[Path, Verification, tuple[Candidate, ...]]:
    """Choose what to try and where to write, or find the verification to continue.

    `keep` writes the diagnosis of a run that was made here, and its reports, into its folder.

    Raises:
        UsageError: nothing was asked for, or what cannot be tried.
        InputError: the place is taken, or there is nothing to go on with.
    """
    if asked.resume:
        return resume_from(
            source,
            asked.out,
            budget_seconds=asked.budget_minutes * 60,
            max_pairs=asked.max_pairs if asked.max_pairs_given else None,
        )
    if source.verification is not None:
        raise UsageError(
            f"{shown(source.verification)} already holds a verification.",
            remedy="Continue it with --resume, or start from its run folder.",
        )
    notes: list[str] = []
    run_folder, diagnosis = source.run_folder, None
    if run_folder is None:
        if not asked.fixes and not asked.everything:
            raise UsageError(
                "No fix is given.",
                remedy="Name fixes with --fix, try all with --all, or start from a run folder.",
            )
        # Before minutes of running, not after.
        candidates_from(asked.fixes, None)
        if asked.everything:
            say("diagnosing first, to find out which fixes apply")
            run_folder = _run_once(source.target)
            diagnosis = diagnose(run_folder)
            keep(diagnosis, run_folder)
    else:
        diagnosis = _known(run_folder, everything=asked.everything) or diagnose(run_folder)
    candidates = candidates_from(asked.fixes, diagnosis)
    if diagnosis is not None and (asked.everything or not asked.fixes):
        named = {candidate.fixes for candidate in candidates}
        found = candidates_of(diagnosis, everything=asked.everything)
        candidates = (*candidates, *(c for c in found if c.fixes not in named))
        if diagnosis.step.true_is == "profiled":
            notes.append("The predictions start from a profiled step, which is longer than the true step.")
    if not candidates:
        raise InputError(
            "No fix of this run can be tried without editing the script.",
            remedy="`bottleneck report` shows what to change by hand; --all tries every fix that applies.",
        )
    folder = _new_folder(asked.out, run_folder, source.target)
    state = Verification(
        tool_version=__version__,
        created=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        script=source.target.script,
        module=source.target.module,
        args=source.target.args,
        cwd=str(source.target.cwd),
        launcher=source.target.launcher,
        protocol=Protocol(
            pairs=asked.pairs,
            max_pairs=max(asked.pairs, asked.max_pairs),
            budget_seconds=asked.budget_minutes * 60,
            seed=asked.seed,
            steps=asked.steps,
        ),
        wishes=tuple(wish for candidate in candidates for wish in candidate.wishes),
        combine=asked.combine,
        outcomes=tuple(candidate.row for candidate in candidates),
        notes=tuple(notes),
        predicted_for=diagnosis.device if diagnosis is not None else None,
        **_predicted_pair(diagnosis),
    )
    return folder, state, candidates


def _predicted_pair(diagnosis: Diagnosis | None) -> dict[str, Any]:
    """Return what the diagnosis predicts of two fixes together."""
    together = diagnosis.combination if diagnosis is not None else None
    if diagnosis is None or together is None or not diagnosis.step.true_ms or together.bound:
        return {}
    return {
        "predicted_pair": together.fixes,
        "predicted_pair_ratio": diagnosis.step.true_ms / together.predicted_ms,
    }


def resume_from(
    source: Source, out: Path | None, *, budget_seconds: float | None, max_pairs: int | None
) -> tuple[Path, Verification, tuple[Candidate, ...]]:
    """Find the verification to continue.

    `out` is the folder of the verification, where it was written elsewhere. Without `max_pairs` as many are
    made as it was begun with, so that there is nothing left to do for what these have decided.

    Raises:
        InputError: there is none.
    """
    place = out or source.verification
    if place is None and source.run_folder is not None:
        found = sorted(source.run_folder.glob(f"{VERIFY_FOLDER}*/{VERIFY_FILE}"), key=_modified)
        place = found[-1].parent if found else source.run_folder / VERIFY_FOLDER
    if place is None:
        raise UsageError(
            "No verification to resume is given.", remedy="Give its folder, or the folder of its run."
        )
    state = load_verification(place)
    kept = msgspec.structs.replace(
        state.protocol,
        budget_seconds=budget_seconds,
        max_pairs=state.protocol.max_pairs if max_pairs is None else max(state.protocol.pairs, max_pairs),
    )
    singles = [row for row in state.outcomes if not row.base and len(row.fixes) == 1]
    candidates = tuple(candidate_again(row, state.wishes) for row in singles)
    return place.absolute(), msgspec.structs.replace(state, protocol=kept, complete=False), candidates


def _modified(file: Path) -> int:
    return file.stat().st_mtime_ns


def _known(folder: Path, *, everything: bool) -> Diagnosis | None:
    """Return the run's diagnosis; None if there is none, or an older one without what applies."""
    if (folder / DIAGNOSIS_FILE).is_file():
        known = load_diagnosis(folder)
        if known.applicable or not everything:
            return known
    return None


def _run_once(target: Target) -> Path:
    """Run the script under observation once, as `bottleneck diagnose` does, and return its folder.

    Raises:
        ScriptError: nothing could be measured.
    """
    if target.launcher:
        raise UsageError("--all with --launcher needs a run folder: run diagnose under the launcher first.")
    plan = Plan(script=target.script, module=target.module, args=target.args, quiet=True)
    # Whatever else was started beside us: each verification is a run of its own.
    place = dataclasses.replace(choose_place(None, plan), leads=True, ranks=(0,), fellows=None)
    run = run_script(plan, place=place)
    if run.ended_by_ctrl_c or run.outcome.how == "interrupted":
        raise KeyboardInterrupt
    assert run.folder is not None, "its only process leads"
    if not holds_steps(run.folder):
        why = run.outcome.exception or f"exit code {run.ended.returncode}"
        raise ScriptError(f"{target.name} could not be diagnosed: {why}.")
    return run.folder


def _new_folder(out: Path | None, run_folder: Path | None, target: Target) -> Path:
    """Return the folder to write; one that holds a verification already is not touched.

    Raises:
        InputError: the place given is taken.
    """
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(
                f"{out} already exists.",
                remedy="Choose another folder with --out, or continue it with --resume.",
            )
        return out.absolute()
    if run_folder is None:
        stem = (
            Path(target.script).stem if target.script is not None else str(target.module).rpartition(".")[2]
        )
        return Path("reports", f"verify-{stem}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    place, number = run_folder / VERIFY_FOLDER, 1
    while place.exists():
        number += 1
        place = run_folder / f"{VERIFY_FOLDER}-{number}"
    return place.absolute()
