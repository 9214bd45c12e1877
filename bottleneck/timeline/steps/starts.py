"""What starting the loaders' workers costs, wherever in the loop that happens.

In: run.json and loader.json. Out: the same without the starts, for all that describes a step as it usually
is; `WorkerStarts`, their price per step at the frequency that was seen; and a `Timeline` with that price put
back. A start may lie in an epoch's first step, in an evaluation, or in each step: it is one cost.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from ...model.codes import Part, QuestionKey, WhatIf
from ...model.diagnosis import BudgetLine, WhatIfResult
from ...model.run import LoaderFacts, Run, WorkerStart
from ...model.words import ms
from .clock import shortened
from .supply import production_ms, training_loader

if TYPE_CHECKING:
    from ..result import Timeline

_FEWEST = 2
"""A single one may be all that there are."""
_PIPE_BYTES = 65_536
"""A pipe holds so much (Linux); who sends more waits for the reader."""
_TRAINING = ("forward", "backward", "optimizer", "zero_grad")
_FEWEST_OTHERS = 3
_SURE = 1.96
"""Standard errors."""
_ENDS_WITH_THEM = (WhatIf.INPUT_READY, WhatIf.INPUT_WORKERS, WhatIf.INPUT_IN_MAIN)
"""Answers to which the workers are kept, or are none: what is suggested by them starts none anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStarts:
    """The starts of one loader's workers."""

    loader: LoaderFacts
    each_ms: float
    """Median: making the iterator, its first batch less what a batch takes to make, and stopping them."""
    error_ms: float
    """Half-width of the 95 % interval of it."""
    per_step: float
    light_ms: float | None
    """What each would take if next to nothing were sent to the workers; None where little is."""
    in_main_ms: float
    """What an epoch of this loader takes longer without workers, starts apart; less than 0: shorter."""
    trains: bool

    @property
    def how_often(self) -> str:
        """How many steps lie between two, as a report says it."""
        steps = round(1 / self.per_step)
        return f"every {steps} steps" if steps > 1 else "in each step"

    @property
    def cost_ms(self) -> float:
        """Their price per step."""
        return self.each_ms * self.per_step

    @property
    def sent_ms(self) -> float:
        """Of that: for sending them the dataset."""
        return 0.0 if self.light_ms is None else max(0.0, self.each_ms - self.light_ms) * self.per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarts:
    """The starts of all loaders, the most expensive first."""

    loaders: tuple[LoaderStarts, ...]
    slowed_ms: float = 0.0
    """Per step: what the rest of the steps with a start takes longer than in others. After a fork each page
    is copied when it is first written to, and the new processes want the cores."""

    @property
    def cost_ms(self) -> float:
        """Their price per step."""
        return sum(each.cost_ms for each in self.loaders) + self.slowed_ms

    @property
    def error_ms(self) -> float:
        """Half-width of the 95 % interval of it."""
        return sum(each.error_ms * each.per_step for each in self.loaders)

    @property
    def sent_ms(self) -> float:
        """Of it: for sending datasets to the workers."""
        return sum(each.sent_ms for each in self.loaders)

    @property
    def note(self) -> str:
        """Say what was counted."""
        each = ", ".join(f"{ms(one.each_ms)} {one.how_often}" for one in self.loaders[:3])
        slowed = f", and slows these steps by {ms(self.slowed_ms)} per step" if self.slowed_ms > 0 else ""
        return f"Starting and stopping workers takes {each}{slowed}: {ms(self.cost_ms)} of the step time."


def without_starts(
    run: Run, loaders: Sequence[LoaderFacts]
) -> tuple[Run, tuple[LoaderFacts, ...], WorkerStarts | None]:
    """Take the starts of workers out of the steps and fetches that hold them.

    Returns:
        The run and the loaders as if no worker had been started, and what that took; None where no loader
        starts its workers time and again.
    """
    feeds = training_loader(loaders)
    able = (_starts_of(loader, cores=run.host.cores or 1, trains=loader is feeds) for loader in loaders)
    found = [each for each in able if each is not None]
    if not found:
        return run, tuple(loaders), None
    waits: dict[int, float] = {}
    for each in found:
        for start in each.loader.starts:
            for step, excess in (
                (start.step, _excess_ms(start, each.loader)), (start.stop_step, start.stopping_ms)
            ):  # fmt: skip
                waits[step] = waits.get(step, 0.0) + excess
    held = {start.step for each in found for start in each.loader.starts}
    slowed = _slowed(run, held)
    gone = {"data": waits, **slowed}
    windows = [msgspec.structs.replace(window, steps=shortened(window.steps, gone)) for window in run.windows]
    recurring = {each.loader.id: each for each in found}
    left = tuple(_without_first_waits(item) if item.id in recurring else item for item in loaders)
    starts = WorkerStarts(
        loaders=tuple(sorted(found, key=lambda each: -each.cost_ms)),
        slowed_ms=_middle_of(slowed) * (len(held) - 1) / (max(held) - min(held)),
    )
    return msgspec.structs.replace(run, windows=windows), left, starts


def _slowed(run: Run, held: set[int]) -> dict[str, dict[int, float]]:
    """Return the ms that phases take longer in steps with a start, by phase and index of a step.

    Nothing where the difference may be noise.
    """
    window = run.window("baseline")
    if window is None or len(window.steps.index) != len(window.steps.wall_ms):
        return {}
    table = window.steps
    at = [k for k, index in enumerate(table.index) if index in held]
    others = [k for k, index in enumerate(table.index) if index not in held]
    if len(at) < _FEWEST or len(others) < _FEWEST_OTHERS:
        return {}
    found: dict[str, dict[int, float]] = {}
    for phase in _TRAINING:
        column = table.phases_ms.get(phase, [])
        if len(column) != len(table.index):
            continue
        usual = statistics.median(column[k] for k in others)
        noise = statistics.stdev(column[k] for k in others) / len(at) ** 0.5
        if statistics.median(column[k] for k in at) - usual > _SURE * noise:
            found[phase] = {table.index[k]: max(0.0, column[k] - usual) for k in at}
    return found


def _middle_of(slowed: Mapping[str, Mapping[int, float]]) -> float:
    """Return what a step with a start takes longer by it, median; 0 where no phase does."""
    steps = {step for of_phase in slowed.values() for step in of_phase}
    sums = [sum(of_phase.get(step, 0.0) for of_phase in slowed.values()) for step in steps]
    return statistics.median(sums) if sums else 0.0


def _excess_ms(start: WorkerStart, loader: LoaderFacts) -> float:
    """Return what a start takes; the first batch would have to be made by kept workers, too."""
    return start.making_ms + max(0.0, start.wait_ms - (production_ms(loader) or 0.0))


def _starts_of(loader: LoaderFacts, *, cores: int, trains: bool) -> LoaderStarts | None:
    if len(loader.starts) < _FEWEST:
        return None
    at = sorted(start.step for start in loader.starts)
    apart = at[-1] - at[0]
    if apart <= 0:
        return None
    seen = max(loader.wait_step, default=at[-1])
    if seen - at[-1] > max(after - before for before, after in itertools.pairwise(at)):
        apart = seen - at[0]  # they have ceased, as where the first two steps are not like the rest
    each = [_excess_ms(start, loader) for start in loader.starts]
    stops = [start.stopping_ms for start in loader.starts if start.stop_step >= 0]
    stop = statistics.median(stops) if stops else 0.0
    made = production_ms(loader) or 0.0
    batches = loader.fetches / max(1, loader.iterators)
    waited = statistics.fmean(loader.wait_ms) if loader.wait_ms else 0.0
    return LoaderStarts(
        loader=loader,
        each_ms=statistics.median(each) + stop,
        error_ms=_SURE * statistics.stdev(each) / len(each) ** 0.5,
        per_step=(len(at) - 1) / apart,
        light_ms=_light_ms(loader, cores=cores, stop_ms=stop),
        in_main_ms=batches * (made - waited),
        trains=trains,
    )


def _light_ms(loader: LoaderFacts, *, cores: int, stop_ms: float) -> float | None:
    """Return what a start would take whose workers are sent next to nothing: they boot side by side then."""
    rounds = math.ceil(loader.num_workers / cores)
    if max(start.pickled_bytes for start in loader.starts) <= _PIPE_BYTES * max(1, loader.num_workers):
        return None
    return stop_ms + rounds * statistics.median(start.booting_ms for start in loader.starts)


def _without_first_waits(loader: LoaderFacts) -> LoaderFacts:
    """Return a loader whose first fetches wait for their batch only."""
    first = {start.step: start for start in loader.starts}
    waits: list[float] = []
    for wait, step in zip(loader.wait_ms, loader.wait_step, strict=False):
        start = first.get(step)
        held = start is not None and abs(wait - start.wait_ms) <= 0.01
        waits.append(min(wait, production_ms(loader) or 0.0) if held else wait)
    return msgspec.structs.replace(loader, wait_ms=waits)


def with_starts(timeline: Timeline, starts: WorkerStarts) -> Timeline:
    """Put the price of the starts back: a timeline without them becomes one of the mean step."""
    cost = starts.cost_ms
    true_ms = timeline.true_ms + cost
    waits = timeline.part_ms(Part.INPUT) + cost
    lines = [line for line in timeline.budget if line.part is not Part.INPUT]
    detail = f"{ms(cost)} of it to start workers"
    lines.append(BudgetLine(part=Part.INPUT, ms=waits, share=0.0, detail=detail))
    return replace(
        timeline,
        true_ms=true_ms,
        budget=tuple(
            msgspec.structs.replace(line, share=line.ms / true_ms)
            for line in sorted(lines, key=lambda line: -line.ms)
        ),
        what_ifs=_answers(timeline, starts, true_ms=true_ms) if timeline.usable_what_ifs else {},
        kernels=tuple(msgspec.structs.replace(row, share=row.ms / true_ms) for row in timeline.kernels),
        after={
            pair: step if WhatIf.INPUT_READY in pair else step + cost for pair, step in timeline.after.items()
        },
        starts=starts,
    )


def _answers(timeline: Timeline, starts: WorkerStarts, *, true_ms: float) -> dict[QuestionKey, WhatIfResult]:
    cost = starts.cost_ms
    basis = f"{ms(cost)} per step to start workers, measured"
    answers = {
        question: msgspec.structs.replace(found, saves_ms=true_ms - found.step_ms)
        if question in _ENDS_WITH_THEM
        else msgspec.structs.replace(found, step_ms=found.step_ms + cost)
        for question, found in timeline.what_ifs.items()
    }

    def answer(question: WhatIf, saves_ms: float, basis: str) -> None:
        answers[question] = WhatIfResult(
            question=question, step_ms=true_ms - saves_ms, saves_ms=saves_ms, basis=basis
        )

    if WhatIf.INPUT_READY not in answers:
        answer(WhatIf.INPUT_READY, cost, basis)
    answer(WhatIf.WORKERS_KEPT, cost, basis)
    in_main = answers.get(WhatIf.INPUT_IN_MAIN)
    if in_main is not None:
        aside = sum(each.in_main_ms * each.per_step for each in starts.loaders if not each.trains)
        saves = in_main.saves_ms - aside
        answers[WhatIf.INPUT_IN_MAIN] = msgspec.structs.replace(
            in_main, step_ms=true_ms - saves, saves_ms=saves, basis=f"{in_main.basis}; no worker is started"
        )
    if starts.sent_ms > 0:
        answer(
            WhatIf.DATASET_LIGHT,
            starts.sent_ms,
            f"{ms(starts.sent_ms)} per step to pickle the dataset for the workers, to read it in each, and "
            "to start them one after another meanwhile",
        )
    return answers
