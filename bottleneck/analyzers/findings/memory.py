"""Memory that is held for no use, or too long: gradients in forward, leaks, spikes.

In: facts. Out: findings BN204, BN205 and BN206. None of them has a price in time: memory costs
nothing until it runs out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model.finding import Evidence, Finding
from ...model.memory import MemoryHolder, MemorySummary
from ...model.words import byte_size, percent
from ..base import Analyzer, Facts

TIGHT = 0.7
"""Peak over capacity from which memory is the limit of larger batches."""
_HISTORY = "memory history"
_UNUSED = 0.15
"""Share of free pieces in the memory needed from which fragmentation is the problem."""


def unused_bytes(summary: MemorySummary) -> int:
    """Return the bytes reserved but not usable: when an allocation failed, otherwise at the peak."""
    failure, pieces = summary.out_of_memory, summary.fragmentation
    if failure is not None and failure.unused_bytes is not None:
        return failure.unused_bytes
    return (pieces.unused_at_peak_bytes or 0) if pieces is not None else 0


def is_fragmented(summary: MemorySummary) -> bool:
    """Return whether a good part of what was needed could not be used."""
    failure, unused = summary.out_of_memory, unused_bytes(summary)
    live = summary.peak_bytes
    if failure is not None and failure.live_bytes is not None:
        live = failure.live_bytes
    return unused > 0 and unused >= _UNUSED * (live + unused)


def is_tight(summary: MemorySummary) -> bool:
    """Return whether memory is short on this device, or has run out."""
    if summary.out_of_memory is not None:
        return True
    if not summary.capacity_bytes:
        return False
    most = max(summary.peak_bytes, summary.reserved_peak_bytes or 0)
    return most >= TIGHT * summary.capacity_bytes


def holder_evidence(holders: Sequence[MemoryHolder], *, source: str, most: int = 4) -> list[Evidence]:
    """Name what holds the memory, the largest first."""
    return [
        Evidence(
            text=f"{byte_size(holder.bytes)} ({percent(holder.share)}) of {holder.category.value} in "
            f"{holder.blocks} block{'s' if holder.blocks != 1 else ''}"
            + (f", allocated in {holder.where}" if holder.site is None and holder.where else ""),
            value=float(holder.bytes),
            unit="bytes",
            source=source,
            site=holder.site,
        )
        for holder in holders[:most]
    ]


class GradientsInForward(Analyzer):
    """The last step's gradients are still in memory while the next forward runs.

    What it means
        Gradients are needed from backward to the optimizer's step. If zero_grad runs after the
        forward, or fills with zeros instead of releasing, they are still there together with the
        activations of the next step. That is when memory is fullest.

    How it is measured
        Blocks that the harness saw as .grad of a parameter, and that are alive during the whole
        first forward of a step; the median over the steps of the memory history. Without the
        harness: blocks allocated in backward that outlive it.

    What it costs you
        Their bytes at the peak. No time, unless memory is short.

    What it is not
        Not gradient accumulation: gradients of earlier micro-steps of the same step are needed. Not
        the gradients at the end of backward, which every training has.

    What to do
        Call optimizer.zero_grad(set_to_none=True) right after optimizer.step(), or before the
        forward.

    Source
        PyTorch documentation, Optimizer.zero_grad: set_to_none "will in general have lower memory
        footprint".
    """

    code = "BN204"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report gradients that are in memory together with the activations."""
        for summary in facts.memory:
            held = summary.gradients_in_forward_bytes
            if not held or held < 0.05 * summary.peak_bytes:
                continue
            evidence = [
                Evidence(
                    text=f"{byte_size(held)} of gradients stay alive during the whole forward, "
                    f"{percent(held / summary.peak_bytes)} of the peak of {byte_size(summary.peak_bytes)}",
                    value=float(held),
                    unit="bytes",
                    source=_HISTORY,
                )
            ]
            if summary.stale_gradients_bytes is not None:
                evidence.append(
                    Evidence(
                        text=f"the peak falls by {byte_size(summary.stale_gradients_bytes)} without them",
                        value=float(summary.stale_gradients_bytes),
                        unit="bytes",
                        source=_HISTORY,
                    )
                )
            if facts.is_on("zero_grad.set_to_none") is False:
                evidence.append(
                    Evidence(text="zero_grad() fills gradients with zeros", source="settings in force")
                )
            yield self.finding(
                facts,
                f"Gradients of the last step, {byte_size(held)}, are in memory during the forward",
                evidence=evidence,
                sites=facts.sites("zero_grad"),
                not_this="Not a loss of time: bytes at the peak that are not needed.",
                note=not is_tight(summary),
            )


class MemoryLeak(Analyzer):
    """Every step leaves tensors behind that are not freed.

    What it means
        Something keeps a reference to a tensor of every step: a list of losses or outputs, a metric
        that is summed without .item() or .detach(), a hook, a cache. A tensor that still has its
        autograd graph keeps all tensors of the graph alive too.

    How it is measured
        Allocations of each step in the memory history that are still alive at its end, two steps
        later or more. They must come from the same line in every step, and not be parameters,
        gradients or optimizer state. A buffer of the last few steps frees its oldest entry, so it
        is not reported.

    What it costs you
        Nothing until memory is full; then the run fails. The finding gives the bytes per step and
        how many steps are left.

    What it is not
        Not the allocator's cache: reserved memory may grow while nothing leaks. Not optimizer
        state, which is allocated once, in the first step.

    What to do
        Keep numbers instead of tensors: .item() every N steps, or .detach() and a running sum.

    Source
        PyTorch documentation, FAQ: "My model reports cuda runtime error(2): out of memory".
    """

    code = "BN205"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report what each step leaves behind."""
        for summary in facts.memory:
            if not summary.leaks:
                continue
            rate = sum(leak.bytes_per_step for leak in summary.leaks)
            left = None
            if summary.capacity_bytes:
                left = max(0, summary.capacity_bytes - summary.peak_bytes) // rate
            end = f": memory is full in {left} steps" if left is not None else ""
            evidence = [
                Evidence(
                    text=f"{byte_size(leak.bytes_per_step)} per step in {leak.blocks_per_step:.3g} blocks, "
                    f"in each of {leak.steps_seen} recorded steps"
                    + (f", allocated in {leak.where}" if leak.site is None and leak.where else ""),
                    value=float(leak.bytes_per_step),
                    unit="bytes/step",
                    source=_HISTORY,
                    site=leak.site,
                )
                for leak in summary.leaks[:4]
            ]
            if summary.peak_without_leaks_bytes is not None:
                evidence.append(
                    Evidence(
                        text=f"without these blocks the peak is "
                        f"{byte_size(summary.peak_without_leaks_bytes)}",
                        value=float(summary.peak_without_leaks_bytes),
                        unit="bytes",
                        source=_HISTORY,
                    )
                )
            yield self.finding(
                facts,
                f"Each step leaves {byte_size(rate)} of device memory behind{end}",
                evidence=evidence,
                sites=[leak.site for leak in summary.leaks],
                not_this="Not the allocator's cache, and not a buffer of the last few steps.",
            )


class MemorySpike(Analyzer):
    """Memory peaks for a short time; most of the step needs far less.

    What it means
        One operation allocates a large tensor for a short time: an all-pairs matrix, a metric over
        the whole batch, a concatenation, a one-hot encoding. This alone limits the batch size.

    How it is measured
        Live bytes over time, in the step with the highest peak: the level that memory stays below
        for 95 % of the step, how far the peak is above it, and what was allocated above that level.

    What it costs you
        Bytes at the peak. No time, unless memory is short.

    What it is not
        Not the rise and fall of activations: they grow in forward and shrink in backward, and most
        training steps spend a good part of their time near the top.

    What to do
        Compute it in pieces, in place, in a smaller type, or without gradients.

    Source
        PyTorch blog, "Understanding GPU Memory 1: Visualizing All Allocations over Time".
    """

    code = "BN206"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report a narrow and high peak."""
        for summary in facts.memory:
            spike = summary.spike
            if spike is None or spike.above_bytes < 0.25 * summary.peak_bytes:
                continue
            yield self.finding(
                facts,
                f"{byte_size(spike.above_bytes)} of the peak of {byte_size(summary.peak_bytes)} "
                f"is needed for {percent(spike.width_share)} of the step",
                evidence=[
                    *holder_evidence(spike.holders, source=_HISTORY),
                    Evidence(
                        text=f"without these the peak is {byte_size(spike.peak_without_bytes or 0)}",
                        value=float(spike.peak_without_bytes or 0),
                        unit="bytes",
                        source=_HISTORY,
                    ),
                ],
                sites=[holder.site for holder in spike.holders],
                not_this="Most of the step needs far less memory than this.",
                note=not is_tight(summary),
            )
