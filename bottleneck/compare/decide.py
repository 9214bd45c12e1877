"""The comparison as a whole: rows of every kind, the outcome, and the sentences that say why.

In: two sides, the settings, the history. Out: `Comparison`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from .. import __version__
from ..model.baseline import Baseline
from ..model.compare import (
    Annotation,
    Comparison,
    Drift,
    GrowthChange,
    Outcome,
    SideSummary,
    TimeRow,
    budget_words,
    counter_words,
    drift_words,
    growth_words,
    mismatch_words,
    part_words,
    rank_words,
    time_words,
)
from ..model.gate import GateSettings
from .cause import Reason, budget_changes, finding_changes, name_changes, reasons_by_counter
from .comparable import changed_settings, mismatches
from .counters import compare_counters
from .job import WHOLE, compare_growth, compare_jobs
from .ranks import compare_ranks, notes_on_ranks
from .sides import Side
from .times import compare_times, median_of, spread_of

_Reasons = dict[str, tuple[Reason, ...]]


def compare_sides(
    base: Side,
    head: Side,
    *,
    settings: GateSettings | None = None,
    interleaved: bool = False,
    drifts: Sequence[Drift] = (),
) -> Comparison:
    """Compare two sides.

    `interleaved`: run k of head was made right beside run k of base. `drifts`: what the history shows.
    """
    settings = settings or GateSettings()
    one, other = base.baseline, head.baseline
    found = Comparison(
        tool_version=__version__,
        outcome="incomparable",
        headline="",
        base=_summary(base),
        head=_summary(head),
        mismatches=mismatches(one, other, allow=settings.allow),
        time=TimeRow(decision="not compared", gated=False),
        settings=changed_settings(one, other),
    )
    refused = [mismatch for mismatch in found.mismatches if not mismatch.allowed]
    if refused:
        why = "; ".join(map(mismatch_words, refused))
        return msgspec.structs.replace(
            found,
            headline=f"The sides cannot be compared: {why}.",
            reasons=tuple(
                f"{mismatch_words(row)}. To compare anyway: --allow {row.what}." for row in refused
            ),
            annotations=(Annotation(level="error", title="Not comparable", message=why, key="comparable"),),
        )
    found = msgspec.structs.replace(
        found,
        counters=compare_counters(one, other, settings.counters),
        time=compare_times(one, other, settings=settings, interleaved=interleaved),
        budget=budget_changes(one, other, found.settings),
        job=compare_jobs(one, other, settings=settings, interleaved=interleaved),
        growth=compare_growth(one, other),
        ranks=compare_ranks(one, other, settings=settings, interleaved=interleaved),
        findings=finding_changes(one, other),
        names=name_changes(one.counters, other.counters) if one.counters and other.counters else (),
        drifts=tuple(drifts),
    )
    reasons = reasons_by_counter(one, other)
    outcome = _outcome(found)
    return msgspec.structs.replace(
        found,
        outcome=outcome,
        headline=_headline(outcome, found, reasons),
        reasons=_told(found, reasons),
        annotations=_annotations(found, reasons),
        notes=_notes(one, other, found),
    )


def _summary(side: Side) -> SideSummary:
    baseline = side.baseline
    machine = baseline.machine
    name = machine.device_name if machine.device_kind not in ("", "cpu") else machine.device_kind
    return SideSummary(
        label=side.label,
        title=baseline.title,
        runs=len(baseline.runs),
        step_ms=median_of(baseline.runs),
        spread=spread_of(baseline.runs),
        verdict=baseline.verdict,
        device=name,
        torch=machine.torch,
    )


def _grows(found: Comparison) -> GrowthChange | None:
    """Return the growth, where it is a regression."""
    return found.growth if found.growth is not None and found.growth.status == "worse" else None


def _slower_step(found: Comparison) -> str:
    """Word the longer step: the budget lines, and the ranks of which most of the account grew."""
    lines = [budget_words(row) for row in found.budget if row.delta_ms > 0][:3]
    text = f"{time_words(found.time)}, {'; '.join(lines)}" if lines else time_words(found.time)
    grown = [row for row in found.ranks if (row.time.head_ms or 0.0) > (row.time.base_ms or 0.0)]
    grown.sort(key=lambda row: (row.time.base_ms or 0.0) - (row.time.head_ms or 0.0))
    return text + (f"; {', '.join(map(rank_words, grown[:2]))}" if grown else "")


def _decided(found: Comparison, decision: str) -> list[str]:
    """Word the times that count for the outcome and are decided so.

    A whole job counts where it is slower. Where that cannot be told it stops nothing: its start depends
    on what the machine has in its caches.
    """
    told = [time_words(found.time)] if found.time.gated and found.time.decision == decision else []
    rows = found.job if decision == "slower" else ()
    return told + [part_words(row) for row in rows if row.time.gated and row.time.decision == decision]


def _outcome(found: Comparison) -> Outcome:
    statuses = {row.status for row in found.counters}
    if "worse" in statuses or found.drifts or _grows(found) is not None or _decided(found, "slower"):
        return "regression"
    if not found.counters and found.time.decision == "not compared":
        return "undecided"
    if statuses & {"unstable", "unknown"} or _decided(found, "undecided"):
        return "undecided"
    return "ok"


def _headline(outcome: Outcome, found: Comparison, reasons: _Reasons) -> str:
    counters = found.counters
    worse = [row for row in counters if row.status == "worse"]
    if outcome == "regression":
        parts = [counter_words(row) + _because(reasons.get(row.name, ())[:1]) for row in worse[:3]]
        if len(worse) > 3:
            parts.append(f"{len(worse) - 3} more counters")
        if (grows := _grows(found)) is not None:
            parts.append(growth_words(grows))
        parts += _decided(found, "slower")
        parts += [drift_words(row) for row in found.drifts]
        return f"Regression: {'; '.join(parts)}."
    if outcome == "undecided":
        doubtful = [row for row in counters if row.status in ("unstable", "unknown")]
        parts = [f"{row.title}: {row.note}" for row in doubtful[:3]] + _decided(found, "undecided")
        return f"Undecided: {'; '.join(parts) or 'nothing could be compared'}."
    better = [row for row in counters if row.status == "better"]
    text = "No regression"
    if counters:
        text += f": {sum(row.status != 'off' for row in counters)} counters within their limits"
    if better:
        text += f", {len(better)} of them lower"
    if found.time.decision != "not compared":
        text += f"{';' if counters else ':'} {time_words(found.time)}"
    return f"{text}."


def _told(found: Comparison, reasons: _Reasons) -> tuple[str, ...]:
    lines = [
        counter_words(row) + _because(reasons.get(row.name, ()))
        for row in found.counters
        if row.status in ("worse", "unstable", "unknown")
    ]
    if (grows := _grows(found)) is not None:
        lines.append(growth_words(grows))
    if found.time.decision == "slower":
        lines.append(_slower_step(found))
    elif found.time.decision == "undecided":
        lines.append(time_words(found.time))
    lines += [part_words(row) for row in found.job if row.part == WHOLE and row.time.decision == "slower"]
    lines += [drift_words(row) for row in found.drifts]
    return tuple(lines)


def _because(reasons: Sequence[Reason]) -> str:
    return f": {', '.join(reason.placed for reason in reasons)}" if reasons else ""


def _annotations(found: Comparison, reasons: _Reasons) -> tuple[Annotation, ...]:
    out: list[Annotation] = []
    for row in found.counters:
        if row.status != "worse":
            continue
        why = reasons.get(row.name, ())
        placed = [reason for reason in why if reason.site is not None]
        title = f"Regression: {row.title}"
        out += [
            Annotation(
                level="error",
                title=title,
                message=f"{counter_words(row)}: {reason.text}",
                site=reason.site,
                key=row.name,
            )
            for reason in placed
        ] or [
            Annotation(level="error", title=title, message=counter_words(row) + _because(why), key=row.name)
        ]
    if found.time.decision == "slower":
        level: Literal["error", "warning"] = "error" if found.time.gated else "warning"
        out.append(Annotation(level=level, title="Slower step", message=_slower_step(found), key="time"))
    if (grows := _grows(found)) is not None:
        message = growth_words(grows)
        out.append(
            Annotation(level="error", title="Steps grow", message=message, site=grows.site, key="growth")
        )
    out += [
        Annotation(
            level="error" if row.time.gated else "warning",
            title="Slower job",
            message=part_words(row),
            key=f"job-{row.part}",
        )
        for row in found.job
        if row.time.decision == "slower"
    ]
    out += [
        Annotation(level="error", title="Slow drift", message=drift_words(row), key=f"drift-{row.what}")
        for row in found.drifts
    ]
    # A finding is a judgement over measured times: worth a look, never a failure of its own.
    out += [
        Annotation(level="notice", title=f"New: {row.code}", message=row.title, site=row.site, key=row.code)
        for row in found.findings
        if row.change == "new" and row.site is not None
    ]
    return tuple(out)


def _notes(base: Baseline, head: Baseline, found: Comparison) -> tuple[str, ...]:
    notes = [
        f"Compared despite a difference: {mismatch_words(row)}." for row in found.mismatches if row.allowed
    ]
    if found.time.note and base.runs and head.runs:
        # A baseline of counters alone has no times, and nobody expects them of it.
        notes.append(f"Step time: {found.time.note}.")
    if base.workload is None or head.workload is None:
        notes.append(
            "A bare trace does not show batch, world size or kind of step: check yourself that they agree."
        )
    elif not base.workload.batch and base.workload.batch_elements is None:
        notes.append("The batches did not come from a DataLoader: check yourself that their shapes agree.")
    if bool(base.jobs) != bool(head.jobs):
        notes.append("Only one side was watched, so the parts of the job are not compared.")
    notes += notes_on_ranks(base, head)
    if base.title != head.title:
        notes.append(f"The scripts have different names: {base.title} and {head.title}.")
    return tuple(notes)


def placed_in_repository(comparison: Comparison, folder: Path) -> Comparison:
    """Name the places of annotations from the root of the repository, as GitHub and GitLab want them."""
    top = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)
    prefix = folder.relative_to(top)
    if not prefix.parts:
        return comparison

    def moved(note: Annotation) -> Annotation:
        if note.site is None or Path(note.site.file).is_absolute():
            return note
        site = msgspec.structs.replace(note.site, file=str(prefix / note.site.file))
        return msgspec.structs.replace(note, site=site)

    return msgspec.structs.replace(comparison, annotations=tuple(map(moved, comparison.annotations)))
