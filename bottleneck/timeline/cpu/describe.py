"""Names, counts and places for the numbers of a CPU reading.

In: segments, division, the budget. Out: operator rows, host spans and context keys for reports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.diagnosis import KernelRow
from ...model.run import JsonValue, Run, SourceSite
from ..lanes.labels import PART_OF_WORK, Work
from ..lanes.program import Program
from ..lanes.questions import EAGER
from ..lanes.reader import Priced
from ..result import HostSpan, SpanKind
from ..steps.facts import Facts
from ..steps.loop_lines import before_update, main_site
from ..trace.operators import OpClass, base_name
from ..trace.stacks import UserFrames
from ..trace.table import NONE, Trace
from .division import TENSOR_WORK, Division
from .segments import Segments

__all__ = ["describe_context", "describe_kernels", "describe_spans"]

_MOST_ROWS = 30
_ATTENTION = ("_softmax", "_softmax_backward_data", "bmm", "baddbmm", "masked_fill", "masked_fill_")
_NORMS = (
    "native_layer_norm",
    "native_batch_norm",
    "native_group_norm",
    "_log_softmax",
    "rms_norm",
    "nll_loss",
)


def _work_by_name(
    trace: Trace, segments: Segments, division: Division
) -> list[tuple[str, Work, float, float]]:
    """Rows (name, category, count per step, work ms per step)."""
    if division.work is None or division.work_ns is None:
        return []
    steps = max(1, segments.steps)
    chosen = np.isin(division.work, TENSOR_WORK) & (segments.row != NONE)
    if not chosen.any():
        return []
    names = trace.name[segments.row[chosen]].astype(np.int64)
    key = names * len(Work) + division.work[chosen]
    unique, inverse = np.unique(key, return_inverse=True)
    work = np.bincount(inverse, weights=division.work_ns[chosen]) / steps / 1e6
    count = np.bincount(inverse, weights=segments.first_of_row[chosen]) / steps
    return [
        (
            trace.names[int(k) // len(Work)],
            Work(int(k) % len(Work)),
            float(count[i]),
            float(work[i]),
        )
        for i, k in enumerate(unique.tolist())
    ]


def describe_kernels(
    trace: Trace | None, segments: Segments | None, division: Division, *, true_ms: float
) -> tuple[KernelRow, ...]:
    """Operators by the work in them (fixed cost excluded), largest first."""
    if trace is None or segments is None:
        return ()
    rows = [
        KernelRow(
            name=name,
            part=PART_OF_WORK[category],
            count=count,
            ms=ms,
            share=ms / true_ms if true_ms > 0 else 0.0,
        )
        for name, category, count, ms in _work_by_name(trace, segments, division)
        if ms > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.ms)[:_MOST_ROWS])


def _site(run: Run | None, phase: str) -> SourceSite | None:
    if run is None:
        return None
    known = [item for item in run.sites if item.phase == phase]
    return max(known, key=lambda item: item.count).site if known else None


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
        return _KIND_OF_PLACE.get((self.inside, self.phase), SpanKind.ASIDE)

    @property
    def sampled_in(self) -> str:
        """The part of the loop whose samples name its line."""
        return "" if self.evaluates else _SAMPLED_IN.get((self.inside, self.phase), "")


_KIND_OF_PLACE = {
    (True, "forward"): SpanKind.BEFORE_MODEL,
    (False, "evaluation"): SpanKind.BEFORE_MODEL,
    (False, "forward"): SpanKind.IN_LOSS,
    (True, "backward"): SpanKind.IN_LOSS,
}
_SAMPLED_IN = {
    (True, "forward"): "sampled forward",
    (False, "forward"): "sampled between",
    # A model that acts or labels stands in front of the forward that is trained.
    (False, "evaluation"): "sampled before",
    **{(inside, "backward"): "sampled between" for inside in (True, False)},
    **{(inside, phase): "sampled after" for inside in (True, False) for phase in ("optimizer", "zero_grad")},
}
"""(inside, phase) -> the part of the loop that it stands in."""


def _host_chunks(trace: Trace, segments: Segments, division: Division, *, evaluates: bool) -> list[_Chunk]:
    """Long Python by where it stands, the longest first."""
    if division.work is None:
        return []
    host = division.work == Work.HOST
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


def describe_spans(
    trace: Trace | None,
    segments: Segments | None,
    division: Division,
    priced: Priced,
    *,
    seams_per_step: float,
    facts: Facts,
) -> tuple[HostSpan, ...]:
    """Host time by cause, with the user's line where the harness saw one."""
    run, baseline = facts.run, facts.baseline
    collector_ms = float(priced.by_work[Work.COLLECTOR])
    spans: list[HostSpan] = []

    def add(
        part: Part,
        what: str,
        ms: float,
        *,
        count: float,
        phase: str,
        kind: SpanKind = SpanKind.CALL,
        called: float | None = None,
        site: SourceSite | None = None,
    ) -> None:
        if ms > 0 or count > 0:
            spans.append(
                HostSpan(
                    part=part,
                    kind=kind,
                    what=what,
                    exposed_ms=ms,
                    called_ms=ms if called is None else called,
                    count=count,
                    site=site or _site(run, "fetch" if phase == "data" else phase),
                    label=phase,
                )
            )

    fetched = division.sum_ms(Work.INPUT, phase="data")
    add(Part.INPUT, "data loader", fetched, count=1.0 if fetched > 0 else 0.0, phase="data")
    prepared = division.sum_ms(Work.INPUT) - fetched
    add(
        Part.INPUT,
        "preparing the batch",
        prepared,
        count=1.0 if prepared > 0 else 0.0,
        phase="forward",
        kind=SpanKind.PREPARATION,
        site=main_site(run, "sampled before"),
    )
    add(
        Part.ALLOCATOR,
        "page faults",
        priced.parts[Part.ALLOCATOR],
        count=(baseline.faults or 0.0) if baseline else 0.0,
        phase="",
    )
    add(
        Part.HOST,
        "garbage collector",
        collector_ms,
        count=0.0,
        phase="",
        kind=SpanKind.COLLECTOR,
    )
    add(
        Part.GRAPH_BREAK,
        "graph-break seams",
        priced.parts[Part.GRAPH_BREAK],
        count=seams_per_step,
        phase="forward",
    )
    if trace is not None and segments is not None and division.work is not None:
        steps = max(1, segments.steps)
        host_left = priced.parts[Part.HOST] - collector_ms
        # What the timed steps have outside the phases and the traced ones lack is in no stretch of the trace.
        lacked = min(host_left, division.lacked_ms)
        host_left -= lacked
        in_loss = run is not None and before_update(run.sites)
        add(
            Part.HOST,
            "Python after forward" if in_loss else "Python outside the phases",
            lacked,
            count=0.0,
            phase="",
            kind=SpanKind.IN_LOSS if in_loss else SpanKind.ASIDE,
            site=main_site(run, "sampled between" if in_loss else "sampled after"),
        )
        chunks = _host_chunks(trace, segments, division, evaluates=facts.evaluates)
        seen = sum(chunk.ms for chunk in chunks)
        for chunk in chunks:
            add(
                Part.HOST,
                chunk.what,
                host_left * chunk.ms / seen,
                count=chunk.count,
                phase=chunk.phase if chunk.inside and not chunk.evaluates else "",
                kind=chunk.kind,
                called=chunk.ms,
                # Without recorded stacks the line of the phase that it follows is the nearest known.
                site=chunk.line or main_site(run, chunk.sampled_in) or _site(run, chunk.phase),
            )
        if not chunks:
            add(
                Part.HOST,
                "Python outside the phases",
                host_left,
                count=0.0,
                phase="",
                kind=SpanKind.ASIDE,
            )
        reads = segments.first_of_row & (segments.op_class == OpClass.SYNC)
        read_ms = float(segments.dur_ns[segments.op_class == OpClass.SYNC].sum()) / steps / 1e6
        add(
            Part.SYNC,
            "aten::_local_scalar_dense",
            0.0,
            count=float(reads.sum()) / steps,
            phase="",
            called=read_ms,
        )
        ops = segments.first_of_row & np.isin(division.work, (*TENSOR_WORK, *EAGER))
        ops &= ~np.isin(segments.op_class, (OpClass.PYTHON, OpClass.PY_BACKWARD))
        add(
            Part.DISPATCH,
            "operators",
            priced.parts[Part.DISPATCH],
            count=float(ops.sum()) / steps,
            phase="",
        )
    else:
        add(
            Part.HOST,
            "Python outside the phases",
            priced.parts[Part.HOST] - collector_ms,
            count=0.0,
            phase="",
            kind=SpanKind.ASIDE,
        )
    return tuple(sorted(spans, key=lambda span: -span.exposed_ms))


def describe_context(
    trace: Trace | None,
    segments: Segments | None,
    division: Division,
    priced: Priced,
    program: Program,
    *,
    true_ms: float,
) -> dict[str, JsonValue]:
    """Keys of model/context.py that only the timeline can fill; absent when not measured."""
    if true_ms <= 0:
        return {}
    out: dict[str, JsonValue] = {
        "input.wait_share": priced.parts[Part.INPUT] / true_ms,
        "host.named_share": priced.parts[Part.HOST] / true_ms,
    }
    if trace is None or segments is None or division.work is None:
        return out
    steps = max(1, segments.steps)
    code = {name: i for i, name in enumerate(segments.phases)}
    operators = segments.first_of_row & np.isin(
        segments.op_class, (OpClass.MATH, OpClass.MEMORY, OpClass.GRAPH)
    )
    in_input = division.work == Work.INPUT
    in_optimizer = segments.phase == code["optimizer"]
    reads = segments.first_of_row & (segments.op_class == OpClass.SYNC) & ~in_optimizer
    rows = _work_by_name(trace, segments, division)

    in_zero_grad = np.asarray([phase == "zero_grad" for phase in program.phases])
    zero_grad_ms = float(program.work[in_zero_grad].sum()) / 1e6 * priced.scale

    def share(*names: str) -> float:
        return sum(ms for name, _, _, ms in rows if base_name(name) in names) / true_ms

    conv = sum(ms for name, _, _, ms in rows if "conv" in name) / true_ms
    norm = sum(ms for name, _, _, ms in rows if base_name(name).startswith(_NORMS)) / true_ms
    fused = any("scaled_dot_product" in n and "math" not in n for n, *_ in rows)
    out |= {
        "launches.per_step": float((operators & ~in_input).sum()) / steps,
        "optimizer.launches": float((operators & in_optimizer).sum()) / steps,
        "optimizer.share": (priced.parts[Part.OPTIMIZER] + float(priced.by_work[Work.OPTIMIZER])) / true_ms,
        "sync.per_step": float(reads.sum()) / steps,
        "sync.item_per_step": float(reads.sum()) / steps,
        "kernels.memory_bound_share": priced.parts[Part.MEMORY_BOUND] / true_ms,
        "kernels.conv_share": conv,
        "kernels.norm_share": norm,
        "kernels.zero_grad_share": zero_grad_ms / true_ms,
        "kernels.attention_unfused_share": (
            share(*_ATTENTION) if share("_softmax") > 0 and share("bmm", "baddbmm") > 0 and not fused else 0.0
        ),
        "work.static_shapes": _same_work(segments, operators),
    }
    return out


def _same_work(segments: Segments, operators: NDArray[np.bool_]) -> bool:
    counts = np.bincount(segments.step[operators], minlength=max(1, segments.steps))
    return bool(len(counts) > 0 and counts.min() == counts.max())
