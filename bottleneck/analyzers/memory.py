"""Memory that should not be held, or not so long: gradients in forward, leaks, spikes, running out.

In: facts. Out: findings BN204, BN205, BN206, BN213, BN214. None of them has a price in time: memory costs
nothing until it is missing, and then everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.finding import Evidence, Finding
from ..model.memory import MemoryCategory, MemoryHolder, MemorySummary
from .base import Analyzer, Facts, percent, size

__all__ = [
    "TIGHT",
    "GradientsInForward",
    "MemoryLeak",
    "MemorySpike",
    "OutOfMemoryFailure",
    "ResidentGrowth",
    "holder_evidence",
    "is_fragmented",
    "is_tight",
    "unused_bytes",
]

TIGHT = 0.7
"""Peak over capacity from which memory is what limits the next step up."""
_HISTORY = "memory history"
_UNUSED = 0.15
"""Share of the memory in use that lies free in pieces, from which it is a matter of fragments."""
_UNUSED_BYTES = 256e6

_FIRST = {
    MemoryCategory.ACTIVATIONS: "smaller micro-batches or checkpointing",
    MemoryCategory.INPUTS: "a smaller batch",
    MemoryCategory.TEMPORARY: "the line that holds most, in pieces",
    MemoryCategory.PARAMETERS: "sharding or fewer bits for the states",
    MemoryCategory.GRADIENTS: "sharding or fewer bits for the states",
    MemoryCategory.OPTIMIZER: "sharding or fewer bits for the states",
}
"""What to try first when memory ran out, by what held most of it."""


def unused_bytes(summary: MemorySummary) -> int:
    """Return what was reserved and could not be used: when an allocation failed, else at the peak."""
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
    return unused >= max(_UNUSED * (live + unused), _UNUSED_BYTES)


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
            text=f"{size(holder.bytes)} ({percent(holder.share)}) of {holder.category.value} in "
            f"{holder.blocks} block{'s' if holder.blocks != 1 else ''}"
            + (f", asked for in {holder.where}" if holder.site is None and holder.where else ""),
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
        Gradients are needed from backward to the optimizer's step. Where zero_grad comes after the
        forward, or fills with zeros instead of dropping, they lie beside the activations of the
        next step, at the very moment when memory is fullest.

    How it is measured
        Blocks that the harness saw as .grad of a parameter (without it: blocks asked for in backward
        that outlive it), alive from the beginning of a step's first forward to its end; the median
        over the steps of the memory history.

    What it costs you
        Their bytes at the peak. No time, unless memory is short.

    What it is not
        Not gradient accumulation: gradients of earlier micro-steps of the same step are needed. Not
        the gradients at the end of backward, which every training holds.

    What to do
        Call optimizer.zero_grad(set_to_none=True) right after optimizer.step(), or before the
        forward.

    Source
        PyTorch documentation, Optimizer.zero_grad: set_to_none "will in general have lower memory
        footprint".
    """

    code = "BN204"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report gradients that lie beside the activations."""
        found = []
        for summary in facts.memory:
            held = summary.gradients_in_forward_bytes
            if not held or held < 0.05 * summary.peak_bytes:
                continue
            evidence = [
                Evidence(
                    text=f"{size(held)} of gradients live through the whole forward, "
                    f"{percent(held / summary.peak_bytes)} of the peak of {size(summary.peak_bytes)}",
                    value=float(held),
                    unit="bytes",
                    source=_HISTORY,
                )
            ]
            if summary.stale_gradients_bytes is not None:
                evidence.append(
                    Evidence(
                        text=f"the peak falls by {size(summary.stale_gradients_bytes)} without them",
                        value=float(summary.stale_gradients_bytes),
                        unit="bytes",
                        source=_HISTORY,
                    )
                )
            if facts.is_on("zero_grad.set_to_none") is False:
                evidence.append(
                    Evidence(text="zero_grad() fills gradients with zeros", source="settings in force")
                )
            found.append(
                self.finding(
                    facts,
                    f"Gradients of the last step, {size(held)}, lie beside the activations",
                    evidence=evidence,
                    sites=facts.sites("zero_grad"),
                    not_this="Not a loss of time: bytes at the peak that need not be there.",
                    note=not is_tight(summary),
                )
            )
        return found


class MemoryLeak(Analyzer):
    """Every step leaves tensors behind that are never freed.

    What it means
        Something keeps a reference to a tensor of every step: a list of losses or outputs, a metric
        that is summed without .item() or .detach(), a hook, a cache. A tensor that still has its
        graph keeps the graph's tensors as well.

    How it is measured
        Allocations of each watched step that are alive at the end of the history, two steps later or
        more, from the same line in every one of these steps, and that are no parameter, gradient or
        optimizer state. A buffer of the last few steps gives its oldest back, and is not reported.

    What it costs you
        Nothing until memory is full; then everything. Bytes per step, and how many steps are left.

    What it is not
        Not the allocator's cache: reserved memory may grow while nothing leaks. Not optimizer state,
        which is made once, in the first step.

    What to do
        Keep numbers, not tensors: .item() every N steps, or .detach() and a running sum.

    Source
        PyTorch documentation, FAQ: "My model reports cuda runtime error(2): out of memory".
    """

    code = "BN205"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report what each step leaves behind."""
        found = []
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
                    text=f"{size(leak.bytes_per_step)} per step in {leak.blocks_per_step:.3g} blocks, "
                    f"in each of {leak.steps_seen} steps watched"
                    + (f", asked for in {leak.where}" if leak.site is None and leak.where else ""),
                    value=float(leak.bytes_per_step),
                    unit="bytes/step",
                    source=_HISTORY,
                    site=leak.site,
                )
                for leak in summary.leaks[:4]
            ]
            found.append(
                self.finding(
                    facts,
                    f"Each step leaves {size(rate)} of device memory behind{end}",
                    evidence=evidence,
                    sites=[leak.site for leak in summary.leaks],
                    not_this="Not the allocator's cache, and not a buffer of the last few steps.",
                )
            )
        return found


class MemorySpike(Analyzer):
    """The peak stands out: most of the step needs far less memory.

    What it means
        One operation asks for a large tensor for a moment: an all-pairs matrix, a metric over the
        whole batch, a concatenation, a one-hot encoding. The batch that fits is decided by it.

    How it is measured
        Live bytes over the time of the step with the highest peak: the level that 95 % of its time
        stays below, how far the peak is above it, and what was asked for since the level was crossed.

    What it costs you
        Bytes at the peak. No time, unless memory is short.

    What it is not
        Not the hill that activations make: forward climbs and backward descends, and most training
        steps spend a good part of their time near the top.

    What to do
        Compute it in pieces, in place, in a smaller type, or without gradients.

    Source
        PyTorch blog, "Understanding GPU Memory 1: Visualizing All Allocations over Time".
    """

    code = "BN206"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report a narrow and high peak."""
        found = []
        for summary in facts.memory:
            spike = summary.spike
            if spike is None or spike.above_bytes < 0.25 * summary.peak_bytes:
                continue
            found.append(
                self.finding(
                    facts,
                    f"{size(spike.above_bytes)} of the peak of {size(summary.peak_bytes)} is needed for "
                    f"{percent(spike.width_share)} of the step",
                    evidence=[
                        *holder_evidence(spike.holders, source=_HISTORY),
                        Evidence(
                            text=f"without these the peak is {size(spike.peak_without_bytes or 0)}",
                            value=float(spike.peak_without_bytes or 0),
                            unit="bytes",
                            source=_HISTORY,
                        ),
                    ],
                    sites=[holder.site for holder in spike.holders],
                    not_this="Not what the model needs: the rest of the step stays far below.",
                    note=not is_tight(summary),
                )
            )
        return found


def _first_try(summary: MemorySummary) -> str:
    """What promises most after a failure."""
    if summary.leaks:
        return "to mend the leak"
    if is_fragmented(summary):
        return "expandable_segments:True"
    failure = summary.out_of_memory
    top = failure.composition[0].category if failure is not None and failure.composition else None
    return _FIRST.get(top, "") if top is not None else ""


class OutOfMemoryFailure(Analyzer):
    """An allocation failed: the device's memory was full.

    What it means
        The allocator found no room, freed what it could, and gave up. What is written down here is
        the state at that moment, before the exception freed anything.

    How it is measured
        A snapshot taken by an observer of the allocator. Which blocks are parameters, gradients and
        optimizer state is known by their addresses; without a history the rest is what forward and
        backward held. Lines are known where the history was on.

    What it costs you
        The run, or the steps that the script skips when it catches the error.

    What it is not
        Not always too large a model: look for a leak, fragmentation, and a single oversized batch
        first.

    What to do
        What the largest share says: activations ask for checkpointing or a smaller micro-batch, states
        for sharding or a smaller optimizer, unused reserved memory for expandable_segments.

    Source
        PyTorch documentation, "Understanding CUDA Memory Usage".
    """

    code = "BN213"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Say what held the memory."""
        found = []
        for summary in facts.memory:
            failure = summary.out_of_memory
            if failure is None:
                continue
            asked = f" for {size(failure.requested_bytes)}" if failure.requested_bytes else ""
            where = f" in {failure.when}" if failure.when else ""
            where = where.replace(" in between", " between")
            end = ", and the script went on" if failure.caught else ""
            top = failure.composition[0] if failure.composition else None
            held = f"; {percent(top.share)} of what was held is {top.category.value}" if top else ""
            advice = _first_try(summary)
            if advice:
                held += f": try {advice} first"
            evidence = []
            if failure.live_bytes is not None:
                of = f" of {size(summary.capacity_bytes)}" if summary.capacity_bytes else ""
                evidence.append(
                    Evidence(
                        text=f"{size(failure.live_bytes)}{of} held when it failed: "
                        + ", ".join(
                            f"{row.category.value} {size(row.bytes)}" for row in failure.composition[:5]
                        ),
                        value=float(failure.live_bytes),
                        unit="bytes",
                        source="snapshot at the failure",
                    )
                )
            if failure.device_free_bytes is not None:
                evidence.append(
                    Evidence(
                        text=f"{size(failure.device_free_bytes)} free on the device as a whole",
                        value=float(failure.device_free_bytes),
                        unit="bytes",
                        source="the allocator",
                    )
                )
            evidence += holder_evidence(failure.holders, source="snapshot at the failure")
            sites = [failure.site, *(holder.site for holder in failure.holders)]
            found.append(
                self.finding(
                    facts,
                    f"Out of memory: a request{asked} failed{where}{end}{held}",
                    evidence=evidence,
                    sites=sites,
                    not_this="The line that asked last is rarely the one that holds the memory.",
                )
            )
        return found


class ResidentGrowth(Analyzer):
    """The process grows with every step (CPU).

    What it means
        Resident memory rises through the baseline: tensors or Python objects of every step are kept,
        or each step touches pages of a data set that a fork shares no more.

    How it is measured
        Resident memory of the process at both edges of the baseline window, over its steps.

    What it costs you
        Nothing until memory is full. Steps left are counted with the machine's whole memory.

    What it is not
        Not a leak for certain: caches fill, and malloc keeps what is freed in pieces. A figure that
        stays the same in a longer window is one.

    What to do
        Keep numbers, not tensors; arrays instead of lists of Python objects in the data set.

    Source
        proc(5), /proc/pid/statm; PyTorch issue 13246, data-loader workers and growing memory.
    """

    code = "BN214"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report growth of more than a megabyte and a thousandth of the memory per step."""
        grows = facts.number("memory.resident_growth")
        if facts.timeline.kind != "cpu" or grows is None or grows < 1e6:
            return ()
        total = facts.run.host.memory_bytes if facts.run is not None else None
        window = facts.run.window("baseline") if facts.run is not None else None
        resident = window.after.rss_bytes if window is not None and window.after is not None else None
        left = (total - resident) / grows if total and resident else None
        if left is not None and left > 100_000:
            return ()
        end = f": memory is full in about {left:,.0f} steps".replace(",", " ") if left is not None else ""
        return (
            self.finding(
                facts,
                f"Resident memory grows by {size(grows)} per step{end}",
                evidence=[
                    Evidence(
                        text=f"{size(grows)} per step between the edges of the baseline window",
                        value=grows,
                        unit="bytes/step",
                        source="baseline window",
                    )
                ],
                not_this="Not necessarily a leak: caches fill too, but a leak does not end.",
            ),
        )
