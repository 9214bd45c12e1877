"""The step time that everything is measured against, and from which steps it comes.

In: a run (or none), the traced steps (or none), a step time given by the user (or none). Out:
`StepBasis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...model.diagnosis import StepSummary
from ...model.finding import Doubt
from ...model.run import LoaderFacts, Run, StepTable, Stretch, Window
from ...model.words import ms
from ...stats import TypicalStep, mad_spread, mean_interval, typical_step
from .clock import step_times
from .drift import find_drift, growth
from .rare import FORWARDS, RareWork, find_rare
from .starts import WorkerStarts, without_starts
from .supply import feeds_all_along
from .traced import Steps

_USUAL_STAND_IN = 3
"""Last steps of a short warm-up that stand in; of a script that makes three steps in all, two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBasis:
    """The step summary with what else the timeline needs to know about it."""

    summary: StepSummary
    run: Run | None
    """The run as given, or with a stand-in for its missing baseline window; without starts of workers."""
    loaders: tuple[LoaderFacts, ...] = ()
    """As given, without starts of workers."""
    starts: WorkerStarts | None = None
    """Starts of workers, whose price is part of the step time; None where there are none."""
    kept: NDArray[np.bool_] | None = None
    """Which steps of the baseline window count; those with rare work do not."""
    varies: bool = False
    """The steps that count differ from each other by more than a tenth."""
    rare: RareWork | None = None
    """Additional work of some steps; its price is part of the step time."""
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    growth_ms: tuple[float, float] | None = None
    """How long the first and the last steps took, where steps grow."""
    doubts: tuple[Doubt, ...] = ()
    """Stretches of the baseline that do not agree."""

    @property
    def ordinary_ms(self) -> float | None:
        """The step time without the rare work and starts of workers: what trace and baseline describe."""
        true_ms = self.summary.true_ms
        if true_ms is None:
            return None
        started_ms = self.starts.cost_ms if self.starts is not None else 0.0
        return true_ms - started_ms - (self.rare.ms if self.rare is not None else 0.0)

    @property
    def forwards_ms(self) -> tuple[float, ...]:
        """Time in the forward of each unprofiled step, of all; empty without a baseline."""
        window = self.run.window("baseline") if self.run is not None else None
        return tuple(window.steps.phases_ms.get("forward", ())) if window is not None else ()

    @property
    def timed_ms(self) -> tuple[float, ...]:
        """Lengths of the unprofiled steps, also of those with rare work, without evaluations."""
        window = self.run.window("baseline") if self.run is not None else None
        if window is None or self.kept is None:
            return ()
        rare = self.rare
        kept = self.kept | rare.steps if rare is not None and not rare.evaluates else self.kept
        times, _ = step_times(window.steps)
        return tuple(t for t, keep in zip(times, kept, strict=True) if keep and t is not None)


def _tail(table: StepTable, count: int) -> StepTable:
    """The last `count` steps of a table."""
    columns: dict[str, Any] = {}
    for name in table.__struct_fields__:
        value = getattr(table, name)
        if isinstance(value, dict):
            columns[name] = {key: column[-count:] for key, column in value.items()}
        else:
            columns[name] = value[-count:]
    return StepTable(**columns)


def _stand_in(run: Run) -> Window | None:
    """Unprofiled steps of the warm-up that can stand in for a baseline that was never reached.

    Never the first step, which holds the costs of starting, nor any up to the last compilation.
    """
    window = run.window("warm-up")
    if window is None or not window.steps.wall_ms:
        return None
    table = window.steps
    quiet = len(table.wall_ms)
    if len(table.compiled) == quiet and any(table.compiled):
        quiet -= max(i for i, flag in enumerate(table.compiled) if flag) + 1
    count = min(quiet, max(_USUAL_STAND_IN, len(table.wall_ms) // 2), len(table.wall_ms) - 1)
    if count < 1:
        return None
    return Window(name="baseline", status="short", planned_steps=count, steps=_tail(table, count))


def _left_out(typical: TypicalStep, times: Sequence[float | None], table: StepTable) -> tuple[str, ...]:
    notes = []
    if typical.validation:
        evaluated = [t for t, flag in zip(times, table.validation, strict=False) if flag and t is not None]
        took = ", ".join(ms(value) for value in evaluated[:4])
        which = "One baseline step contains" if typical.validation == 1 else "Some baseline steps contain"
        notes.append(
            f"{which} an evaluation ({took}), which is left out of the step time: every N steps, it adds "
            "its time / N to each."
        )
    return (*notes, *_alone(typical))


def _alone(typical: TypicalStep) -> Iterator[str]:
    if typical.stragglers:
        lone = ", ".join(ms(value) for value in typical.stragglers)
        yield f"One baseline step of {lone} is an outlier and is left out of the step time."
    if typical.one_off_compiles:
        yield "One baseline step contains a late first compilation and is left out of the step time."


def _kept_ms(times: Sequence[float | None], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.asarray([t for t, keep in zip(times, kept, strict=True) if keep], dtype=np.float64)


def _typical(table: StepTable, count: int) -> TypicalStep | None:
    """Summarise the first `count` steps of a table."""
    times, _ = step_times(table)
    return typical_step(
        times[:count],
        validation=table.validation[:count],
        compiled=table.compiled[:count],
        collecting_ms=table.gc_ms[:count],
    )


def _stretches(run: Run, baseline: Window) -> list[tuple[Stretch, TypicalStep]]:
    """Summarise each stretch of the baseline; its first one comes first in it, each other has a window."""
    found = []
    for stretch in baseline.stretches:
        window = baseline if stretch.window == "baseline" else run.window(stretch.window)
        typical = _typical(window.steps, stretch.steps) if window is not None else None
        if typical is not None:
            found.append((stretch, typical))
    return found


def _rare(run: Run, table: StepTable, typical: TypicalStep, *, fed: bool) -> RareWork | None:
    times, _ = step_times(table)
    flags = np.zeros(len(times), dtype=np.bool_)
    if len(table.validation) == len(times):
        flags = np.asarray(table.validation, dtype=np.bool_)
    found = find_rare(
        run,
        table,
        np.asarray([np.nan if t is None else t for t in times], dtype=np.float64),
        kept=typical.kept,
        validation=flags & np.asarray([t is not None for t in times]),
    )
    told = {name: run.settings.get(f"ungraded.{name}") for name in ("training", "first", "environment")}
    # Recordings of before do not say whether it came first: what trains on batches of one loader needs none.
    first = not fed if told["first"] is None else told["first"] is True
    collects = told["training"] is True and first
    acts = collects or told["environment"] is True
    if found is None or not found.evaluates or not acts:
        return found
    return replace(found, what=FORWARDS, evaluates=False)


def _with_rare(
    run: Run,
    table: StepTable,
    rare: RareWork,
    typical: TypicalStep,
    *,
    signal: str,
    profiled_ms: float | None,
    problems: Sequence[str],
    doubts: tuple[Doubt, ...],
) -> StepBasis:
    """The mean step is an ordinary one plus the rare work's share."""
    times, _ = step_times(table)
    kept = typical.kept & ~rare.steps
    ordinary = _kept_ms(times, kept)
    mean = float(ordinary.mean())
    low, high = mean_interval(ordinary) or (mean, mean)
    true_ms = mean + rare.ms
    return StepBasis(
        summary=StepSummary(
            true_ms=true_ms,
            true_ci_ms=(max(0.0, low + rare.ms - rare.error_ms), high + rare.ms + rare.error_ms),
            profiled_ms=profiled_ms,
            count=int(kept.sum() + rare.steps.sum()),
            true_is="measured",
            spread_ms=mad_spread(ordinary),
            step_signal=signal,
        ),
        run=run,
        kept=kept,
        varies=typical.varies,
        rare=rare,
        notes=tuple(_alone(typical)),
        problems=tuple(problems),
        growth_ms=growth(ordinary),
        doubts=doubts,
    )


def find_basis(
    run: Run | None,
    steps: Steps | None,
    *,
    given_ms: float | None,
    recorded_ms: NDArray[np.float64] | None = None,
    loaders: Sequence[LoaderFacts] = (),
) -> StepBasis:
    """Choose the true step time: given, else measured without a profiler, else profiled.

    `recorded_ms` is how long the traced steps took (`timeline.recorded`); by the host's marks if None. Starts
    of workers are counted at their frequency, not where they fall.
    """
    fed = feeds_all_along(loaders)
    if run is None or given_ms is not None:
        found = _find(run, steps, given_ms=given_ms, recorded_ms=recorded_ms, fed=fed)
        return replace(found, loaders=tuple(loaders))
    usual, left, starts = without_starts(run, loaders)
    found = _find(usual, steps, given_ms=None, recorded_ms=recorded_ms, fed=fed)
    summary, cost = found.summary, starts.cost_ms if starts is not None else 0.0
    if starts is None or summary.true_ms is None or summary.true_is != "measured":
        return replace(found, loaders=left)
    ci = summary.true_ci_ms
    if ci is not None:
        ci = (max(0.0, ci[0] + cost - starts.error_ms), ci[1] + cost + starts.error_ms)
    profiled = summary.profiled_ms
    summary = msgspec.structs.replace(
        summary,
        true_ms=summary.true_ms + cost,
        true_ci_ms=ci,
        profiled_ms=None if profiled is None else profiled + cost,
    )
    return replace(found, summary=summary, loaders=left, starts=starts, notes=(*found.notes, starts.note))


def _find(
    run: Run | None,
    steps: Steps | None,
    *,
    given_ms: float | None,
    recorded_ms: NDArray[np.float64] | None,
    fed: bool,
) -> StepBasis:
    """Find the basis of a run in which no workers are started; see `find_basis`.

    `fed`: one loader makes all batches that are trained on.
    """
    profiled = np.zeros(0) if recorded_ms is None else recorded_ms
    if recorded_ms is None and steps is not None:
        profiled = np.asarray(steps.end_ns - steps.start_ns, dtype=np.float64) / 1e6
    profiled_ms = float(profiled.mean()) if len(profiled) else None
    signal = run.step_signal if run is not None else (steps.how if steps is not None else "")
    problems: list[str] = []
    window = run.window("baseline") if run is not None else None
    if run is not None and (window is None or len(window.steps.wall_ms) == 0):
        window = _stand_in(run)
        if window is not None:
            others = [item for item in run.windows if item.name != "baseline"]
            run = msgspec.structs.replace(run, windows=[*others, window])
            problems.append(
                "The baseline window was never reached: the last steps of the warm-up stand in for it. "
                "Let the script run longer, or use --warmup 2."
            )
    typical = None
    if window is not None and window.steps.wall_ms:
        times, _ = step_times(window.steps)
        typical = _typical(window.steps, len(times))
    if typical is not None:
        assert run is not None
        assert window is not None
        rare = None
        doubts: tuple[Doubt, ...] = ()
        if given_ms is None:
            doubts = find_drift(_stretches(run, window))
            rare = _rare(run, window.steps, typical, fed=fed)
        if rare is not None:
            # The mean of the traced steps may hold it, or lack it; their median lacks it.
            usual_ms = float(np.median(profiled)) if len(profiled) else None
            return _with_rare(
                run,
                window.steps,
                rare,
                typical,
                signal=signal,
                profiled_ms=None if usual_ms is None else usual_ms + rare.ms,
                problems=problems,
                doubts=doubts,
            )
        true_ms = typical.mean_ms if given_ms is None else given_ms
        return StepBasis(
            summary=StepSummary(
                true_ms=true_ms,
                true_ci_ms=typical.interval_ms if given_ms is None else None,
                profiled_ms=profiled_ms,
                count=typical.count,
                true_is="measured" if given_ms is None else "given",
                spread_ms=typical.spread_ms,
                step_signal=signal,
            ),
            run=run,
            kept=typical.kept,
            varies=typical.varies,
            problems=tuple(problems),
            notes=_left_out(typical, times, window.steps),
            growth_ms=growth(_kept_ms(times, typical.kept)),
            doubts=doubts,
        )
    if given_ms is not None or profiled_ms is not None:
        return StepBasis(
            summary=StepSummary(
                true_ms=given_ms if given_ms is not None else profiled_ms,
                true_ci_ms=mean_interval(profiled) if given_ms is None else None,
                profiled_ms=profiled_ms,
                count=len(profiled),
                true_is="given" if given_ms is not None else "profiled",
                spread_ms=mad_spread(profiled),
                step_signal=signal,
            ),
            run=run,
            problems=tuple(problems),
        )
    return StepBasis(summary=StepSummary(true_ms=None, step_signal=signal), run=run, problems=tuple(problems))
