"""How the parts of a comparison are put into words, the same in every report.

In: rows. Out: short statements without a full stop.
"""

from __future__ import annotations

from .codes import class_of
from .compare import BudgetChange, CounterRow, Drift, Mismatch, TimeRow
from .words import milliseconds

__all__ = [
    "budget_words",
    "counter_words",
    "drift_words",
    "mismatch_words",
    "number",
    "signed_ms",
    "time_words",
]

_MISMATCH = {
    "device": "other device",
    "batch": "other batch",
    "world-size": "other number of ranks",
    "torch": "other torch",
    "step": "other kind of step",
}
_FACTOR = 3.0
_PREFIXES = (("G", 1e9), ("M", 1e6), ("k", 1e3))


def number(value: float | None, unit: str = "") -> str:
    """Word a counter's value: exact as far as it is a count, shortened where it is bytes or FLOP."""
    if value is None:
        return "not measured"
    if unit:
        for prefix, size in _PREFIXES:
            if abs(value) >= 10 * size:
                return f"{value / size:.4g} {prefix}{'B' if unit == 'bytes' else unit}"
        return f"{value:.0f} {'B' if unit == 'bytes' else unit}"
    return f"{value:,.0f}".replace(",", " ") if float(value).is_integer() else f"{value:.4g}"


def signed_ms(value: float) -> str:
    """Word a change of time: "+9.1 ms"."""
    return f"{'+' if value >= 0 else '-'}{milliseconds(abs(value))} ms"


def mismatch_words(row: Mismatch) -> str:
    """Word what differs and must not."""
    return f"{_MISMATCH[row.what]}: {row.base} in base, {row.head} in head"


def counter_words(row: CounterRow) -> str:
    """Word one counter's change: "synchronisations 3 → 4 per step"."""
    if row.status == "unknown":
        return f"{row.title}: {row.note}"
    per = " per step" if row.scope == "step" else ""
    text = f"{row.title} {number(row.base, row.unit)} → {number(row.head, row.unit)}{per}"
    if row.status == "worse" and row.limit is not None and row.base is not None and row.limit > row.base:
        text += f" (limit {number(row.limit, row.unit)})"
    return f"{text} ({row.note})" if row.note and row.status in ("worse", "unstable") else text


def time_words(row: TimeRow) -> str:
    """Word the decision about the step time, with its interval or with what would decide."""
    if row.decision == "not compared":
        return f"step time not compared: {row.note}" if row.note else "step time not compared"
    change = ""
    if row.ratio is not None:
        change = _ratio(row)
    if row.decision == "no change":
        return f"step time {change}: an increase of {100 * row.tolerance:.0f} % is ruled out"
    if row.decision != "undecided":
        return f"step time {change}: {row.decision}"
    return f"step time {change}: undecided, {_what_would_decide(row)}"


def _ratio(row: TimeRow) -> str:
    """Word the ratio with its interval: in percent, or as a factor where percents grow unreadable."""
    assert row.ratio is not None
    bounds = row.interval or ()
    if row.ratio >= _FACTOR:
        text, ends = f"{row.ratio:.3g}×", [f"{bound:.3g}" for bound in bounds]
    else:
        text = f"{(row.ratio - 1) * 100:+.1f} %"
        ends = [f"{(bound - 1) * 100:+.1f}" for bound in bounds]
    return f"{text} [{', '.join(ends)}]" if ends else text


def _what_would_decide(row: TimeRow) -> str:
    if row.noise is None:
        return "the noise is not known"
    seen = f"at the noise seen ({row.noise * 100:.1f} % from run to run)"
    if min(row.base_runs, row.head_runs) < 2:
        seen = f"at the noise within a run ({row.noise * 100:.1f} %)"
    if row.needed is None:
        return f"no reasonable number of repeats would tell {100 * row.tolerance:.0f} % {seen}"
    least = "at least " if min(row.base_runs, row.head_runs) < 2 else ""
    return f"{least}{row.needed} repeats a side would tell {100 * row.tolerance:.0f} % {seen}"


def drift_words(row: Drift) -> str:
    """Word a slow rise."""
    chance = f", p = {row.p_value:.2g}" if row.p_value is not None else ""
    return f"slow drift: {row.title} rose by {row.growth * 100:.1f} % over the last {row.points} runs{chance}"


def budget_words(row: BudgetChange) -> str:
    """Word a budget line's change with its class and cause."""
    cause = class_of(row.part)
    name = f"{cause.value} ({row.part.value})" if cause is not None else row.part.value
    because = f", {', '.join(row.because)}" if row.because else ""
    return f"{signed_ms(row.delta_ms)}: {name}{because}"
