"""The gate: runs a script and compares its measurements with a baseline or with another checkout.

In: what to run, what to hold it against, the settings. Out: `Held`. The history is read and added to here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ..errors import InputError, UndeterminedError, UsageError
from ..model.baseline import Baseline
from ..model.compare import Comparison, Drift
from ..model.documents import expect_writable
from ..model.gate import GateSettings
from ..model.run import SourceSite
from ..runs.plan import Plan
from ..runs.target import Target, check_script
from .baseline_file import baseline_text, read_baseline
from .decide import compare_sides
from .history import append, entry_of, find_drifts, read_history
from .join import counters_only
from .repeats import Arm, foreign_files, run_in_turns
from .sides import Side, read_side

WINDOWS = ("warmup", "baseline_steps", "steps")
"""Settings, fields of a plan and of a baseline that say how many steps each window has."""
_TRACE_BYTES = 1_000_000_000
_SECONDS = 600.0
"""A window cut short by the clock would count other steps than the baseline: CI has its own time limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The result."""

    comparison: Comparison | None
    """None where there is no baseline yet."""
    new_baseline: Baseline
    """What --update-baseline writes."""
    had_baseline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What is run, and what it is compared with."""

    target: Target
    baseline: Path | None
    base_folder: Path | None
    update: bool
    """Write a new baseline."""
    watch: bool = False
    """Run it to its end and compare the whole job; nothing is counted."""

    def check(self, settings: GateSettings) -> None:
        """Check that the options go together, before anything runs.

        Raises:
            UsageError: nothing to compare with, or two things.
            InputError: a place is not there.
        """
        if self.baseline is None and self.base_folder is None:
            raise UsageError(
                "There is nothing to compare the script with.",
                remedy="Give --baseline FILE (write it first with --update-baseline) or --base DIR.",
            )
        if self.baseline is not None and self.base_folder is not None:
            raise UsageError("--baseline and --base exclude each other.", remedy="Give one.")
        if self.watch and settings.times == "off":
            raise UsageError("--watch compares times.", remedy="Leave out --times off, or --watch.")
        if self.update and self.baseline is None:
            raise UsageError("--update-baseline needs --baseline FILE.")
        if self.base_folder is None:
            return
        if not self.base_folder.is_dir():
            raise InputError(
                f"There is no folder {self.base_folder}.", remedy="Name another checkout with --base."
            )
        script = self.target.script
        if script is not None:
            if Path(script).is_absolute():
                raise UsageError(
                    f"{script} is an absolute path, the same file for both sides.",
                    remedy="Give its path relative to the working folder.",
                )
            check_script(str(self.base_folder / script), verb="gate")

    def run(
        self, settings: GateSettings, *, given: dict[str, int], out: Path | None, say: Callable[[str], None]
    ) -> Held | None:
        """Run the script, and compare; None on a rank that does not lead: another one reports on all of us.

        Without `out` the runs are removed.

        Without `out` the runs are removed.

        Raises:
            ScriptError: the script failed.
            InputError: a file cannot be read, or the runs of the other checkout ran this one's code.
            UndeterminedError: nothing was counted.
        """
        if settings.history is not None:
            # Before minutes of running, not after.
            read_history(Path(settings.history), series="")
            expect_writable(Path(settings.history) / "entry.json")
        stored = None
        if self.baseline is not None and (self.baseline.exists() or not self.update):
            stored = read_baseline(self.baseline)
            if not self.update and bool(stored.jobs) != self.watch:
                made, flag = (
                    ("watched jobs", "Add") if stored.jobs else ("steps, not of watched jobs", "Leave out")
                )
                raise InputError(f"{self.baseline} is of {made}.", remedy=f"{flag} --watch.")
        windows = windows_of(settings, None if self.update else stored) | given
        with ExitStack() as stack:
            into = out if out is not None else _temporary(stack)
            head, base = self._measure(windows, settings, into=into, say=say)
        if head is None:
            return None
        if stored is not None:
            base = Side(label=str(self.baseline), baseline=stored)
        return hold(base, head, windows, settings=settings, interleaved=self.base_folder is not None)

    def _measure(
        self, windows: dict[str, Any], settings: GateSettings, *, into: Path, say: Callable[[str], None]
    ) -> tuple[Side | None, Side | None]:
        """Run, and return (head, base); base only where it was run too."""
        target = self.target
        plan = counting_plan(
            windows, script=target.script, module=target.module, args=target.args, watch=self.watch
        )
        arms: tuple[Arm, ...] = (Arm(name="head"),)
        if self.base_folder is not None:
            arms = (Arm(name="base", cwd=self.base_folder), *arms)
        # Counters need no repeats; without times to tell, one run does.
        repeat = 1 if settings.times == "off" else settings.repeat
        folders = run_in_turns(plan, arms, repeat=repeat, into=into, say=say)
        if not folders["head"]:
            return None, None
        head = Side(label=plan.target, baseline=read_side(folders["head"], root=Path.cwd()).baseline)
        if self.watch and not head.baseline.runs:
            raise UndeterminedError(
                "The watched jobs have nothing to compare: no usual step was seen.",
                remedy="Run `bottleneck watch` on the script.",
            )
        if not self.watch and (head.baseline.counters is None or not head.baseline.counters.values):
            raise UndeterminedError(
                "The runs have nothing to compare: no counter was measured.",
                remedy="Run `bottleneck diagnose` on the script.",
            )
        if self.base_folder is None:
            return head, None
        base = read_side(folders["base"], root=self.base_folder).baseline
        _check_apart(base, self.base_folder)
        return head, Side(label=f"{self.base_folder}/{plan.target}", baseline=base)


def windows_of(settings: GateSettings, stored: Baseline | None) -> dict[str, int]:
    """Return the window lengths: those of the baseline, else the project's.

    The same steps must be counted on both sides: a baseline therefore brings its own windows.
    """
    windows = {name: int(getattr(settings, name)) for name in WINDOWS}
    if stored is not None:
        windows |= {name: steps for name, steps in stored.plan.items() if name in WINDOWS}
    return windows


def counting_plan(windows: dict[str, Any], **target: Any) -> Plan:
    """Return the plan of a run that is counted: the same steps each time."""
    return Plan(
        memory=False,
        quiet=True,
        lines=True,
        # A trace that is first probed for its size begins some steps later, and other steps count.
        trace_bytes_cap=_TRACE_BYTES,
        max_seconds=_SECONDS,
        **windows,
        **target,
    )


def hold(
    base: Side | None,
    head: Side,
    windows: dict[str, int],
    *,
    settings: GateSettings,
    interleaved: bool = False,
) -> Held:
    """Hold what was measured against a side; read and add to the history.

    `base` is None where there is none yet. `interleaved`: both sides were run in turns.

    Raises:
        InputError: the history cannot be read or written.
    """
    plan = dict(sorted(windows.items()))
    head = Side(label=head.label, baseline=msgspec.structs.replace(head.baseline, plan=plan))
    return Held(
        comparison=_compare(base, head, settings, interleaved=interleaved) if base is not None else None,
        new_baseline=head.baseline if settings.times != "off" else counters_only(head.baseline),
        had_baseline=base is not None and not interleaved,
    )


def _compare(base: Side, head: Side, settings: GateSettings, *, interleaved: bool) -> Comparison:
    entry = None
    drifts: tuple[Drift, ...] = ()
    if settings.history is not None:
        entry = entry_of(head.baseline, against="" if interleaved else baseline_text(base.baseline))
        past = read_history(Path(settings.history), entry.series)
        drifts = find_drifts([*past, entry], settings)
    comparison = compare_sides(base, head, settings=settings, interleaved=interleaved, drifts=drifts)
    if entry is not None and settings.history is not None and comparison.outcome != "incomparable":
        append(Path(settings.history), entry)
    return comparison


def _temporary(stack: ExitStack) -> Path:
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        raise UsageError(
            "Several ranks need one folder that all of them can access.", remedy="Give --out DIR."
        )
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bottleneck-gate-")))


def _check_apart(base: Baseline, base_folder: Path) -> None:
    """The runs of the other checkout must have run its own code.

    Raises:
        InputError: they took files of this checkout.
    """
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
            f"The run in {base_folder} loaded {files[0]} from this checkout: both sides ran the same code.",
            remedy="Uninstall the project: it must be imported from the working folder.",
        )
