"""Which device calls kept the step waiting, by name, label and operator.

In: a `Trace`, a `Program`, the exposed time of each event. Out: `HostSpan`s, largest first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...model.run import SAMPLED, Run, SourceSite
from ..lanes.labels import OUTSIDE, PART_OF_WORK, PHASE_OF_WORK, PHASES, WORK_OF_WAIT, Work
from ..lanes.program import EventKind, Program
from ..result import KIND_OF_PLACE, HostSpan, SpanKind
from ..steps.loop_lines import SAMPLED_IN, main_site, noted_site
from ..trace import intervals
from ..trace.dialect import Kind
from ..trace.stacks import UserFrames
from ..trace.table import Trace

_PHASES = frozenset((*PHASES, OUTSIDE))
_NO_PLACE = (False, "")
_NOTES_OF_EVENT = {
    EventKind.SYNC: "synchronisation",
    EventKind.COPY: "h2d",
    EventKind.ALLOCATOR: "empty_cache",
}


def _enclosing_ops(trace: Trace, rows: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """Return per row the outermost operator around it, and the innermost of our phase labels."""
    when = trace.ts_ns[rows]
    ops = trace.outermost(trace.rows(Kind.OP, named=lambda name: not name.startswith("autograd::engine")))
    notes = trace.rows(Kind.ANNOTATION, named=_PHASES)
    found = (
        (ops, trace.ranges(ops).around(when, trace.tid[rows])),
        (notes, intervals.innermost(trace.ts_ns[notes], trace.end_of(notes), when)),
    )
    around, labels = ([trace.name_of(of[k]) if k >= 0 else "" for k in at.tolist()] for of, at in found)
    return around, ["" if label == OUTSIDE else label for label in labels]


def read_spans(
    trace: Trace,
    program: Program,
    exposed_ns: NDArray[np.float64],
    *,
    run: Run | None,
    scale: float,
    idle_ms: dict[Work, float],
    main_tid: int,
) -> tuple[HostSpan, ...]:
    """Group waiting, copying and allocating calls; add one span per category that labels identify.

    `exposed_ns` (n,) is idle time that each event explains over the window; `idle_ms` device idle per step
    for the categories that labels tell; `scale`: from replayed to true time.
    """
    special = np.flatnonzero(np.isin(program.kind, list(WORK_OF_WAIT)))
    # A long trace has the same calls in every step: 20 000 of them name them all.
    if len(special) > 20_000:
        special = special[np.argsort(exposed_ns[special])[-20_000:]]
    rows = program.row[special]
    ops, labels = _enclosing_ops(trace, rows)
    steps = max(1, program.steps)
    frames = UserFrames(trace)
    sums: dict[tuple[int, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    lines: dict[tuple[int, str, str], Counter[SourceSite]] = defaultdict(Counter)
    for k, event in enumerate(special.tolist()):
        call = trace.name_of(rows[k])
        what = f"{ops[k]} ({call})" if ops[k] else call
        key = (int(program.kind[event]), what, labels[k])
        entry = sums[key]
        entry[0] += float(exposed_ns[event])
        entry[1] += float(trace.dur_ns[rows[k]])
        entry[2] += 1
        line = frames.at(int(trace.ts_ns[rows[k]]), int(trace.tid[rows[k]]))
        if line is not None:
            lines[key][line] += 1
    spans = [
        HostSpan(
            part=PART_OF_WORK[WORK_OF_WAIT[EventKind(kind)]],
            what=what,
            exposed_ms=total / max(1, steps - 1) / 1e6 * scale,
            called_ms=called / steps / 1e6,
            count=count / steps,
            site=(
                lines[kind, what, label].most_common(1)[0][0]
                if lines[kind, what, label]
                else noted_site(run, _NOTES_OF_EVENT[EventKind(kind)], label)
            ),
            label=label,
        )
        for (kind, what, label), (total, called, count) in list(sums.items())
    ]
    for work, ms in idle_ms.items():
        traced = float(program.work[:, work].sum()) / steps / 1e6
        if traced <= 0:
            continue
        phase = PHASE_OF_WORK.get(work, "")
        for place, share in _places(trace, program, work).items():
            site = _site_of(work, run, phase, place, lambda: _paused_at(program, frames, main_tid))
            # Of pauses of no known line nobody can say what stands there.
            kind = KIND_OF_PLACE.get(place, SpanKind.CALL) if site is not None else SpanKind.CALL
            spans.append(
                HostSpan(
                    part=PART_OF_WORK[work],
                    kind=kind,
                    what=_describe(work),
                    exposed_ms=share * ms,
                    called_ms=share * traced,
                    count=1.0,
                    site=site,
                    label=phase,
                )
            )
    return tuple(sorted(spans, key=lambda s: -s.exposed_ms))


def _places(trace: Trace, program: Program, work: Work) -> dict[tuple[bool, str], float]:
    """Return where in the step Python of its own stands, with the share of each place; no place for all else.

    A place is whether it stands inside a phase, and which: else the one that began last.
    """
    if work not in (Work.HOST, Work.OPERATORS):
        return {_NO_PLACE: 1.0}
    cells = np.flatnonzero(program.host_work.work == work)
    start, end = program.host_work.edges[cells], program.host_work.edges[cells + 1]
    notes = trace.rows(Kind.ANNOTATION, named=frozenset(PHASES))
    notes = notes[np.argsort(trace.ts_ns[notes], kind="stable")]
    begins = trace.ts_ns[notes]
    around = intervals.innermost(begins, trace.end_of(notes), start)
    nearest = np.where(around >= 0, around, intervals.latest(begins, start))
    shares: Counter[tuple[bool, str]] = Counter()
    for inside, note, spent in zip(
        (around >= 0).tolist(), nearest.tolist(), (end - start).tolist(), strict=True
    ):
        shares[inside, trace.name_of(notes[note]) if note >= 0 else ""] += spent
    total = sum(shares.values())
    return {place: spent / total for place, spent in shares.items()} if total else {_NO_PLACE: 1.0}


def _site_of(
    work: Work,
    run: Run | None,
    phase: str,
    place: tuple[bool, str],
    recorded: Callable[[], SourceSite | None],
) -> SourceSite | None:
    """Return the line of host time: recorded with stacks, or else sampled in the warm-up."""
    if work is Work.ASIDE:
        return main_site(run, "sampled after")
    if work in (Work.HOST, Work.OPERATORS):
        there = SAMPLED_IN.get(place)
        return recorded() or (main_site(run, there) if there else None) or main_site(run, *SAMPLED[:3])
    return noted_site(run, phase)


def _paused_at(program: Program, frames: UserFrames, main_tid: int) -> SourceSite | None:
    """Return the user's line that held most of the Python time without operators."""
    spent: Counter[SourceSite] = Counter()
    edges, work = program.host_work.edges, program.host_work.work
    for k in np.flatnonzero(np.isin(work, (Work.HOST, Work.OPERATORS))).tolist():
        line = frames.at(int(edges[k] + edges[k + 1]) // 2, main_tid)
        if line is not None:
            spent[line] += int(edges[k + 1] - edges[k])
    return spent.most_common(1)[0][0] if spent else None


def _describe(work: Work) -> str:
    return {
        Work.INPUT: "fetching or making the next batch",
        Work.HOST: "Python without operators or device calls",
        Work.OPERATORS: "operators that compute on the host",
        Work.BATCH_OPERATORS: "operators that make the next batch on the host",
        Work.ASIDE: "operators after the update",
        Work.COMPILE: "compiling",
        Work.SEAM: "between compiled regions",
        Work.OPTIMIZER: "dispatching the optimizer",
        Work.DISPATCH: "dispatching operators",
    }.get(work, work.name.lower())
