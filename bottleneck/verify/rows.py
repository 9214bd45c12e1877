"""From records to rows: the result of one fix or combination.

In: records, a candidate (a fix with its prediction), losses as they lie in the runs' folders. Out:
`Outcome`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ..catalog.registry import by_id
from ..catalog.tolerances import tolerance_of, widened
from ..model.fix import Suggestion
from ..model.run import JsonValue
from ..model.verify import EndedBy, Outcome, Parity, Protocol, RunRecord, TrialFacts, Wish
from ..model.words import percent
from ..runs.layout import first_run
from ..stats.ratio_paired import decide_ratio
from .arms import first_epoch, read_facts
from .measure import measure, memory_change, pays_after, startup_change
from .parity import Reproduction, compare, reproduction


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to try: one fix, or several together."""

    wishes: tuple[Wish, ...]
    row: Outcome
    """As long as it was not tried. The predicted ratio is of the step that was diagnosed, which need not be
    the one measured now."""

    @property
    def fixes(self) -> tuple[str, ...]:
        """Their ids."""
        return self.row.fixes


def untried(*wishes: Wish, **known: Any) -> Candidate:
    """Return something to try, with what is known of its row."""
    fixes = tuple(wish.fix for wish in wishes)
    return Candidate(wishes, Outcome(fixes=fixes, reason="not tried yet", **known))


def candidate_of(suggestion: Suggestion, wish: Wish, true_ms: float | None) -> Candidate:
    """Return what a suggestion of the diagnosis comes to."""
    predicted = suggestion.predicted_ms
    return untried(
        wish,
        title=suggestion.title,
        predicted_ms=predicted,
        predicted_ratio=true_ms / predicted if true_ms and predicted else None,
        bound=suggestion.bound,
        risk=suggestion.risk,
    )


def candidate_again(outcome: Outcome, wishes: Sequence[Wish]) -> Candidate:
    """Return the candidate of a row, as a resumed verification needs it."""
    kept = ("title", "predicted_ms", "predicted_ratio", "bound", "risk")
    known = {name: getattr(outcome, name) for name in kept}
    return untried(*(wish for wish in wishes if wish.fix in outcome.fixes), **known)


@dataclass(slots=True)
class Evidence:
    """Losses of the runs, read once each from their folders."""

    folder: Path
    _known: dict[str, TrialFacts | None] = field(default_factory=dict)

    def of(self, run: RunRecord) -> TrialFacts | None:
        """Return a run's trial.json."""
        if run.folder not in self._known:
            self._known[run.folder] = read_facts(self.folder / run.folder)
        return self._known[run.folder]

    def losses(self, run: RunRecord, added: Sequence[str] = ()) -> list[float | None]:
        """Return a run's losses; of the first pass over its data where the fixes move samples.

        From the second pass on workers that persist give another order, which is no harm done.
        """
        facts = self.of(run)
        if facts is None:
            return []
        if not any(by_id(fix).moves_samples for fix in added):
            return facts.losses
        return facts.losses[: first_epoch(self.folder / run.folder)]

    def _dtypes(self, run: RunRecord) -> list[str]:
        """Return the types that the script computes in: loss, most parameters, autocast."""
        facts, whole = self.of(run), first_run(self.folder / run.folder)
        settings = whole.settings if whole is not None else {}
        counts = settings.get("parameters.dtype")
        most = max(counts, key=lambda name: counts[name]) if isinstance(counts, dict) and counts else ""
        return [facts.loss_dtype if facts is not None else "", most, str(settings.get("autocast.dtype", ""))]

    def reproduction(self, runs: Sequence[RunRecord], base: tuple[str, ...] = ()) -> Reproduction | None:
        """Compare the runs without a fix with each other."""
        same = [run for run in runs if run.fixes == base and run.status == "ok" and run.purpose == "timing"]
        return reproduction([self.losses(run) for run in same])

    def parity(self, runs: Sequence[RunRecord], *, base: tuple[str, ...], added: tuple[str, ...]) -> Parity:
        """Judge the losses of the runs with a fix; the worst of them counts.

        Where runs with seeded batches exist for both sides, they take the place of the others.
        """
        purpose = "timing"
        if any(run.purpose == "parity" and run.status == "ok" and run.fixes == base + added for run in runs):
            purpose = "parity"
        sides: list[list[RunRecord]] = [
            [r for r in runs if r.fixes == fixes and r.status == "ok" and r.purpose == purpose]
            for fixes in (base, base + added)
        ]
        if not sides[0] or not sides[1]:
            return Parity(verdict="not measured", text="There is no pair of runs to compare.")
        first = sides[0][0]
        facts = self.of(first)
        own_norms = facts.gradient_norms if facts is not None else []
        own = self.reproduction(runs, base)
        tolerance = widened(tolerance_of(added), self._dtypes(first))
        parities: list[Parity] = []
        for run in sides[1]:
            its = self.of(run)
            parities.append(
                compare(
                    self.losses(first, added),
                    self.losses(run, added),
                    tolerance=tolerance,
                    against_itself=own,
                    norms=(own_norms, its.gradient_norms if its is not None else []),
                )
            )
        order = ("harmful", "not comparable", "close", "same", "not measured")
        worst = min(parities, key=lambda parity: order.index(parity.verdict))
        if purpose == "parity":
            text = f"{worst.text} Both sides were compared with the same random transforms."
            return msgspec.structs.replace(worst, text=text)
        return worst


_STOPPED: dict[EndedBy | None, str] = {
    EndedBy.USER: "stopped by the user",
    EndedBy.TIME: "the time budget is used up; --resume continues",
    EndedBy.NOTHING_TO_COMPARE: "the script now also fails without it",
}
"""The reason given for a fix whose trial was not completed."""


def make_outcome(
    candidate: Candidate,
    runs: Sequence[RunRecord],
    *,
    base: tuple[str, ...],
    protocol: Protocol,
    evidence: Evidence,
    ended: EndedBy | None = None,
) -> Outcome:
    """Return what is known about a candidate."""
    added = candidate.fixes
    measured, ratio = measure(runs, base=base, added=added, looks=protocol.looks)
    outcome = msgspec.structs.replace(
        candidate.row,
        base=base,
        ended=ended,
        options={wish.fix: _plain(wish.options) for wish in candidate.wishes if wish.options},
    )
    stopped = _STOPPED.get(ended, "")
    # A run that was interrupted may not have come to where a fix takes effect.
    tried = [run for run in runs if run.fixes == base + added and run.status != "interrupted"]
    if not tried:
        return msgspec.structs.replace(outcome, reason=stopped) if stopped else outcome
    outcome = msgspec.structs.replace(outcome, reason="")
    applied = {a.fix: a for a in tried[-1].applied if a.fix in added}
    outcome = msgspec.structs.replace(
        outcome, evidence="; ".join(a.evidence for a in applied.values() if a.evidence)
    )
    failed = next((run for run in reversed(tried) if run.status == "failed"), None)
    if failed is not None:
        return msgspec.structs.replace(outcome, verdict="failed", reason=failed.reason)
    idle = [a for a in applied.values() if a.state == "not applied"]
    if idle:
        why = "; ".join(f"{a.fix}: {a.reason}" if len(added) > 1 else a.reason for a in idle)
        return msgspec.structs.replace(outcome, verdict="not applied", reason=why)
    if measured is None:
        return msgspec.structs.replace(outcome, reason=stopped or "no pair of runs was completed")
    memory, kind = memory_change(runs, base=base, added=added)
    startup = startup_change(runs, base=base, added=added)
    parity = evidence.parity(runs, base=base, added=added)
    decision = decide_ratio(ratio, least_pairs=protocol.pairs, threshold=protocol.threshold)
    reason = ""
    if parity.verdict == "harmful":
        reason = parity.text
    elif decision == "undecided":
        reason = stopped or f"the interval spans the threshold of {percent(protocol.threshold)}"
    predicted = candidate.row.predicted_ratio
    error = None
    if predicted and not candidate.row.bound and not base:
        error = measured.ratio / predicted - 1.0
    return msgspec.structs.replace(
        outcome,
        verdict="harmful" if parity.verdict == "harmful" else decision,
        reason=reason,
        measured=measured,
        error=error,
        memory_bytes=memory,
        memory_is=kind,
        startup_seconds=startup,
        pays_after_steps=pays_after(startup, measured),
        parity=parity,
    )


def _plain(options: dict[str, JsonValue]) -> dict[str, bool | int | float | str | None]:
    return {
        k: v if isinstance(v, (bool, int, float, str)) or v is None else str(v) for k, v in options.items()
    }
