"""The plain rows that the reports for people are made of, built before anything is rendered.

In: a diagnosis. Out: rows of short, clean strings and numbers; the terminal and the Markdown report
only lay them out. Tests assert these rows, and apart from them the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.codes import CLASSES, Part, entry_of
from ...model.diagnosis import Cause, Diagnosis, WhatIfResult
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.words import clean, milliseconds, percent, place, sentence

_WORTH_A_LINE = 0.01
_NOTHING = 0.0005
"""Shows as 0.0 %."""
_BUDGET_LINES = 8
"""As many as a bar has segments that are distinguishable without colour."""
_MOST_UNNAMED = 0.25
"""Of the step, in the line of several small ones on a screen."""

NEGLIGIBLE = f"{100 * NEGLIGIBLE_SHARE:.0f} %"
"""The share below which a report combines causes and gains, as text."""
_SAME_COST = 0.05
"""Causes that do not overlap cost the same after the first is gone; that is not reported."""
_SAME_MS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRow:
    """One line of the budget, as shown."""

    label: str
    ms: float
    share: float
    detail: str = ""
    combined: bool = False
    """It stands for several small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseRow:
    """One cause with its price."""

    name: str
    code: str
    cost: str
    share: str
    without: str
    """The step without this cause; empty for the work itself."""
    bound: bool
    """The cost is an upper bound, and the step without it a lower bound."""
    headline: str
    means: str
    """The cause in a few words: the finding's title where it adds something, otherwise the class's
    meaning."""
    in_headline: bool
    """The verdict's headline already says what it means."""
    sites: tuple[str, ...]
    after_previous: str
    covered: bool
    """Gone together with the first cause that can be removed."""
    counted: bool
    """It costs next to nothing, and one asks how often it happens."""

    @property
    def brief(self) -> str:
        """What is told in a line with others."""
        if self.counted:
            return self.headline
        return f"{self.name} {'≤ ' if self.bound else ''}{self.cost} ms"


def budget_rows(diagnosis: Diagnosis, *, whole: bool = False, most: int = _BUDGET_LINES) -> list[BudgetRow]:
    """Return the budget, largest first, small lines combined; unexplained always has its own line.

    `most` includes the combined and the unexplained line; `whole` gives every line, whatever its size.
    """
    rows: list[BudgetRow] = []
    small: list[BudgetRow] = []
    last: list[BudgetRow] = []
    for line in sorted(diagnosis.budget, key=lambda line: -line.ms):
        row = BudgetRow(label=line.part.value, ms=line.ms, share=line.share, detail=clean(line.detail))
        if line.part is Part.UNEXPLAINED:
            last.append(row)
        elif whole or line.share >= _WORTH_A_LINE:
            rows.append(row)
        elif line.share >= _NOTHING:
            small.append(row)
    room = most - len(last)
    if not whole and len(rows) + bool(small) > room:
        small = rows[room - 1 :] + small
        rows = rows[: room - 1]
    if len(small) == 1:
        rows += small
    elif small:
        rows.append(
            BudgetRow(
                label=f"{len(small)} smaller lines",
                combined=True,
                ms=sum(row.ms for row in small),
                share=sum(row.share for row in small),
            )
        )
    return rows + last


def told_budget(diagnosis: Diagnosis, most: int) -> list[BudgetRow]:
    """Return the budget in so many lines, or in more, so that a quarter of the step is unnamed at most."""
    rows = budget_rows(diagnosis, most=most)
    unnamed = sum(row.share for row in rows if row.combined)
    if unnamed > _MOST_UNNAMED and most < _BUDGET_LINES:
        return told_budget(diagnosis, most + 1)
    return rows


def bar_cells(shares: Sequence[float], width: int) -> list[int]:
    """Divide `width` cells by share (largest remainder), so that the bar is exactly full."""
    total = sum(share for share in shares if share > 0)
    if total <= 0 or width <= 0:
        return [0] * len(shares)
    exact = [max(share, 0.0) / total * width for share in shares]
    cells = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (cells[i] - exact[i], i))
    for i in by_remainder[: width - sum(cells)]:
        cells[i] += 1
    return cells


def root_of(diagnosis: Diagnosis) -> str:
    """Return the folder that the script was started from, if its own lines show it, otherwise ""."""
    script = diagnosis.command[0] if diagnosis.command else ""
    sites = [site for cause in diagnosis.causes for site in cause.sites]
    sites += [site for finding in diagnosis.findings for site in finding.sites]
    for site in sites:
        if script and site.file.endswith(f"/{script}"):
            return site.file.removesuffix(script)
    return ""


def cause_rows(diagnosis: Diagnosis) -> tuple[list[CauseRow], list[CauseRow]]:
    """Return the causes worth acting on and, apart, the negligible ones."""
    root = root_of(diagnosis)
    # Everything is asked again without the first removable cause; the work itself is not one.
    first = next((c.bottleneck_class.value for c in diagnosis.causes if not entry_of(c.code).is_work), "")
    worth: list[CauseRow] = []
    small: list[CauseRow] = []
    for cause in diagnosis.causes:
        row = _cause_row(cause, diagnosis, root=root, first=first)
        if not cause.negligible:
            worth.append(row)
        elif cause.share >= _NOTHING or _is_counted(cause):
            small.append(row)
    return worth, small


def _cause_row(cause: Cause, diagnosis: Diagnosis, *, root: str, first: str) -> CauseRow:
    true_ms = diagnosis.step.true_ms
    after = cause.after_previous_ms
    told = ""
    if after is not None and abs(after - cause.cost_ms) > _SAME_COST * abs(cause.cost_ms):
        told = f"{milliseconds(after, like=true_ms)} ms of it remain without {first}"
    covered = after is not None and true_ms is not None and after < NEGLIGIBLE_SHARE * true_ms
    if covered:
        told = f"gone with {first}"
    known = entry_of(cause.code)
    own = not known.price_only and bool(cause.headline)
    return CauseRow(
        name=cause.bottleneck_class.value,
        code=clean(cause.code),
        cost=milliseconds(cause.cost_ms, like=true_ms),
        share=percent(cause.share),
        without="" if known.is_work else milliseconds(cause.predicted_ms, like=true_ms),
        bound=is_bound(diagnosis, cause),
        headline=sentence(cause.headline),
        means=sentence(cause.headline) if own else CLASSES[cause.bottleneck_class].meaning,
        in_headline=own and cause.code == diagnosis.verdict.code,
        sites=tuple(place(site, root=root) for site in cause.sites),
        after_previous=told,
        covered=covered,
        counted=cause.negligible and _is_counted(cause),
    )


def _is_counted(cause: Cause) -> bool:
    return entry_of(cause.code).counts and bool(cause.headline)


def is_bound(diagnosis: Diagnosis, cause: Cause) -> bool:
    """Return whether the replay's answer behind a price, one of the class's own if any is, is a bound."""
    same = [a for a in diagnosis.what_ifs if abs(a.saves_ms - cause.cost_ms) < _SAME_MS]
    own = [a for a in same if a.question in CLASSES[cause.bottleneck_class].questions]
    return bool(same) and all(answer.bound for answer in own or same)


def headline(diagnosis: Diagnosis) -> str:
    """Return the verdict's sentence, without the class that is shown above it."""
    verdict = diagnosis.verdict
    text = sentence(verdict.headline).removeprefix(f"{verdict.bottleneck_class.value}: ")
    word = text.split(" ", 1)[0]
    return text if word.endswith(")") or "." in word else text[:1].upper() + text[1:]


def step_line(diagnosis: Diagnosis) -> str:
    """Word the step time and how it is known."""
    step = diagnosis.step
    if step.true_ms is None:
        return "step time not measured"
    text = f"step {milliseconds(step.true_ms)} ms"
    if step.true_is == "profiled":
        return f"{text} with the profiler, so too long: no step was timed without it"
    if step.true_is == "given":
        return f"{text}, as given"
    if step.true_ci_ms is not None:
        low, high = (milliseconds(value, like=step.true_ms) for value in step.true_ci_ms)
        text += f" (95 %: {low} to {high})"
    steps = f" over {step.count} step{'s' if step.count != 1 else ''}" if step.count else ""
    return f"{text}{steps}, timed without the profiler"


def device_line(diagnosis: Diagnosis) -> str:
    """Word where it ran."""
    parts = []
    device = diagnosis.device
    if device is not None and device.kind != "cpu":
        parts.append(clean(device.name) or device.kind)
    elif device is not None:
        parts.append("CPU" if not diagnosis.host.cores else f"CPU, {diagnosis.host.cores} cores")
    if diagnosis.host.torch:
        parts.append(f"torch {clean(diagnosis.host.torch)}")
    if len(diagnosis.ranks) > 1:
        parts.append(f"{len(diagnosis.ranks)} ranks, rank {diagnosis.rank} shown")
    return ", ".join(parts)


def answer_lines(answers: Sequence[WhatIfResult], *, like: float | None) -> list[str]:
    """Say what the replay answers, the largest gain first."""
    lines = []
    for answer in sorted(answers, key=lambda answer: -answer.saves_ms):
        bound = "at best " if answer.bound else ""
        step, saves = (milliseconds(ms, like=like) for ms in (answer.step_ms, abs(answer.saves_ms)))
        verb = "saves" if answer.saves_ms >= 0 else "costs"
        lines.append(f"{answer.question.value}: {bound}{step} ms, {verb} {saves} ms ({clean(answer.basis)})")
    return lines
