"""Work that only some of the steps do: an evaluation every 20 steps, a checkpoint every 10.

In: the baseline window. Out: `RareWork`, its price per step; and a `Timeline` of the ordinary steps
with that price put back. The traced steps may hold such work or not, and a mean over both kinds of
steps describes neither: so the ordinary steps are read alone, and the rare work is a line of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part, WhatIf
from ...model.diagnosis import BudgetLine, WhatIfResult
from ...model.run import Run, SourceSite, StepTable
from ...model.view import CodeNode
from ...model.words import ms
from ..result import HostSpan, SpanKind, Timeline
from .kinds import LEAST_TIMES
from .traced import Steps

EVALUATION = "evaluation"
FORWARDS = "forward passes without gradients and what goes with them"
"""A model in training mode evaluates nothing: it acts, and the steps between train on what that brought."""
OTHER = "other work"

_FEWEST = 2
"""A single one is an outlier or the end of an epoch, so its cost per step is unknown."""
_MOST_SHARE = 1 / 3
"""Beyond this share the traced steps hold enough of it to be described by them."""
_OUTSIDE_SHARE = 0.5
"""So much of the excess stands outside the phases; a slow fetch or a long batch is another matter."""
_ALIKE = 2.0
"""Of one kind: no longer than so many times the median one, and no shorter than a part of it."""
_FEWEST_ORDINARY = 3
_SHOWN = 0.05
"""Share of one from which a part of it is told."""
_LONE_ERROR = 0.25
"""Half-width of a price that rests on a single evaluation, relative: an assumption, as one value has no
spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RareWork:
    """Additional work of some steps, in ms."""

    what: str
    """`EVALUATION`, `FORWARDS` or `OTHER`; for people."""
    evaluates: bool
    """It is an evaluation, as far as the window tells."""
    each_ms: float
    """Mean time of one."""
    every: float
    """Steps from one to the next, mean."""
    error_ms: float
    """Half-width of the 95 % interval of `ms`."""
    steps: NDArray[np.bool_]
    """Which steps of the window hold it."""
    covers: int = 1
    """Steps that one goes on for."""
    waits_ms: float = 0.0
    """Of `each_ms`: waiting for batches of its own."""
    computes_ms: float = 0.0
    """Of `each_ms`: running the model without gradients."""
    collects_ms: float = 0.0
    """Of `each_ms`: Python's garbage collector."""
    beside: str = ""
    """The dearest call that is made beside an evaluation and is no part of it; as written."""
    beside_ms: float = 0.0
    """Of `each_ms`: that call."""
    site: SourceSite | None = None
    ungraded: bool = False
    """Its steps are those in which a model runs without gradients: an evaluation's, or a rollout's."""

    @property
    def ungraded_over(self) -> int:
        """Over how many steps one pass without gradients goes; 0 where it is something else."""
        return self.covers if self.ungraded else 0

    @property
    def divided(self) -> str:
        """Say what one consists of, where anything of it is known; empty if not."""
        parts = (
            (self.waits_ms, "for its batches"),
            (self.computes_ms, "in the model"),
            (self.collects_ms, "in Python's collector"),
            (self.beside_ms, f"in `{self.beside}` beside it"),
        )
        known = [f"{ms(part)} {what}" for part, what in parts if part > _SHOWN * self.each_ms]
        return f", of which {' and '.join(known)}" if known else ""

    @property
    def ms(self) -> float:
        """Its price per step."""
        return self.each_ms / self.every

    @property
    def note(self) -> str:
        """Say how often it comes, how long it takes, and what that is of the step."""
        held, of = int(self.steps.sum()) // self.covers, len(self.steps)
        where = f"{held} of {of} baseline steps hold" if held else "Some steps after the captures hold"
        each = f"every {self.every:.0f} steps, {ms(self.each_ms)} each{self.divided}"
        return f"{where} {self.what} ({each}): {ms(self.ms)} of the step time."


def _parts(table: StepTable, chosen: NDArray[np.bool_], ordinary: NDArray[np.bool_]) -> tuple[float, float]:
    """Return how much longer the chosen steps wait for data, and run a model without gradients, ms each."""

    def excess(phase: str) -> float:
        column = np.asarray(table.phases_ms.get(phase, ()), dtype=np.float64)
        if len(column) != len(chosen) or not chosen.any() or not ordinary.any():
            return 0.0
        return max(0.0, float(column[chosen].mean() - np.median(column[ordinary])))

    return excess("data"), excess("evaluation")


def _outside_ms(table: StepTable, times: NDArray[np.float64]) -> NDArray[np.float64]:
    wall = np.asarray(table.wall_ms, dtype=np.float64)
    phases = sum(
        (
            np.asarray(values, dtype=np.float64)
            for name, values in table.phases_ms.items()
            if name != "evaluation" and len(values) == len(wall)
        ),
        np.zeros(len(wall)),
    )
    return np.asarray(wall - phases) if len(wall) == len(times) else np.zeros(len(times))


def _processor_ms(table: StepTable, n: int) -> NDArray[np.float64] | None:
    if len(table.user_cpu_ms) != n or len(table.system_cpu_ms) != n:
        return None
    used = np.asarray(table.user_cpu_ms, dtype=np.float64) + np.asarray(table.system_cpu_ms)
    return np.asarray(used, dtype=np.float64)


def _regular(at: NDArray[np.intp]) -> bool:
    """Three or more, at whole multiples of their smallest distance: nothing but a program does that."""
    gaps = np.diff(at)
    return len(gaps) >= 2 and int(gaps.min()) >= 2 and not (gaps % gaps.min()).any()


def find_rare(
    run: Run,
    table: StepTable,
    times_ms: NDArray[np.float64],
    *,
    kept: NDArray[np.bool_],
    validation: NDArray[np.bool_],
) -> RareWork | None:
    """Find work that recurs in some steps of the baseline window.

    Arrays have an entry per step: `times_ms` NaN where not measured, `kept` those behind the typical step,
    `validation` those with an evaluation.
    """
    n = len(times_ms)
    ordinary = kept & ~validation
    if ordinary.sum() < _FEWEST_ORDINARY:
        return None
    # A baseline in stretches lacks the steps between them.
    number = np.asarray(table.index) if len(table.index) == n else np.arange(n)
    usual = float(np.median(times_ms[ordinary]))
    excess = np.where(np.isfinite(times_ms), times_ms - usual, 0.0)
    if validation.any():
        chosen, what = validation & (excess > 0), EVALUATION
    elif (later := _in_later_steps(run, n)) is not None:
        return later
    else:
        what = OTHER
        outside = _outside_ms(table, times_ms)
        outside = outside - float(np.median(outside[ordinary]))
        chosen = ordinary & (excess > LEAST_TIMES * usual)
        chosen &= outside >= _OUTSIDE_SHARE * excess
        processor = _processor_ms(table, n)
        if not _is_the_programs(chosen, excess, processor, ordinary, number):
            return None
    at = np.flatnonzero(chosen)
    if not 1 <= len(at) <= _MOST_SHARE * n:
        return None
    each = float(excess[at].mean())
    as_long = ordinary & (excess > each / _ALIKE)
    if what == OTHER and as_long.sum() >= 2 * len(at):
        return None  # most wait for what another rank does, and the distance is theirs
    every = _every(run, at, what=what, longer_than_ms=usual + each / _ALIKE)
    if every is None:
        return None
    covered, each_ms = chosen, excess[at]
    if what == EVALUATION and _begins_before(at, as_long & (excess < _ALIKE * each), number):
        covered, each_ms = chosen | np.append(chosen[1:], False), excess[at] + excess[at - 1]
        each = float(each_ms.mean())
    if len(at) >= _FEWEST:
        error = 1.96 * float(each_ms.std(ddof=1)) / math.sqrt(len(at))
    else:
        error = _LONE_ERROR * each
    waits, computes, collects = 0.0, 0.0, 0.0
    if what == EVALUATION:
        waits, computes = _parts(table, chosen, ordinary)
    elif len(table.gc_ms) == n:
        collects = float(np.mean(np.asarray(table.gc_ms)[at]))
    return RareWork(
        what=what,
        evaluates=what == EVALUATION,
        each_ms=each,
        every=every,
        error_ms=error / every,
        steps=covered,
        covers=int(covered.sum()) // len(at),
        waits_ms=waits,
        computes_ms=computes,
        collects_ms=collects,
        site=_evaluation_site(run) if what == EVALUATION else None,
        ungraded=what == EVALUATION,
    )


def _begins_before(at: NDArray[np.intp], as_long: NDArray[np.bool_], number: NDArray[np.intp]) -> bool:
    """Return whether each of several evaluations begins behind an update, in the step before.

    That ends where the evaluation's own batches are fetched.
    """
    if len(at) < _FEWEST or at[0] == 0:
        return False
    return bool(as_long[at - 1].all() and (number[at] - number[at - 1] == 1).all())


def _evaluation_site(run: Run) -> SourceSite | None:
    known = [item for item in run.sites if item.phase == "evaluation"]
    return max(known, key=lambda item: item.count).site if known else None


def _in_later_steps(run: Run, n: int) -> RareWork | None:
    """Find evaluations that fell into none of the `n` baseline steps but into those behind the captures."""
    window = run.window("after")
    if window is None or len(window.steps.validation) != len(window.steps.wall_ms):
        return None
    wall = np.asarray(window.steps.wall_ms, dtype=np.float64)
    flags = np.asarray(window.steps.validation, dtype=np.bool_)
    if not flags.any() or (~flags).sum() < _FEWEST_ORDINARY:
        return None
    each = float((wall[flags] - np.median(wall[~flags])).mean())
    every = _every(run, np.flatnonzero(flags), what=EVALUATION, longer_than_ms=0.0)
    if every is None or each <= 0:
        return None
    waits, computes = _parts(window.steps, flags, ~flags)
    return RareWork(
        what=EVALUATION,
        evaluates=True,
        waits_ms=waits,
        computes_ms=computes,
        each_ms=each,
        every=every,
        error_ms=_LONE_ERROR * each / every,
        steps=np.zeros(n, dtype=np.bool_),
        site=_evaluation_site(run),
        ungraded=True,
    )


def _every(run: Run, at: NDArray[np.intp], *, what: str, longer_than_ms: float) -> float | None:
    """Return how many steps lie from one to the next, or None for one of a kind or one that is not rare.

    The baseline may be in two pieces with the trace between them, so all windows are asked: an
    evaluation is flagged in each, other work is as long in each. Where the steps of another window are
    nearly all as long, the pace has changed and no work comes and goes.
    """
    if what != EVALUATION and len(at) < _FEWEST:
        return None
    found: set[int] = set()
    for window in run.windows:
        if what != EVALUATION and window.name == "warm-up":
            continue
        signs = window.steps.validation if what == EVALUATION else window.steps.wall_ms
        threshold = 0.0 if what == EVALUATION else longer_than_ms
        found |= {n for n, sign in zip(window.steps.index, signs, strict=False) if sign > threshold}
    if len(found) < _FEWEST:
        return None
    distance = float(np.median(np.diff(sorted(found))))
    return distance if distance * _MOST_SHARE >= 1 else None


def _is_the_programs(
    chosen: NDArray[np.bool_],
    excess: NDArray[np.float64],
    processor: NDArray[np.float64] | None,
    ordinary: NDArray[np.bool_],
    number: NDArray[np.intp],
) -> bool:
    """Whether the long steps are the program's own doing and not another process's on a busy machine."""
    at = np.flatnonzero(chosen)
    if len(at) < _FEWEST:
        return False
    middle = float(np.median(excess[at]))
    if excess[at].max() > _ALIKE * middle or excess[at].min() < middle / _ALIKE:
        return False
    if _regular(number[at]):
        return True
    if processor is None:
        return True
    worked = processor[at] - float(np.median(processor[ordinary]))
    return bool((worked >= _OUTSIDE_SHARE * excess[at]).all())


def _holds(steps: Steps, rare: RareWork) -> NDArray[np.bool_]:
    length = (steps.end_ns - steps.start_ns) / 1e6
    return np.asarray(length > float(np.median(length)) + rare.each_ms / rare.covers / _ALIKE)


def as_often_as_traced_ms(steps: Steps, rare: RareWork, *, first: int) -> float:
    """Return the rare work's price per step if as many steps hold it as were traced with it, from `first`."""
    return rare.each_ms / rare.covers * float(_holds(steps, rare)[first:].mean())


def ordinary_steps(steps: Steps, rare: RareWork) -> Steps:
    """Return the longest stretch of traced steps without the rare work, if it is long enough to be read."""
    long = _holds(steps, rare)
    edges = [-1, *np.flatnonzero(long).tolist(), len(steps)]
    first, last = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
    if not long.any() or last - first - 1 < _FEWEST_ORDINARY:
        return steps
    part = slice(first + 1, last)
    return replace(
        steps, start_ns=steps.start_ns[part], end_ns=steps.end_ns[part], numbers=steps.numbers[part]
    )


def _both(usual: CodeNode, rare: CodeNode, every: float) -> CodeNode:
    """Return a line that costs something in each step, and more in one of so many, per step."""
    others = 1.0 - 1.0 / every
    more = max(usual, rare, key=lambda node: node.ms)
    return msgspec.structs.replace(
        more,
        ms=others * usual.ms + rare.ms,
        share=others * usual.share + rare.share,
        price_ms=others * (usual.price_ms or 0.0) + (rare.price_ms or 0.0),
        bound=usual.bound or rare.bound,
        samples=usual.samples + rare.samples,
    )


def with_rare(timeline: Timeline, rare: RareWork, *, nodes: Sequence[CodeNode] = ()) -> Timeline:
    """Put the rare work's price back: a timeline of ordinary steps becomes one of the mean step.

    `nodes` are the lines that it consists of, priced.
    """
    # Of one line several calls may be known.
    extras = {(node.site, node.call): node for node in timeline.extras}
    for node in nodes:
        usual = extras.get((node.site, node.call))
        extras[node.site, node.call] = node if usual is None else _both(usual, node, rare.every)
    true_ms = timeline.true_ms + rare.ms
    host = timeline.part_ms(Part.HOST) + rare.ms
    detail = f"{ms(rare.ms)} of it {rare.what} in one of {rare.every:.0f} steps"
    lines = [line for line in timeline.budget if line.part is not Part.HOST]
    lines.append(BudgetLine(part=Part.HOST, ms=host, share=0.0, detail=detail))
    budget = tuple(
        msgspec.structs.replace(line, share=line.ms / true_ms)
        for line in sorted(lines, key=lambda line: -line.ms)
    )
    what_ifs = {
        question: msgspec.structs.replace(found, step_ms=found.step_ms + rare.ms)
        for question, found in timeline.what_ifs.items()
    }
    which = "one" if rare.covers == 1 else "two"
    basis = (
        f"{which} of {rare.every:.0f} steps take{'s' * (rare.covers == 1)} {ms(rare.each_ms)} longer than "
        f"the others in the baseline window ({rare.what})"
    )
    before = timeline.what_ifs.get(WhatIf.HOST_WORK_GONE)
    if timeline.usable_what_ifs:
        saves = rare.ms + (before.saves_ms if before is not None else 0.0)
        what_ifs[WhatIf.HOST_WORK_GONE] = WhatIfResult(
            question=WhatIf.HOST_WORK_GONE,
            step_ms=true_ms - saves,
            saves_ms=saves,
            basis=basis if before is None else f"{basis}; {before.basis}",
        )
    context = {**timeline.context, "host.named_share": host / true_ms}
    if before is None or rare.ms >= before.saves_ms:
        # Of less, what each step does is to be told.
        context["host.rare"] = rare.what
    collected = rare.collects_ms / rare.every
    if collected and timeline.usable_what_ifs:
        before = timeline.what_ifs.get(WhatIf.GC_FREE)
        saves = collected + (before.saves_ms if before is not None else 0.0)
        what_ifs[WhatIf.GC_FREE] = WhatIfResult(
            question=WhatIf.GC_FREE, step_ms=true_ms - saves, saves_ms=saves, basis=basis
        )
        context["gc.ms_per_step"] = saves
    span = HostSpan(
        part=Part.HOST,
        kind=SpanKind.RARE,
        what=f"{rare.what} in one of {rare.every:.0f} steps, {ms(rare.each_ms)} each{rare.divided}",
        exposed_ms=rare.ms,
        called_ms=rare.ms,
        count=1.0 / rare.every,
        site=rare.site,
    )
    return replace(
        timeline,
        true_ms=true_ms,
        budget=budget,
        what_ifs=what_ifs,
        spans=tuple(sorted((*timeline.spans, span), key=lambda item: -item.exposed_ms)),
        extras=tuple(sorted(extras.values(), key=lambda node: -(node.price_ms or 0.0))),
        kernels=tuple(msgspec.structs.replace(row, share=row.ms / true_ms) for row in timeline.kernels),
        context=context,
        after={
            pair: step if WhatIf.HOST_WORK_GONE in pair else step + rare.ms
            for pair, step in timeline.after.items()
        },
    )
