"""Runs a script and completes its run folder; used by every command that runs a script.

In: a plan, a place, and how to start the process. Out: a `RunFolder`.
"""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from ..errors import ScriptError
from ..model.words import clean, shown
from .launch import launch, name_signal
from .layout import collect, record_end, report_done, wait_for_ranks
from .leftovers import put_aside, release
from .plan import check_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..model.run import ScriptOutcome
    from .launch import Ended
    from .place import Place
    from .plan import Plan

RANKS_SECONDS = 120.0
"""How long the leading rank waits for the other ranks' folders after its own script has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The folder of a run, and how the run ended."""

    folder: Path | None
    """None on a rank that does not lead: another rank's process puts the folder together."""
    outcome: ScriptOutcome
    ended: Ended
    missing: tuple[int, ...]
    """Ranks that had not reported when the folder was put together."""
    world_size: int
    """Ranks that share the folder."""

    @property
    def ended_by_ctrl_c(self) -> bool:
        """The signal ended the process, which did not handle it."""
        return self.ended.returncode == -signal.SIGINT

    def exit_code(self, *, run_to_end: bool) -> int:
        """Return what the script's end makes of the command's exit code; 0 leaves it to the diagnosis.

        `run_to_end`: the command stands in for `python train.py`, so any end of the script is its own.
        Otherwise the script was to be stopped, and one that fails before is a failed measurement.
        """
        returncode = self.ended.returncode
        if self.outcome.how == "stopped":
            # Whatever ends it while fixes are tried in it is no failure of its own.
            return 0
        if returncode and not run_to_end and self.outcome.how != "exited":
            return ScriptError.exit_code
        # A signal as shells report it.
        return returncode if returncode >= 0 else 128 - returncode

    @property
    def absence(self) -> str:
        """Which ranks are missing, as a sentence without its full stop."""
        return f"ranks {list(self.missing)} left no complete folder within {RANKS_SECONDS:.0f} s"

    @property
    def failure(self) -> str:
        """How the script failed, one sentence."""
        outcome, returncode = self.outcome, self.ended.returncode
        if outcome.out_of_memory:
            return f"the script ran out of memory ({outcome.exception})."
        if returncode < 0:
            text = f"the script was ended by {name_signal(returncode)}"
            if returncode == -signal.SIGKILL:
                text += ", which is also what the kernel sends when the machine runs out of memory"
            return f"{text}."
        if outcome.how == "raised":
            text = f"the script failed with {clean(str(outcome.exception)).rstrip(' .:')}."
            if str(outcome.exception).startswith("ModuleNotFoundError"):
                text += f" The script runs in bottleneck's own interpreter: {sys.executable}"
            return text
        if outcome.how == "killed" and outcome.notes:
            return f"{outcome.notes[0]}."
        if outcome.exception:
            return f"the script ended with exit code {outcome.exit_code} ({outcome.exception})."
        return f"the script ended with exit code {returncode}."


def run_script(
    plan: Plan,
    *,
    place: Place,
    start: Callable[[Plan], Ended] = launch,
    say: Callable[[str], None] | None = None,
    attend: Callable[[], None] | None = None,
    at_end: Callable[[RunFolder, Path], None] | None = None,
) -> RunFolder:
    """Run a script and complete its run folder, however the script ends.

    `attend` is called again and again while `launch` runs the script; `at_end` on every rank once its script
    has ended, with its process folder, before the leading rank puts the folders together.

    Raises:
        InputError: the place is taken, or cannot be written, or another run writes there.
        UsageError: this interpreter has no global lock.
    """
    check_interpreter()
    left = put_aside(place.working, place.process, alone=place.world_size == 1)
    if left is not None and say is not None:
        say(f"moved an earlier run that was killed to {shown(left)}")
    place.prepare()
    plan = msgspec.structs.replace(plan, out=str(place.working), meet=str(place.meet))
    ended = launch(plan, attend=attend) if start is launch else start(plan)
    outcome = record_end(place.working, place.process, plan, ended.returncode)
    place = place.final()
    several = place.world_size > 1
    run = RunFolder(folder=None, outcome=outcome, ended=ended, missing=(), world_size=place.world_size)
    if at_end is not None:
        at_end(run, place.working / place.process)
    if several:
        report_done(place.working, place.process)
    if place.leads:
        missing = wait_for_ranks(place.working, place.ranks, seconds=RANKS_SECONDS) if several else []
        run = replace(run, folder=collect(place.working, place.folder), missing=tuple(missing))
    release()
    return run
