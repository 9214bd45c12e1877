"""The fixes as reports for people show them, built before anything is rendered.

In: a diagnosis. Out: rows of short, clean strings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...model.diagnosis import Combination, Diagnosis
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.fix import Record, Risk, Suggestion, instead_of
from ...model.verify import TOGETHER
from ...model.words import clean, clean_code, milliseconds, percent, place, sentence, step_after, step_change
from .diagnosis import root_of
from .verify import measured_line

_SAID = {"slower": "slower", "no-difference": "no difference", "undecided": "too noisy to decide"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FixRow:
    """One suggested fix."""

    fix: str
    title: str
    gain: str
    """From the step as it is to the predicted one."""
    after: str
    """The predicted step alone, for columns whose head names the step as it is."""
    basis: str
    how: str
    code: str
    where: str
    warning: str
    risk: str
    """"changes numerics", "needs review", or nothing."""
    unchecked: str
    undo: str
    verify: str
    sources: tuple[str, ...]
    record: str
    """How far its predictions were from measurements so far, or nothing."""
    minor: bool
    """True for a note or a negligible gain."""
    measured: str = ""
    """What was measured in the run itself and by `bottleneck verify`, if anything was."""
    others: tuple[str, ...] = ()
    """Names of other ways to the same gain."""
    instead_of: str = ""
    """The fix listed before it that is predicted to remove the same time."""


def fix_rows(diagnosis: Diagnosis) -> list[FixRow]:
    """Return the suggestions in their order, without those that were tried in the run and do not help."""
    root = root_of(diagnosis)
    verified = {row.fixes: f"{measured_line(row)} (verify)" for row in diagnosis.tried if not row.base}
    led = instead_of(diagnosis.suggestions)
    rows = []
    for suggestion in diagnosis.suggestions:
        if suggestion.helps is not False:
            row = _fix_row(suggestion, diagnosis.step.true_ms, root)
            told = (measured_here(suggestion), verified.get((row.fix,), ""))
            others = [s for s in diagnosis.suggestions if led.get(s.fix) == suggestion.fix]
            rows.append(
                replace(
                    row,
                    measured="; ".join(filter(None, told)),
                    others=tuple(f"{clean(s.fix)} {sentence(s.title)}" for s in others),
                    instead_of=led.get(suggestion.fix, ""),
                )
            )
    return rows


def useless_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the suggestions that were tried in the run and do not help: their names, and why."""
    return [
        (f"{clean(s.fix)} {sentence(s.title)}", measured_here(s))
        for s in diagnosis.suggestions
        if s.helps is False
    ]


def measured_here(suggestion: Suggestion) -> str:
    """Word what was measured in the running process; empty where it was not tried."""
    found = suggestion.measured
    if found is None or found.verdict == "not-tried":
        return ""
    if found.verdict == "failed" or found.speedup is None:
        return clean(f"fails here: {found.note}")
    interval = f" ({found.low:.2f} to {found.high:.2f})" if found.low and found.high else ""
    told = ", ".join(filter(None, [f"{found.speedup:.2f}×{interval} in this run", clean(found.tried_as)]))
    if found.verdict != "faster":
        told += f", {_SAID[found.verdict] if interval else 'timed once: too little to decide'}"
    if found.loss == "changed" and found.loss_change is not None:
        return f"{told}, changes the loss by {percent(found.loss_change)}"
    return told if found.loss == "not-compared" else f"{told}, loss {found.loss}"


def together_measured(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return what was measured for combined fixes: their names and figures."""
    suggested = {suggestion.fix for suggestion in diagnosis.suggestions}
    rows = []
    for row in diagnosis.tried:
        if not row.base and len(row.fixes) > 1:
            names = f"{' and '.join(map(clean, row.fixes))} together"
            # What was not suggested here has its title nowhere else.
            told = "" if suggested.issuperset(row.fixes) else f" ({clean(row.title.removeprefix(TOGETHER))})"
            rows.append((names + told, measured_line(row)))
    return rows


def named_together(diagnosis: Diagnosis) -> frozenset[str]:
    """Return the fixes that are predicted or measured together with another one."""
    pair = diagnosis.combination
    measured = [row.fixes for row in diagnosis.tried if not row.base and len(row.fixes) > 1]
    return frozenset().union(*measured, pair.fixes if pair is not None else ())


def combination_line(diagnosis: Diagnosis) -> str:
    """Return the predicted gain of the best pair of suggestions, or an empty string."""
    pair = diagnosis.combination
    if pair is None:
        return ""
    gain = step_change(diagnosis.step.true_ms, pair.predicted_ms, bound=pair.bound)
    return f"{' and '.join(map(clean, pair.fixes))} together{_measured_together(pair)}: {gain}"


def combined(diagnosis: Diagnosis) -> tuple[str, str]:
    """Return the best pair of suggestions and its predicted step, for two columns; empty without a pair."""
    pair = diagnosis.combination
    if pair is None:
        return "", ""
    after = step_after(diagnosis.step.true_ms, pair.predicted_ms, bound=pair.bound)
    return f"{' and '.join(map(clean, pair.fixes))} together{_measured_together(pair)}", after


def _measured_together(pair: Combination) -> str:
    return ", measured" if pair.measured is not None else ""


def record_words(record: Record) -> str:
    """Say how far the predictions of a fix were from what was measured so far."""
    told = []
    if record.predictions and record.error is not None:
        count = f"{record.predictions} prediction{'s' if record.predictions > 1 else ''}"
        told.append(f"{count}: median error {percent(record.error)}, {record.close} within 10 %")
    if record.bounds:
        told.append(f'{record.bounds} "at best": {record.held} held')
    return "; ".join(told)


def _fix_row(suggestion: Suggestion, true_ms: float | None, root: str) -> FixRow:
    if suggestion.adds_ms is not None and true_ms is not None and not suggestion.note:
        after = f"at most {step_after(true_ms, true_ms + suggestion.adds_ms, bound=False)}"
        gain = f"{milliseconds(true_ms)} ms → {after}, for memory"
    elif suggestion.predicted_ms is None:
        gain, after = ("", "") if suggestion.note else ("gain not predicted", "not predicted")
    else:
        gain = step_change(true_ms, suggestion.predicted_ms, bound=suggestion.bound)
        after = step_after(true_ms, suggestion.predicted_ms, bound=suggestion.bound)
    saves = suggestion.saves_ms
    small = saves is not None and true_ms is not None and saves < NEGLIGIBLE_SHARE * true_ms
    risk = "" if suggestion.risk is Risk.SAFE else suggestion.risk.value
    warning = clean(suggestion.may_break)
    if suggestion.risk is Risk.CHANGES_NUMERICS or (risk and not warning):
        warning = f"{risk}: {warning}" if warning else risk
    return FixRow(
        fix=clean(suggestion.fix),
        title=sentence(suggestion.title),
        gain=gain,
        after=after,
        basis=clean(suggestion.basis),
        how=clean(suggestion.how),
        code=clean_code(suggestion.code).strip("\n"),
        where=place(suggestion.site, root=root) if suggestion.site else "",
        warning=warning,
        risk=risk,
        unchecked="; ".join(clean(text) for text in suggestion.unknown),
        undo=clean(suggestion.undo),
        verify=clean(suggestion.verify),
        sources=tuple(
            clean(f"{source.title}{f' says {source.claim}' if source.claim else ''} {source.url}")
            for source in suggestion.sources
        ),
        record=record_words(suggestion.record) if suggestion.record is not None else "",
        minor=suggestion.note or small,
    )
