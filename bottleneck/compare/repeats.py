"""Runs the script repeatedly, so that there is something to compare.

In: what to run, how often, in which folders. Out: run folders, in order. Two sides are run in turns,
base head head base base head: whatever drifts on the machine meanwhile hits both alike.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, ScriptError
from ..model.run import SourceSite
from ..runs.job import account_of
from ..runs.launch import launch, name_signal
from ..runs.layout import holds_steps
from ..runs.place import choose_place
from ..runs.plan import Plan
from ..runs.run_script import run_script

_STDERR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side to run."""

    name: str
    """"base" or "head"; its runs are called base-1, base-2, ..."""
    cwd: Path | None = None
    """Working folder of the script: another checkout of it. None: ours."""


def run_in_turns(
    plan: Plan,
    arms: tuple[Arm, ...],
    *,
    repeat: int,
    into: Path,
    say: Callable[[str], None],
) -> dict[str, list[Path]]:
    """Run each side `repeat` times; return its run folders by its name, none on a rank that does not lead.

    Raises:
        ScriptError: the script failed.
        InputError: it trained no step, or `into` cannot be written.
    """
    folders: dict[str, list[Path]] = {arm.name: [] for arm in arms}
    total = repeat * len(arms)
    for number, (arm, turn) in enumerate(_turns(arms, repeat), start=1):
        say(f"run {number} of {total}: {arm.name} {turn}")
        folder = _run(plan, arm, into / f"{arm.name}-{turn}")
        if folder is not None:
            folders[arm.name].append(folder)
    return folders


def _turns(arms: tuple[Arm, ...], repeat: int) -> Iterator[tuple[Arm, int]]:
    for turn in range(1, repeat + 1):
        order = arms if turn % 2 else tuple(reversed(arms))
        for arm in order:
            yield arm, turn


def _run(plan: Plan, arm: Arm, folder: Path) -> Path | None:
    """Run once and return the run folder; None on a rank that does not lead."""
    place = choose_place(folder, plan)
    sys.stdout.flush()
    # The report is what stdout is for; what the script prints goes where our progress goes.
    start = functools.partial(launch, cwd=arm.cwd, stdout=_STDERR, variables=_variables(arm))
    run = run_script(plan, place=place, start=start)
    if run.missing:
        raise InputError(
            f"{run.absence.capitalize()}.", remedy="Give --out DIR, a folder that all of them can access."
        )
    if run.ended_by_ctrl_c:
        raise KeyboardInterrupt
    code = run.ended.returncode
    if code:
        how = f"was ended by {name_signal(code)}" if code < 0 else f"ended with code {code}"
        why = f": {run.outcome.exception}" if run.outcome.exception else ""
        raise ScriptError(f"{plan.target} {how} ({arm.name}){why}", remedy="Nothing was compared.")
    if run.folder is not None and not holds_steps(run.folder):
        raise InputError(
            f"{plan.target} trained no step that could be measured ({arm.name}).",
            remedy="Let it run longer, or give --warmup 2 --baseline-steps 5 --steps 2.",
        )
    if plan.watch and run.folder is not None:
        account_of(run, folder=run.folder, exit_code=0)
    return run.folder


def _variables(arm: Arm) -> dict[str, str]:
    """Turn entries of PYTHONPATH that lie in this checkout to the same places in the other one."""
    given = os.environ.get("PYTHONPATH")
    if arm.cwd is None or not given:
        return {}
    here, there = Path.cwd(), arm.cwd.absolute()
    entries = []
    for entry in given.split(os.pathsep):
        place = (here / entry) if entry else here
        inside = place.is_relative_to(here) and not place.is_relative_to(there)
        entries.append(str(there / place.relative_to(here)) if inside else entry)
    return {"PYTHONPATH": os.pathsep.join(entries)}


def foreign_files(sites: Iterable[SourceSite | None], *, here: Path, there: Path) -> list[str]:
    """Return the user's files that a run of the other checkout took from this one.

    An editable installation of the project points at one checkout whichever is run, and then both
    sides run the same code.
    """
    files = {site.file for site in sites if site is not None and Path(site.file).is_absolute()}
    return sorted(f for f in files if Path(f).is_relative_to(here) and not Path(f).is_relative_to(there))
