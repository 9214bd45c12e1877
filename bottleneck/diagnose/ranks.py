"""Several ranks of one run: the summary of each, and which of them decides the step.

In: readings, then summaries. Out: `RankSummary`; a position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..fleet.collectives import (
    collectives_of,
    message_groups,
    messages_ms,
    stated_groups,
)
from ..fleet.compare import Skew
from ..fleet.gradients import PackedGradients, gradients_of, pack_gradients
from ..fleet.summary import AloneWithout, KernelSketch, RankSummary
from ..fleet.window import bounded
from ..model.codes import Part
from ..model.finding import NEGLIGIBLE_SHARE
from ..model.run import SourceSite
from ..model.words import shorten
from ..timeline.counts.counters import count_steps
from ..timeline.lanes.alone import Alone, interrupted, slowed_by_collectives
from ..timeline.steps.clock import step_times
from ..timeline.steps.recorded import recorded_ms
from ..timeline.steps.traced import Steps
from ..timeline.trace.gradients import bucket_call_ms
from .reading import Reading

_AHEAD = 0.05
"""Share of the step by which a host must be faster than its device to be called ahead of it."""
_AS_LONG = 0.005
"""Step times of ranks within this share are the same: they make their steps together."""
_KERNELS = 40
_NAMED = 4
_NAME_WIDTH = 160
_TIMED = 256
"""Lengths of unprofiled steps that are kept, the last ones."""


def summary_of(reading: Reading) -> RankSummary:
    """Reduce a reading to what the comparison of ranks needs."""
    rank, timeline, run = reading.rank, reading.timeline, reading.basis.run
    trace, (steps, alone) = rank.trace, _steps(reading)
    idle = timeline.context.get("step.idle_share")
    numbered = steps is not None and steps.how == "ProfilerStep"
    counters = count_steps(
        trace, reading.steps, run=run, compile_facts=rank.compile, missing=timeline.missing_activities or 0
    )
    own = [row for row in timeline.kernels if row.part is not Part.COMMUNICATION]
    turns = interrupted(trace) if trace is not None else {}
    recorded = recorded_ms(trace, steps) if trace is not None and steps is not None else np.zeros(0)
    properties = trace.meta.device_properties if trace is not None else ()
    buckets = run.gradient_buckets if run is not None else []
    found = None
    if trace is not None and steps is not None and len(steps):
        found = collectives_of(trace, steps, alone, timeline.waits, buckets)
    summary = RankSummary(
        rank=rank.rank,
        world_size=rank.world_size,
        node=rank.rank - run.local_rank if run is not None and run.launched else None,
        place=run.place if run is not None else 0,
        path=rank.name,
        kind=timeline.kind,
        torch=run.host.torch if run is not None else (trace.meta.torch_version or "") if trace else "",
        device=shorten(str(properties[0].get("name", "")), _NAME_WIDTH) if properties else "",
        link_gbytes_per_s=run.devices[0].nvlink_gbytes_per_s if run is not None and run.devices else None,
        steps=len(steps) if steps is not None else 0,
        true_ms=timeline.true_ms,
        window_ms=timeline.window_ms or 0.0,
        has_step=reading.basis.summary.true_ms is not None,
        timed_ms=reading.basis.timed_ms[-_TIMED:],
        forwards_ms=reading.basis.forwards_ms[:_TIMED] if _works_in_forward(reading) else (),
        recorded_ms=tuple(recorded.tolist()),
        alone_ms=timeline.alone_ms if timeline.usable_what_ifs else (),
        alone_host_ms=timeline.alone_host_ms if timeline.usable_what_ifs else (),
        alone_edges_ms=_edges(alone) if timeline.usable_what_ifs else (),
        alone_without=tuple(
            AloneWithout(question, saved, bound)
            for question, (saved, bound) in timeline.alone_without.items()
        )
        if timeline.usable_what_ifs
        else (),
        step_numbers=tuple(steps.numbers.tolist()) if numbered and steps is not None else (),
        base_ns=trace.meta.base_ns if trace is not None else 0,
        budget={line.part.value: line.ms for line in timeline.budget},
        own_work_ms=dict(timeline.own_work_ms),
        counters={name: counter.value for name, counter in counters.values.items()},
        kernels=tuple(
            KernelSketch(shorten(row.name, _NAME_WIDTH), row.count, row.ms, row.ms * turns.get(row.name, 0.0))
            for row in sorted(own, key=lambda row: -row.ms)[:_KERNELS]
        ),
        own_kernels_ms=sum(row.ms for row in own),
        slowed_by_collectives=slowed_by_collectives(trace)
        if trace is not None and timeline.kind == "gpu"
        else 0.0,
        runs_ahead=_runs_ahead(reading),
        idle_share=float(idle) if isinstance(idle, (int, float)) else None,
        peak_bytes=max((m.peak_bytes for m in reading.memory), default=0),
        whole=trace is None or not trace.meta.truncated,
        sites=_sites(reading),
        gradients=pack_gradients(gradients_of(alone, found, buckets))
        if found is not None
        else PackedGradients(),
        bucket_call_ms=bucket_call_ms(trace) * timeline.true_ms / float(recorded.mean())
        if trace is not None and len(recorded)
        else 0.0,
        groups=stated_groups(trace.meta) if trace is not None and timeline.kind == "cpu" else (),
        messages_ms=messages_ms(trace, steps, timeline.waits)
        if trace is not None and steps is not None
        else (),
        message_groups=message_groups(trace, timeline.waits) if trace is not None else (),
    )
    return bounded(summary, found)


def _works_in_forward(reading: Reading) -> bool:
    """Return whether the host works in the forward, and does not wait for other ranks in it."""
    settings = reading.basis.run.settings if reading.basis.run is not None else {}
    waits = settings.get("distributed.sends_buffers") is True or settings.get("distributed.module") == "fsdp"
    return reading.timeline.kind == "cpu" and not waits


def _steps(reading: Reading) -> tuple[Steps | None, Alone | None]:
    """Return the steps by which ranks are compared, and where their collectives stand in own work.

    Without a device they run from exchange to exchange, if all steps do.
    """
    steps, alone = reading.steps, reading.timeline.alone
    if steps is None or alone is None or alone.moments is None:
        return steps, alone
    if len(alone.moments) != len(steps):
        return steps, None
    start, end = alone.moments[:-1], alone.moments[1:]
    return replace(steps, start_ns=start, end_ns=end, numbers=steps.numbers[1:]), alone


def _edges(alone: Alone | None) -> tuple[tuple[float, float], ...]:
    if alone is None:
        return ()
    return tuple((float(time), float(done)) for time, done in alone.edges / 1e6)


def _sites(reading: Reading) -> dict[str, SourceSite]:
    """Return where most of each part of the budget stands in the source."""
    found: dict[str, SourceSite] = {}
    for span in reading.timeline.spans:
        if span.site is not None:
            found.setdefault(span.part.value, span.site)
    return found


def _runs_ahead(reading: Reading) -> bool:
    """Return whether the host was faster than the device in the unprofiled steps."""
    window = reading.basis.run.window("baseline") if reading.basis.run is not None else None
    if window is None or reading.basis.kept is None:
        return False
    times, clock = step_times(window.steps)
    pairs = [
        (host, device)
        for host, device, kept in zip(window.steps.wall_ms, times, reading.basis.kept, strict=False)
        if kept and device is not None
    ]
    if clock != "device" or not pairs:
        return False
    # Medians: once in a while a host that is ahead waits for room.
    host, device = (float(np.median(column)) for column in zip(*pairs, strict=True))
    return host < (1.0 - _AHEAD) * device


def critical(summaries: Sequence[RankSummary], skew: Skew | None) -> int:
    """Return which rank the others wait for in their collectives; without any, the slowest one."""
    # One that was only timed cannot say why. Of snapshots without a step time, the fullest.
    slowest = max(summaries, key=lambda s: (s.traced, s.true_ms, s.peak_bytes))
    if skew is not None and skew.skew_ms >= NEGLIGIBLE_SHARE * slowest.true_ms:
        return skew.critical
    if slowest.own_kernels_ms <= 0:
        return summaries.index(slowest)
    # Of ranks that take as long, the one with the most work of its own.
    as_slow = [
        i
        for i, s in enumerate(summaries)
        if s.traced is slowest.traced and s.true_ms > (1.0 - _AS_LONG) * slowest.true_ms
    ]
    return max(as_slow, key=lambda i: summaries[i].own_kernels_ms)


def other_versions(summaries: Sequence[RankSummary]) -> tuple[str, ...]:
    """Tell of ranks that ran another version of torch than most, one sentence."""
    versions = Counter(summary.torch for summary in summaries if summary.torch)
    if len(versions) < 2:
        return ()
    (usual, _), *others = versions.most_common()
    told = [
        f"{version} (rank {', '.join([str(s.rank) for s in summaries if s.torch == version][:_NAMED])}"
        f"{' and more' if count > _NAMED else ''})"
        for version, count in others
    ]
    return (f"The ranks ran different versions of torch: {usual}, and {', '.join(told)}.",)
