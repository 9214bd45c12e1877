"""Host time of a run without a GPU by cause and place, with the user's line where the harness saw one.

In: segments, their division, the priced step. Out: `HostSpan`s, largest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.run import SourceSite
from ..lanes.labels import Work
from ..lanes.questions import EAGER
from ..lanes.reader import Priced
from ..result import KIND_OF_PLACE, HostSpan, SpanKind
from ..steps.facts import Facts
from ..steps.loop_lines import SAMPLED_IN, main_site, noted_site
from ..trace.operators import OpClass
from ..trace.stacks import UserFrames
from ..trace.table import Trace
from .division import TENSOR_WORK, Division
from .segments import Segments


def cpu_spans(
    trace: Trace | None,
    segments: Segments | None,
    division: Division,
    priced: Priced,
    *,
    seams_per_step: float,
    facts: Facts,
) -> tuple[HostSpan, ...]:
    """Return host time by cause."""
    host_ms = priced.parts[Part.HOST] - float(priced.by_work[Work.COLLECTOR])
    spans = [*_causes(division, priced, facts, seams_per_step=seams_per_step)]
    if trace is None or segments is None or division.work is None:
        spans.append(_unseen(host_ms))
    else:
        spans += _pauses(trace, segments, division.work, facts, host_ms=host_ms, lacked_ms=division.lacked_ms)
        spans += _operators(segments, division.work, priced)
    shown = [span for span in spans if span.exposed_ms > 0 or span.count > 0]
    return tuple(sorted(shown, key=lambda span: -span.exposed_ms))


def _causes(division: Division, priced: Priced, facts: Facts, *, seams_per_step: float) -> Iterator[HostSpan]:
    """What is one cause wherever it stands."""
    run, baseline = facts.run, facts.baseline
    fetched = division.sum_ms(Work.INPUT, phase="data")
    prepared = division.sum_ms(Work.INPUT) - fetched
    faults, seams = priced.parts[Part.ALLOCATOR], priced.parts[Part.GRAPH_BREAK]
    collector = float(priced.by_work[Work.COLLECTOR])
    yield _span(
        Part.INPUT,
        "data loader",
        fetched,
        count=1.0 if fetched > 0 else 0.0,
        site=noted_site(run, "fetch"),
        label="data",
    )
    yield _span(
        Part.INPUT,
        "preparing the batch",
        prepared,
        kind=SpanKind.PREPARATION,
        count=1.0 if prepared > 0 else 0.0,
        site=main_site(run, "sampled before") or noted_site(run, "forward"),
        label="forward",
    )
    count = baseline.faults or 0.0 if baseline is not None else 0.0
    yield _span(Part.ALLOCATOR, "page faults", faults, count=count)
    yield _span(Part.HOST, "garbage collector", collector, kind=SpanKind.COLLECTOR)
    site = noted_site(run, "forward")
    yield _span(
        Part.GRAPH_BREAK, "graph-break seams", seams, count=seams_per_step, site=site, label="forward"
    )


def _operators(segments: Segments, work: NDArray[np.int8], priced: Priced) -> Iterator[HostSpan]:
    """Reads of a scalar, which wait for nothing here, and operators one by one."""
    steps = max(1, segments.steps)
    reads = segments.op_class == OpClass.SYNC
    yield HostSpan(
        part=Part.SYNC,
        what="aten::_local_scalar_dense",
        exposed_ms=0.0,
        called_ms=float(segments.dur_ns[reads].sum()) / steps / 1e6,
        count=float((segments.first_of_row & reads).sum()) / steps,
    )
    ops = segments.first_of_row & np.isin(work, (*TENSOR_WORK, *EAGER))
    ops &= ~np.isin(segments.op_class, (OpClass.PYTHON, OpClass.PY_BACKWARD))
    yield _span(Part.DISPATCH, "operators", priced.parts[Part.DISPATCH], count=float(ops.sum()) / steps)


def _span(
    part: Part,
    what: str,
    ms: float,
    *,
    kind: SpanKind = SpanKind.CALL,
    count: float = 0.0,
    site: SourceSite | None = None,
    label: str = "",
) -> HostSpan:
    """Host time that nothing overlaps with."""
    return HostSpan(
        part=part, kind=kind, what=what, exposed_ms=ms, called_ms=ms, count=count, site=site, label=label
    )


def _unseen(ms: float, site: SourceSite | None = None) -> HostSpan:
    """Python that no stretch of the trace shows."""
    return _span(Part.HOST, "Python outside the phases", ms, kind=SpanKind.ASIDE, site=site)


def _pauses(
    trace: Trace,
    segments: Segments,
    work: NDArray[np.int8],
    facts: Facts,
    *,
    host_ms: float,
    lacked_ms: float,
) -> Iterator[HostSpan]:
    """Long Python by where it stands."""
    run = facts.run
    # What the timed steps have outside the phases and the traced ones lack is in no stretch of the trace.
    lacked = min(host_ms, lacked_ms)
    yield _unseen(lacked, main_site(run, "sampled between", "sampled after"))
    chunks = _host_chunks(trace, segments, work, evaluates=facts.evaluates)
    if not chunks:
        yield _unseen(host_ms - lacked)
    seen = sum(chunk.ms for chunk in chunks)
    for chunk in chunks:
        yield HostSpan(
            part=Part.HOST,
            kind=chunk.kind,
            what=chunk.what,
            exposed_ms=(host_ms - lacked) * chunk.ms / seen,
            called_ms=chunk.ms,
            count=chunk.count,
            # Without recorded stacks the line of the phase that it follows is the nearest known.
            site=chunk.line or main_site(run, chunk.sampled_in) or noted_site(run, chunk.phase),
            label=chunk.phase if chunk.inside and not chunk.evaluates else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Long Python of one place in the step."""

    phase: str
    """That it stands in, or behind; empty before the first."""
    inside: bool
    evaluates: bool
    """In an evaluation that is one of its own, not part of the step's forward."""
    count: float
    ms: float
    """Profiled, per step."""
    line: SourceSite | None

    @property
    def what(self) -> str:
        """Where it stands, for people."""
        if self.evaluates:
            return "evaluation"
        if self.inside:
            return f"Python in {self.phase}"
        return f"Python after {self.phase or 'the step began'}"

    @property
    def kind(self) -> SpanKind:
        """Which side of the model's update it is on."""
        if self.evaluates:
            return SpanKind.ASIDE
        return KIND_OF_PLACE.get((self.inside, self.phase), SpanKind.ASIDE)

    @property
    def sampled_in(self) -> str:
        """The part of the loop whose samples name its line."""
        return "" if self.evaluates else SAMPLED_IN.get((self.inside, self.phase), "")


def _host_chunks(
    trace: Trace, segments: Segments, work: NDArray[np.int8], *, evaluates: bool
) -> list[_Chunk]:
    """Long Python by where it stands, the longest first."""
    host = work == Work.HOST
    if not host.any():
        return []
    steps = max(1, segments.steps)
    before = _previous_phase(segments)
    where = np.where(segments.phase > 0, segments.phase.astype(np.int64), -before - 1)
    frames = UserFrames(trace)
    out = []
    for value in np.unique(where[host]).tolist():
        mask = host & (where == value)
        phase = segments.phases[value] if value > 0 else segments.phases[-value - 1]
        ms = float(segments.dur_ns[mask].sum()) / steps / 1e6
        longest = int(np.argmax(np.where(mask, segments.dur_ns, 0)))
        middle = int(segments.start_ns[longest] + segments.dur_ns[longest] // 2)
        out.append(
            _Chunk(
                phase=phase,
                inside=value > 0,
                evaluates=phase == "evaluation" and not evaluates,
                count=float(mask.sum()) / steps,
                ms=ms,
                line=frames.at(middle, segments.tid),
            )
        )
    return sorted(out, key=lambda chunk: -chunk.ms)


def _previous_phase(segments: Segments) -> NDArray[np.int64]:
    """The last labelled phase before each segment, carried over step edges; 0 before the first."""
    index = np.where(segments.phase > 0, np.arange(len(segments.phase)), -1)
    last = np.maximum.accumulate(index) if len(index) else index
    previous = np.where(last >= 0, segments.phase[np.maximum(last, 0)], 0)
    return np.asarray(previous, dtype=np.int64)
