"""A job that `bottleneck watch` runs, from its start to its report.

In: a plan. Out: the run folder with watch.json and reports, the report on stdout, and the exit code.
"""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING

from ..catalog.job import with_fixes
from ..errors import InputError
from ..model.codes import BottleneckClass
from ..model.documents import load_diagnosis
from ..model.words import shown
from ..reporters.output import emit, print_diagnosis, render_for, save_watch
from ..runs.job import account_of, join_ranks
from ..runs.place import choose_place
from ..runs.run_script import run_script
from .attach import attach_and_wait, plan_of_process
from .diagnosing import CaptureDiagnoses
from .live import LiveView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..runs.plan import Plan
    from ..runs.run_script import RunFolder

    Say = Callable[[str], None]


def watch_job(
    plan: Plan, out: Path | None, format_: str, *, live: bool, say: Say, pid: int | None = None
) -> int:
    """Run a script to its end, or attach to one that runs, report, and return its exit code."""
    if pid is not None:
        plan = plan_of_process(pid, plan)
    place = choose_place(out, plan)
    diagnoses = CaptureDiagnoses(place.working / place.process)
    with contextlib.ExitStack() as until_it_ends:
        attending = [diagnoses.attend]
        if live and place.leads:
            view = LiveView(place.working / place.process, title=" ".join([plan.target, *plan.args]), say=say)
            until_it_ends.callback(view.close)
            attending.append(view.attend)

        def attend() -> None:
            for attended in attending:
                attended()

        def at_end(run: RunFolder, folder: Path) -> None:
            until_it_ends.close()
            _write_account(run, folder, diagnoses=diagnoses, say=say)

        if pid is None:
            run = run_script(plan, place=place, say=say, attend=attend, at_end=at_end)
        else:
            start = partial(attach_and_wait, pid, attend, say)
            run = run_script(plan, place=place, start=start, say=say, at_end=at_end)
    if run.folder is not None:
        if run.missing:
            say(f"{run.absence}.")
        watch = join_ranks(run.folder)
        if watch is not None:
            watch = with_fixes(watch)
            save_watch(watch, run.folder)
            emit(render_for(watch, format_, stream=sys.stdout))
        say(f"run folder: {shown(run.folder)}")
    return run.exit_code(run_to_end=True)


def _write_account(run: RunFolder, folder: Path, *, diagnoses: CaptureDiagnoses, say: Say) -> None:
    """The script has ended, and its process folder is complete."""
    code = run.exit_code(run_to_end=True)
    if code:
        say(run.failure)
    diagnoses.finish()
    try:
        account_of(run, folder=folder, exit_code=code)
    except InputError as error:
        say(f"the job left no account: {error}")


def show_capture(folder: Path, format_: str, *, say: Say) -> int:
    """Report on a capture that was diagnosed, and return the exit code."""
    diagnosis = load_diagnosis(folder)
    print_diagnosis(diagnosis, format_)
    say(f"run folder: {shown(folder)} (below RUN once the job has ended; report.html opens in a browser)")
    return 3 if diagnosis.verdict.bottleneck_class is BottleneckClass.UNDETERMINED else 0
