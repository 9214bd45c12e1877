"""The lines of a verification's report as plain rows, before any format renders them.

In: a `Verification`. Out: rows of strings, in order, that both the terminal and Markdown show.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...model.verify import Edit, Measured, Outcome, Verification
from ...model.words import clean, clean_code, milliseconds, percent, place

COLUMNS = ("fix", "predicted", "measured (95 %)", "peak memory", "loss", "verdict")

_SAID = {"same": "same", "close": "close", "harmful": "harmed", "not comparable": "?", "not measured": "-"}

_HOPELESS = 10.0
"""Interval (high over low) from which a measurement is too noisy to report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fix or combination."""

    fix: str
    title: str
    predicted: str
    measured: str
    memory: str
    loss: str
    verdict: str
    good: bool
    bad: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells under `COLUMNS`."""
        return (
            self.fix,
            self.predicted,
            self.measured,
            self.memory,
            self.loss,
            self.verdict,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EditRow:
    """One edit to make."""

    fix: str
    where: str
    what: str
    code: str
    diff: str
    also: str
    reason: str


def headline(verification: Verification) -> str:
    """Return the answer in one sentence."""
    together = combination_outcome(verification)
    if len(verification.combination) > 1 and (together is None or together.measured is None):
        best = " + ".join(verification.combination)
        return f"{best}: each improves on those before it; their combined gain is not measured yet."
    if together is None or together.measured is None:
        return _nothing_won(verification)
    found = together.measured
    names = " + ".join(verification.combination)
    steps = f"{milliseconds(found.before_ms)} → {milliseconds(found.after_ms, like=found.before_ms)} ms"
    return f"{names}: {steps}, {_times(found)}, loss {_SAID[together.parity.verdict]}."


def _nothing_won(verification: Verification) -> str:
    tried = [row for row in verification.outcomes if row.verdict != "not run"]
    if any(row.verdict in ("undecided", "not run") for row in verification.outcomes):
        return "No fix has been shown to help so far."
    if all(row.verdict in ("not applied", "failed") for row in tried):
        if len(tried) == 1:
            reason = f": {clean(tried[0].reason).removesuffix('.')}" if tried[0].reason else ""
            return f"The fix {'failed' if tried[0].verdict == 'failed' else 'was not applied'}{reason}."
        return f"None of the {len(tried)} fixes could be measured: not applied, or failed."
    return f"None of the {len(tried)} fixes tried helps." if len(tried) != 1 else "The fix does not help."


def combination_outcome(verification: Verification) -> Outcome | None:
    """Return the row of the winning combination against the script as it is."""
    return next(
        (
            row
            for row in verification.outcomes
            if row.fixes == verification.combination and not row.base and row.fixes
        ),
        None,
    )


def rows_of(outcomes: Iterable[Outcome]) -> list[Row]:
    """Return the table."""
    return [_row(outcome) for outcome in outcomes]


def measured_line(outcome: Outcome) -> str:
    """Return what was measured for a fix, shown next to its prediction."""
    found = outcome.measured
    if found is None or outcome.verdict in ("not applied", "failed"):
        return clean(f"{outcome.verdict}: {outcome.reason}" if outcome.reason else outcome.verdict)
    steps = f"{milliseconds(found.before_ms)} → {milliseconds(found.after_ms, like=found.before_ms)} ms"
    told = "" if outcome.verdict == "faster" else f", {outcome.verdict}"
    return f"{steps}, {_times(found)}, loss {_SAID[outcome.parity.verdict]}{told}"


def _row(outcome: Outcome) -> Row:
    predicted = "-"
    if outcome.predicted_ratio is not None:
        predicted = f"{'at best ' if outcome.bound else ''}{outcome.predicted_ratio:.2f}×"
    measured = _times(outcome.measured) if outcome.measured is not None else "-"
    return Row(
        fix=_names(outcome),
        title=clean(outcome.title),
        predicted=predicted,
        measured=measured,
        memory=_bytes(outcome.memory_bytes),
        loss=_SAID[outcome.parity.verdict],
        verdict=outcome.verdict,
        good=outcome.verdict == "faster",
        bad=outcome.verdict in ("harmful", "failed", "slower"),
    )


def _names(outcome: Outcome) -> str:
    names = " + ".join(outcome.fixes)
    return f"{names} beside {' + '.join(outcome.base)}" if outcome.base else names


def _times(found: Measured) -> str:
    text = f"{found.ratio:.2f}×"
    if found.low is None or found.high is None:
        return f"{text} (1 pair)"
    if found.high > _HOPELESS * found.low:
        return f"{text} (too noisy)"
    return f"{text} ({found.low:.2f} to {found.high:.2f})"


def _count(number: int) -> str:
    return f"{number:,d}".replace(",", " ")


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    mega = round(count / 1e6)
    if mega == 0:
        return "±0"
    return f"{mega:+,d} MB".replace(",", " ") if abs(mega) < 10_000 else f"{count / 1e9:+.1f} GB"


def reason_lines(verification: Verification) -> list[str]:
    """Return each fix's title and what the table does not show: reasons, start-up, losses."""
    return [
        clean(f"{_names(outcome)} {outcome.title}: {'; '.join(_told(outcome)) or outcome.verdict}")
        for outcome in verification.outcomes
    ]


def _told(outcome: Outcome) -> list[str]:
    told = []
    if outcome.reason:
        told.append(outcome.reason)
    elif outcome.parity.verdict in ("close", "not comparable") and outcome.parity.text:
        told.append(outcome.parity.text.rstrip("."))
    if outcome.evidence and outcome.verdict not in ("not applied", "not run"):
        told.append(outcome.evidence)
    startup, pays = outcome.startup_seconds, outcome.pays_after_steps
    if outcome.verdict == "faster" and startup is not None and startup >= 1.0:
        back = f", paid back after {_count(pays)} steps" if pays is not None else ""
        told.append(f"{startup:.0f} s more to start{back}")
    norm = outcome.parity.gradient_norm
    if norm is not None and norm > 0.01:
        told.append(f"gradient norms differ by up to {percent(norm)} at the first updates")
    reached = outcome.parity.steps_to_loss
    if reached is not None:
        without, with_fix = reached
        if with_fix is None:
            told.append(f"the loss reached after {without} steps is not reached with the fix in as many")
        elif abs(with_fix - without) > max(2, 0.1 * without):
            told.append(f"the same loss is reached after {with_fix} instead of {without} steps")
    if outcome.error is not None and outcome.measured is not None and abs(outcome.error) > 0.1:
        told.append(f"the prediction was {100 * abs(outcome.error):.0f} % off")
    return told


def combination_line(verification: Verification) -> str:
    """Return what to keep."""
    kept = verification.combination
    if not kept:
        return ""
    return f"Keep: {' + '.join(kept)}" if len(kept) > 1 else f"Keep: {kept[0]}"


def how_lines(verification: Verification) -> list[str]:
    """Return how it was measured, the machine's noise, and how reproducible the script is."""
    protocol = verification.protocol
    runs = [run for run in verification.runs if run.purpose == "timing"]
    counts = [run.steps for run in runs if run.steps]
    steps = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else f"{max(counts, default=0)}"
    least, most = protocol.pairs, protocol.max_pairs
    pairs = f"{least} to {most}" if least != most else f"{least}"
    lines = [
        f"{len(runs)} runs in turns, {steps} steps timed in each,"
        f" {pairs} pairs per fix; gains below"
        f" {percent(protocol.threshold)} do not count"
    ]
    noise = verification.noise
    if noise is not None:
        lines.append(
            f"machine noise: two identical runs differ by {percent(noise.share)},"
            f" at worst {percent(noise.worst)} ({noise.runs} runs)"
        )
    else:
        lines.append("machine noise: not measured (the script ran once without a fix)")
    if verification.reproducible:
        lines.append(verification.reproducible)
    return lines


def edit_rows(verification: Verification) -> list[EditRow]:
    """Return the edits that keep the winning fixes."""
    return [_edit(edit) for edit in verification.edits]


def _edit(edit: Edit) -> EditRow:
    return EditRow(
        fix=edit.fix,
        where=place(edit.where) if edit.where is not None else "",
        what=clean(edit.what),
        code=clean_code(edit.code),
        diff=clean_code(edit.diff),
        also=clean(edit.also),
        reason=clean(edit.reason),
    )


def closing_lines(verification: Verification) -> list[str]:
    """Return notes, and what is left to do."""
    lines = [clean(note) for note in verification.notes]
    if not verification.complete:
        lines.append("This verification is not complete; continue it with --resume.")
    return lines
