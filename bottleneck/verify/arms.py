"""One run of an experiment: start the script with some fixes in force, and read back what it did.

In: a target, wishes, and where to write. Out: `RunRecord`; losses stay in the run's own folder. A run
that fails is a result: its reason is kept.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import InputError
from ..files import read_json
from ..model.run import Counters, LoaderFacts, Run, Window
from ..model.verify import EndedBy, RunRecord, Trial, TrialFacts, Wish
from ..runs.environment import environment_of
from ..runs.launch_apart import launch_apart
from ..runs.layout import first_run, processes, run_of
from ..runs.place import Place
from ..runs.plan import Plan
from ..runs.run_script import RunFolder, run_script
from ..runs.target import Target
from ..timeline.steps.basis import find_basis
from ..timeline.steps.clock import step_times
from .own import with_change

_T = TypeVar("_T")

LOG = "output.log"
_TAIL_LINES = 3
_HASHES = {"PYTHONHASHSEED": "0"}
_CACHE = ".inductor"
"""What torch.compile keeps between the runs of one verification."""
_UNKNOWN_ERROR = 0.05
"""Share of the step taken for the error of a mean that has no interval: one step was timed."""


@dataclass(slots=True, kw_only=True)
class Arms:
    """Runs processes into a folder."""

    target: Target
    folder: Path
    """Where verify.json lies; runs go into sub-folders."""
    seed: int = 0
    session: int = 1
    limit_seconds: float = 600.0
    steps: int | None = None
    """Steps to time; None: as many as it takes, which differs with their length."""
    window_seconds: float = 60.0
    _apart: str = ""
    """Folder of the program with the user's own change."""

    def run(self, number: int, wishes: Sequence[Wish], *, parity: bool = False) -> tuple[RunRecord, bool]:
        """Run the script once; return the record, and whether the user asked to stop meanwhile.

        With `parity` losses are compared: every batch is seeded, and times do not count.
        """
        name = f"{number:03d}-{'+'.join(w.fix for w in wishes) or 'as-is'}{'-parity' if parity else ''}"
        place = Place(
            folder=self.folder / "runs" / name,
            process="main" if not self.target.launcher else "rank0",
            leads=True,
        )
        for left in (place.folder, place.working):
            shutil.rmtree(left, ignore_errors=True)
        target, changed = self.target_with(wishes)
        wishes = [
            msgspec.structs.replace(wish, diff="", options={"files": changed}) if wish.diff else wish
            for wish in wishes
        ]
        plan = Plan(
            script=target.script,
            module=target.module,
            args=target.args,
            baseline_steps=self.steps,
            memory=False,
            max_seconds=self.window_seconds,
            trial=Trial(wishes=tuple(wishes), seed=self.seed, seed_batches=parity),
            quiet=True,
        )
        start = functools.partial(
            launch_apart,
            log=place.working / LOG,
            seconds=self.limit_seconds,
            environment={**self._surroundings(), **environment_of(wishes, os.environ)},
            launcher=self.target.launcher,
            cwd=target.cwd,
        )
        run = run_script(plan, place=place, start=start)
        assert run.folder is not None, "its only process leads"
        for saved in run.folder.glob("**/diverted"):
            # What the script saved while it was being stopped: nobody wants a checkpoint per run.
            shutil.rmtree(saved, ignore_errors=True)
        record = self._record(number, wishes, run, run.folder, parity=parity)
        return record, run.ended.interrupted

    def target_with(self, wishes: Sequence[Wish]) -> tuple[Target, list[str]]:
        """Return what is run with these wishes, and the files that the user's own change is in.

        Raises:
            InputError: that change does not apply.
        """
        diff = next((wish.diff for wish in wishes if wish.diff), "")
        if not diff:
            return self.target, []
        # Not inside of what is copied: a program that follows links through its folder would come back.
        self._apart = self._apart or tempfile.mkdtemp(prefix="bottleneck-")
        return with_change(self.target, diff, Path(self._apart) / "changed")

    def _surroundings(self) -> dict[str, str]:
        """Return variables that are the same for all runs."""
        variables = dict(_HASHES)
        if "WANDB_MODE" not in os.environ:
            # Dozens of short runs do not belong on anyone's dashboard.
            variables["WANDB_MODE"] = "offline"
        if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            # The first run that compiles must find an empty cache, as a user's first run does.
            variables["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / _CACHE)
        return variables

    def clean(self) -> None:
        """Remove what only the runs needed."""
        shutil.rmtree(self.folder / _CACHE, ignore_errors=True)
        if self._apart:
            shutil.rmtree(self._apart, ignore_errors=True)

    def _record(
        self,
        number: int,
        wishes: Sequence[Wish],
        run: RunFolder,
        folder: Path,
        *,
        parity: bool,
    ) -> RunRecord:
        facts = read_facts(folder)
        record = RunRecord(
            number=number,
            session=self.session,
            fixes=tuple(wish.fix for wish in wishes),
            purpose="parity" if parity else "timing",
            folder=folder.relative_to(self.folder).as_posix(),
            seconds=run.ended.seconds,
            applied=facts.applied if facts is not None else [],
        )
        if run.ended.interrupted:
            return msgspec.structs.replace(
                record, status="interrupted", ended=EndedBy.USER, reason="stopped by the user"
            )
        timed = timed_step(folder)
        reason = self._failure(run, folder)
        if timed is None or reason:
            first = first_run(folder)
            broken = first.artefacts.get("harness") if first is not None else None
            why = f": {str(broken.reason).strip().splitlines()[-1]}" if broken is not None else ""
            said = reason or f"it ended {_length(first)}before any step could be timed{why}"
            limit = EndedBy.TIME if run.ended.timed_out else EndedBy.FAULT
            how = limit if reason else EndedBy.TOO_SHORT
            return msgspec.structs.replace(record, status="failed", ended=how, reason=said)
        steps = timed.window.steps
        peak, kind = _peak(timed.window.after)
        return msgspec.structs.replace(
            record,
            step_ms=timed.mean_ms,
            standard_error_ms=timed.standard_error_ms,
            steps=timed.steps,
            first_step=steps.index[0] if steps.index else 0,
            times_ms=timed.times_ms,
            peak_bytes=peak,
            peak_is=kind,
            startup_seconds=_startup(timed.window, timed.mean_ms, run.ended.began_ns),
            load_average=timed.run.host.load_average[0] if timed.run.host.load_average else None,
        )

    def _failure(self, run: RunFolder, folder: Path) -> str:
        """Return why the run failed, or "" for one that was stopped by us or came to its end."""
        outcome, ended = run.outcome, run.ended
        if ended.timed_out:
            return f"it did not end within {self.limit_seconds:.0f} s"
        if outcome.out_of_memory:
            return f"out of memory: {outcome.exception}"
        if outcome.how in ("stopped", "finished") and not ended.returncode:
            return ""
        failure = outcome.exception or f"exit code {ended.returncode}"
        if outcome.how in ("killed", "exited"):
            last = _last_lines(folder / LOG) or _last_lines(folder / "main" / LOG)
            return f"{failure}: {last}" if last else failure
        return failure


def read_facts(folder: Path) -> TrialFacts | None:
    """Return the trial.json of a run, of rank 0 where there are several."""
    return _first(folder, "trial.json", TrialFacts)


def first_epoch(folder: Path) -> int | None:
    """Return how many batches the training loader's first pass has, if it began another one."""
    loaders = _first(folder, "loader.json", list[LoaderFacts])
    if loaders is None:
        return None
    passes = [
        loader.length
        for loader in loaders
        if loader.role != "eval" and loader.iterators > 1 and loader.length is not None
    ]
    return min(passes, default=None)


def _first(folder: Path, name: str, kind: type[_T]) -> _T | None:
    """Return what the first process of a run that wrote such a file wrote, as far as it can be read."""
    return next(filter(None, (_read(place, name, kind) for place in processes(folder))), None)


def _loaders(process: Path) -> list[LoaderFacts] | None:
    return _read(process, "loader.json", list[LoaderFacts])


def _read(process: Path, name: str, kind: type[_T]) -> _T | None:
    try:
        return read_json(process / name, kind)
    except (InputError, msgspec.DecodeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """The step of a run, as its deciding rank made it."""

    run: Run
    window: Window
    mean_ms: float
    standard_error_ms: float
    steps: int
    times_ms: list[float | None]
    """Each step where they differ; empty where they are alike."""


def timed_step(folder: Path) -> TimedStep | None:
    """Return the step as `diagnose` reports it: of several ranks the longest; None without timed steps."""
    return max(filter(None, map(_of_rank, processes(folder))), key=lambda rank: rank.mean_ms, default=None)


def _of_rank(folder: Path) -> TimedStep | None:
    run = run_of(folder)
    window = run.window("baseline") if run is not None else None
    if run is None or window is None or not window.steps.wall_ms:
        return None
    basis = find_basis(run, None, given_ms=None, loaders=_loaders(folder) or ())
    step, kept = basis.summary, basis.kept
    if step.true_ms is None or kept is None:
        return None
    ci = step.true_ci_ms
    times, _ = step_times(window.steps)
    return TimedStep(
        run=run,
        window=window,
        mean_ms=step.true_ms,
        standard_error_ms=(ci[1] - ci[0]) / 3.92 if ci is not None else step.true_ms * _UNKNOWN_ERROR,
        steps=step.count,
        times_ms=[
            round(ms, 4) if keep and ms is not None else None for ms, keep in zip(times, kept, strict=True)
        ]
        if basis.varies
        else [],
    )


def _length(run: Run | None) -> str:
    """Say after how many steps a run ended that was too short to time any."""
    steps = (
        max((max(w.steps.index, default=-1) + 1 for w in run.windows), default=0) if run is not None else 0
    )
    return f"after {steps} steps, " if steps else ""


def _peak(counters: Counters | None) -> tuple[int | None, str]:
    if counters is None:
        return None, ""
    for key in ("reserved_bytes.all.peak", "allocated_bytes.all.peak"):
        if key in counters.allocator:
            return counters.allocator[key], "device"
    resident = counters.rusage.get("ru_maxrss")
    return (int(resident * 1024), "host") if resident else (None, "")


def _startup(window: Window, step_ms: float, began_ns: int) -> float | None:
    """Return the seconds before the timed steps that were not spent in steps."""
    steps = window.steps
    if not steps.start_ns or not steps.index:
        return None
    return max(0.0, (steps.start_ns[0] - began_ns) / 1e9 - steps.index[0] * step_ms / 1e3)


def _last_lines(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return " | ".join(lines[-_TAIL_LINES:])[:300]
