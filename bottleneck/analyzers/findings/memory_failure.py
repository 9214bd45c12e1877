"""Memory that has run out, or will: failed allocations, and a process that grows.

In: facts. Out: findings BN213 and BN214.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.finding import Evidence, Finding
from ...model.memory import MemoryCategory, MemorySummary
from ...model.words import byte_size, percent
from ..base import Analyzer, Facts
from ..sections.memory_context import growth_window
from .memory import holder_evidence, is_fragmented

_FIRST = {
    MemoryCategory.ACTIVATIONS: "smaller micro-batches or checkpointing",
    MemoryCategory.INPUTS: "a smaller batch",
    MemoryCategory.TEMPORARY: "to split the operation that allocates most",
    MemoryCategory.PARAMETERS: "sharding or fewer bits for the states",
    MemoryCategory.GRADIENTS: "sharding or fewer bits for the states",
    MemoryCategory.OPTIMIZER: "sharding or fewer bits for the states",
}
"""What to try first when memory ran out, by what took most of it."""


_STANDS_OUT, _STANDS_OUT_BYTES = 0.10, 64e6
"""Growth over a window as a share of the resident memory at its start; less is noise. A training of
430 MB that keeps nothing varies by 20 to 30 MB (glibc 2.36, tensors of 4 MB)."""


def _first_try(summary: MemorySummary) -> str:
    """Return the advice that is most likely to help after a failure."""
    if summary.leaks:
        return "to fix the leak"
    if is_fragmented(summary) and not summary.expandable_segments:
        return "expandable_segments:True"
    failure = summary.out_of_memory
    top = failure.composition[0].category if failure is not None and failure.composition else None
    return _FIRST.get(top, "") if top is not None else ""


class OutOfMemoryFailure(Analyzer):
    """An allocation failed: the device's memory was full.

    What it means
        The allocator found no free block, freed what it could, and failed. The finding shows the
        state at that moment, before the exception freed anything.

    How it is measured
        The harness takes a snapshot when the allocator reports the failure. Parameters, gradients
        and optimizer state are identified by their addresses. Without a memory history, the rest
        counts as memory of forward and backward. Lines of code are known only with a history.

    What it costs you
        The run, or the steps that the script skips when it catches the error.

    What it is not
        Not necessarily too large a model: look for a leak, fragmentation, and a single oversized
        batch first.

    What to do
        Start with the largest share. Activations: checkpointing or a smaller micro-batch.
        Parameters, gradients and optimizer state: sharding or a smaller optimizer. Unused reserved
        memory: expandable_segments.

    Source
        PyTorch documentation, "Understanding CUDA Memory Usage".
    """

    code = "BN213"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Say what held the memory."""
        for summary in facts.memory:
            failure = summary.out_of_memory
            if failure is None:
                continue
            asked = f" for {byte_size(failure.requested_bytes)}" if failure.requested_bytes else ""
            where = f" in {failure.when}" if failure.when else ""
            where = where.replace(" in between", " between")
            end = ", and the script continued" if failure.caught else ""
            top = failure.composition[0] if failure.composition else None
            held = f"; {percent(top.share)} of what was held is {top.category.value}" if top else ""
            advice = _first_try(summary)
            if advice:
                held += f": try {advice} first"
            evidence = []
            if failure.live_bytes is not None:
                of = f" of {byte_size(summary.capacity_bytes)}" if summary.capacity_bytes else ""
                evidence.append(
                    Evidence(
                        text=f"{byte_size(failure.live_bytes)}{of} held when it failed: "
                        + ", ".join(
                            f"{row.category.value} {byte_size(row.bytes)}" for row in failure.composition[:5]
                        ),
                        value=float(failure.live_bytes),
                        unit="bytes",
                        source="snapshot at the failure",
                    )
                )
            if failure.device_free_bytes is not None:
                evidence.append(
                    Evidence(
                        text=f"{byte_size(failure.device_free_bytes)} free on the device as a whole",
                        value=float(failure.device_free_bytes),
                        unit="bytes",
                        source="the allocator",
                    )
                )
            evidence += holder_evidence(failure.holders, source="snapshot at the failure")
            sites = [failure.site, *(holder.site for holder in failure.holders)]
            yield self.finding(
                facts,
                f"Out of memory: a request{asked} failed{where}{end}{held}",
                evidence=evidence,
                sites=sites,
                not_this="The line whose request failed is rarely the one that holds the memory.",
            )


class ResidentGrowth(Analyzer):
    """The process grows with every step (CPU).

    What it means
        Resident memory grows from step to step. Either tensors or Python objects of every step are
        kept, or each step touches pages of a data set, which a forked process then no longer
        shares.

    How it is measured
        The resident memory of the process before and after the longest stretch of unprofiled steps,
        divided by the number of steps. Captures need memory themselves and are left out.

    What it costs you
        Nothing until memory is full. The number of steps left assumes that the process may use the
        machine's whole memory.

    What it is not
        Not necessarily a leak: caches fill, and malloc keeps freed pieces. If the growth per step
        is the same in a longer window, it is a leak. Growth of less than a tenth of the process is
        not reported, because malloc alone causes that much variation.

    What to do
        Keep numbers instead of tensors, and use arrays instead of lists of Python objects in the
        data set.

    Source
        proc(5), /proc/pid/statm; PyTorch issue 13246, data-loader workers and growing memory.
    """

    code = "BN214"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report growth that exceeds malloc's own variation from step to step."""
        grows = facts.number("memory.resident_growth")
        if facts.timeline.kind != "cpu" or grows is None or grows < 1e6:
            return
        window = growth_window(facts.run)
        steps = len(window.steps.index) if window is not None else 0
        begun = window.before.rss_bytes if window is not None and window.before is not None else None
        if grows * steps < max(_STANDS_OUT_BYTES, _STANDS_OUT * (begun or 0)):
            return
        total = facts.run.host.memory_bytes if facts.run is not None else None
        resident = window.after.rss_bytes if window is not None and window.after is not None else None
        left = (total - resident) / grows if total and resident else None
        if left is not None and left > 100_000:
            return
        end = f": memory is full in about {left:,.0f} steps".replace(",", " ") if left is not None else ""
        yield self.finding(
            facts,
            f"Resident memory grows by {byte_size(grows)} per step{end}",
            evidence=[
                Evidence(
                    text=f"{byte_size(grows)} per step over {steps} unprofiled steps",
                    value=grows,
                    unit="bytes/step",
                    source=f"{window.name} window" if window is not None else "",
                )
            ],
            not_this="Not necessarily a leak: caches grow too, but they stop.",
        )
