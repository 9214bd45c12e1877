"""Rows of the page's tables: windows, kernels, counts, loaders, ranks.

In: a diagnosis. Out: rows of clean text for the templates, with the numbers that tables are sorted by.
"""

from __future__ import annotations

import statistics
from types import SimpleNamespace

from ...model.codes import Part
from ...model.counters import COUNTERS, Counter
from ...model.diagnosis import Diagnosis
from ...model.view import LoaderRow
from ...model.words import byte_size, clean, milliseconds, percent
from ..rows.diagnosis import root_of
from ..rows.fleet import own_report
from ..rows.pairs import Pairs, cut_text, known_pairs, place_or

_ATTACHED = {
    "warm-up": "nothing, not counted",
    "baseline": "step timing only",
    "trace": "torch.profiler",
    "memory": "memory history",
    "between": "step timing only",
    "after": "step timing only",
}


def window_rows(diagnosis: Diagnosis) -> tuple[SimpleNamespace, ...]:
    """Return the windows in the order of the run, the ones without steps with their reason."""
    rows = []
    for window in diagnosis.windows:
        ms = [t for t in window.ms if t is not None]
        like = statistics.median(ms) if ms else None
        note = window.status if window.status == "ok" else f"{window.status}: {clean(window.reason)}"
        rows.append(
            SimpleNamespace(
                name=clean(window.name),
                status=note.removesuffix(": "),
                attached="torch.profiler" if window.clock == "trace" else _ATTACHED.get(window.name, ""),
                steps=window.of_steps,
                median=milliseconds(like),
                lowest=milliseconds(min(ms) if ms else None, like=like),
                highest=milliseconds(max(ms) if ms else None, like=like),
                clock=window.clock,
            )
        )
    return tuple(rows)


def kernel_rows(diagnosis: Diagnosis) -> tuple[SimpleNamespace, ...]:
    """Return all kernels that the diagnosis holds."""
    largest = max((row.share for row in diagnosis.kernels), default=0.0)
    return tuple(
        SimpleNamespace(
            name=cut_text(row.name),
            part=list(Part).index(row.part),
            label=row.part.value,
            count=f"{row.count:.4g}",
            count_value=row.count,
            ms=milliseconds(row.ms),
            ms_value=row.ms,
            share=percent(row.share),
            share_value=row.share,
            width=round(100 * max(row.share, 0.0) / largest, 2) if largest > 0 else 0.0,
        )
        for row in diagnosis.kernels
    )


def count_rows(diagnosis: Diagnosis) -> tuple[SimpleNamespace, ...]:
    """Return the counters in their usual order, those that were not measured with the reason."""
    counters = diagnosis.counters
    if counters is None:
        return ()
    rows = []
    for name, spec in COUNTERS.items():
        counter = counters.values.get(name)
        if counter is None and name not in counters.absent:
            continue
        rows.append(
            SimpleNamespace(
                title=spec.title,
                value="not measured" if counter is None else _count(counter.value, spec.unit),
                spread=clean(counters.absent.get(name, ""))
                if counter is None
                else _spread(counter, spec.unit),
                per="step" if spec.scope == "step" else "run",
                meaning=spec.meaning,
            )
        )
    return tuple(rows)


def _count(value: float, unit: str) -> str:
    if unit == "bytes":
        return byte_size(value)
    if unit == "FLOP":
        return f"{value:.3g} FLOP"
    return f"{value:,.0f}".replace(",", " ") if value == int(value) else f"{value:.4g}"


def _spread(counter: Counter, unit: str) -> str:
    if counter.low is None or counter.high is None:
        return ""
    return f"{_count(counter.low, unit)} to {_count(counter.high, unit)}"


def loader_rows(diagnosis: Diagnosis) -> tuple[SimpleNamespace, ...]:
    """Return the loaders."""
    root = root_of(diagnosis)
    return tuple(
        SimpleNamespace(
            title=" ".join(filter(None, [clean(row.cls), f"({row.role})" if row.role != "unknown" else ""])),
            where=place_or(row.site, root),
            facts=_loader(row),
        )
        for row in diagnosis.loaders
    )


def _loader(row: LoaderRow) -> Pairs:
    where = {"workers": "in a worker", "main": "in the training process"}.get(row.produced_in, "")
    return known_pairs(
        (
            "Waiting per fetch",
            f"{milliseconds(row.wait_ms)} ms" if row.wait_ms is not None else "not measured",
        ),
        (
            "Producing a batch",
            f"{milliseconds(row.production_ms)} ms {where}".strip()
            if row.production_ms is not None
            else "not measured",
        ),
        ("Workers", str(row.num_workers)),
        ("Batch size", str(row.batch_size) if row.batch_size is not None else None),
        ("Batch", f"{clean(row.batch)}{f', {byte_size(row.batch_bytes)}' if row.batch_bytes else ''}"),
        ("Pinned memory", "yes" if row.pin_memory else "no"),
        ("Persistent workers", "yes" if row.persistent_workers else "no"),
        ("Prefetch", str(row.prefetch_factor) if row.prefetch_factor is not None else None),
        ("Start method", clean(row.start_method or "") or None),
        ("First batch after", f"{milliseconds(row.startup_ms)} ms" if row.startup_ms is not None else None),
        ("Dataset", clean(row.dataset)),
    )


def rank_rows(diagnosis: Diagnosis) -> tuple[SimpleNamespace, ...]:
    """Return the ranks, none for a run of one."""
    if len(diagnosis.ranks) < 2:
        return ()
    return tuple(
        SimpleNamespace(
            rank=row.rank,
            step=milliseconds(row.step_ms),
            busy=percent(row.busy_share),
            own=milliseconds(row.own_ms),
            waits=milliseconds(row.waits_for_others_ms),
            transfer=milliseconds(row.transfer_ms),
            bubble=milliseconds(row.bubble_ms),
            late=milliseconds(row.late_ms) if row.cause else "",
            cause=row.cause,
            path=clean(row.path),
            report=own_report(row),
        )
        for row in diagnosis.ranks
    )
