"""Allocator-thrashing: memory is given back and asked for again, step after step.

In: facts. Out: findings BN201 to BN203.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.codes import Part, WhatIf
from ...model.finding import Evidence, Finding
from ...model.words import byte_size, ms, percent
from ..base import Analyzer, Facts

__all__ = ["AllocatorInCriticalPath", "EmptyCacheInLoop", "PageFaults"]


_CALLS_PER_STEP = 0.2
"""Segments given back per step from which a history alone is worth a word."""


class AllocatorInCriticalPath(Analyzer):
    """The device allocator keeps the step waiting.

    What it means
        The caching allocator did not find a fitting block and went to the driver: cudaMalloc, and
        when memory is short cudaFree of everything unused first, which waits for the whole device.
        Varying tensor sizes under a tight memory limit make it happen in every step.

    How it is measured
        Driver calls of the allocator in the trace, with the idle time of the device that they
        caused; retries and segments from torch.cuda.memory_stats over the baseline window.

    What it costs you
        The step is replayed with all allocator calls free of charge. Often that is far less than
        the time spent in them: 18 cudaFree calls that took 197 of 950 ms of host time cost 0.3 of
        119 ms per step in a measured run, because the queue of kernels never ran dry.

    What it is not
        Not memory use. A full device with a calm allocator has no price; num_alloc_retries or
        many calls alone prove nothing.

    What to do
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, shapes from few buckets, the largest batch
        first, no empty_cache() in the loop.

    Source
        PyTorch documentation, "Optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF".
    """

    code = "BN201"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price allocator calls on a GPU."""
        if facts.true_ms <= 0:
            return self._by_history(facts)
        if facts.timeline.kind != "gpu":
            return ()
        answer = facts.ask(WhatIf.ALLOCATOR_FREE)
        spans = facts.spans(Part.ALLOCATOR)
        calls = sum(span.count for span in spans)
        retries = facts.number("allocator.retries_per_step")
        if (answer is None or answer.saves_ms <= 0) and not calls and not retries:
            return ()
        spent = sum(span.called_ms for span in spans)
        evidence = [
            Evidence(
                text=f"{span.count:.1f} {span.what} per step, {ms(span.called_ms)} in them, "
                f"{ms(span.exposed_ms)} of it with the device idle",
                value=span.called_ms,
                unit="ms/step",
                source="trace",
                site=span.site,
            )
            for span in spans[:4]
        ]
        for key, text in (
            ("allocator.retries_per_step", "retries after freeing everything unused"),
            ("allocator.device_allocs_per_step", "allocations asked of the driver"),
            ("allocator.device_frees_per_step", "blocks given back to the driver"),
        ):
            value = facts.number(key)
            if value:
                evidence.append(
                    Evidence(
                        text=f"{value:.2g} {text} per step",
                        value=value,
                        unit="1/step",
                        source="memory_stats over the baseline window",
                    )
                )
        reserved = facts.number("allocator.reserved_over_allocated")
        if reserved is not None and reserved > 1.2:
            evidence.append(
                Evidence(
                    text=f"peak reserved is {reserved:.2f} times peak allocated: fragmentation",
                    value=reserved,
                    unit="ratio",
                    source="memory_stats",
                )
            )
        if facts.is_on("allocator.max_split"):
            evidence.append(
                Evidence(
                    text="max_split_size_mb is set: a larger cached block serves its own size alone",
                    source="settings in force",
                )
            )
        churn = facts.memory[0].churn if facts.memory else None
        if churn is not None and churn.sites:
            site, count = churn.sites[0]
            evidence.append(
                Evidence(
                    text=f"{count:.1f} times per step this line's request went to the driver"
                    f"{_sizes(churn.distinct_sizes)}; {byte_size(churn.bytes)} asked of it per step",
                    value=count,
                    unit="1/step",
                    source="memory history",
                    site=site,
                )
            )
        cost = answer.saves_ms if answer is not None else None
        if cost is not None:
            title = f"Allocator calls keep each step waiting for {ms(cost)}"
        elif calls:
            title = f"{calls:.0f} allocator calls per step reach the driver; their price could not be told"
        else:
            title = (
                f"{retries:.2g} times per step the allocator freed all that was unused to serve a request; "
                "its price could not be told"
            )
        return (
            self.finding(
                facts,
                title,
                answer=answer,
                time_ms=spent or None,
                evidence=evidence,
                sites=[
                    *(span.site for span in spans),
                    *(site for site, _ in (churn.sites if churn is not None else ())),
                ],
                not_this=f"Not the {ms(spent)} spent in the calls: queued kernels hide most of that."
                if spent
                else "",
                note=cost is not None and cost < 0.002 * facts.true_ms,
            ),
        )

    def _by_history(self, facts: Facts) -> Sequence[Finding]:
        """Say what a memory history alone tells of calls to the driver: how many, not what they cost."""
        found = []
        for summary in facts.memory:
            churn = summary.churn
            calls = churn.frees + churn.unmaps if churn is not None else 0.0
            if churn is None or calls < _CALLS_PER_STEP:
                continue
            evidence = [
                Evidence(
                    text=f"{count:.2g} times per step this line's request went to the driver"
                    + (_sizes(churn.distinct_sizes) if i == 0 else ""),
                    value=count,
                    unit="1/step",
                    source="memory history",
                    site=site,
                )
                for i, (site, count) in enumerate(churn.sites[:4])
            ]
            found.append(
                self.finding(
                    facts,
                    f"The allocator gives {calls:.2g} segments per step back and asks for "
                    f"{byte_size(churn.bytes)}: what that costs, only a trace can tell",
                    evidence=evidence,
                    sites=[site for site, _ in churn.sites],
                    not_this="Not a cost by itself: queued kernels may hide all of it.",
                )
            )
        return found


def _sizes(count: int | None) -> str:
    return f", with {count} different sizes" if count is not None and count > 1 else ""


class EmptyCacheInLoop(Analyzer):
    """torch.cuda.empty_cache() runs inside the training loop.

    What it means
        empty_cache() gives every unused block back to the driver, waiting for the device, and the
        next step has to ask for all of it again.

    How it is measured
        Segments freed and allocated again in every step of the baseline window without a retry
        (memory_stats), and cudaFree calls in the trace. With a memory history: segments given back
        from inside empty_cache(), and the line that called it.

    What it costs you
        Priced with the allocator as a whole: see BN201.

    What it is not
        Not a way to lower the peak: the allocator reuses its blocks anyway, and frees them by
        itself before it reports out of memory.

    What to do
        Remove the call, or make it once between phases (before an evaluation of another shape).

    Source
        PyTorch documentation, torch.cuda.empty_cache.
    """

    code = "BN202"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report calls seen per step."""
        calls = facts.number("allocator.empty_cache_per_step")
        if not calls or calls < 0.05:
            return ()
        answer = facts.ask(WhatIf.ALLOCATOR_FREE)
        return (
            self.finding(
                facts,
                "empty_cache() runs in the training loop",
                answer=answer,
                evidence=[
                    Evidence(
                        text=f"without a retry, blocks go back to the driver {calls:.1f} times per step",
                        value=calls,
                        unit="1/step",
                        source="memory_stats over the baseline window",
                    )
                ],
                sites=[
                    *(site for summary in facts.memory for site in summary.empty_cache_sites),
                    *facts.sites("empty_cache"),
                ],
                not_this="The cost is the allocator's as a whole, of which this call is the cause.",
            ),
        )


class PageFaults(Analyzer):
    """Memory is given back to the kernel and faulted in again in every step (CPU).

    What it means
        glibc's malloc maps large blocks straight from the kernel and unmaps them when they are
        freed. Each step then pays for every page anew: a fault, a zeroed page, cold caches.

    How it is measured
        Minor faults and system time per step by getrusage over the baseline window. System time
        counts only as far as the faults explain it (at most 5 us per 4 KiB fault), and without the
        share that the input must have taken. A lower bound: programs measured under a malloc that
        keeps its pages saved 1.1 to 1.4 times their system time.

    What it costs you
        The step without that system time.

    What it is not
        Not memory shortage and not swapping (those are major faults). Faults of the first steps,
        while memory is first touched, do not repeat and are not in the baseline.

    What to do
        Let malloc keep its pages: jemalloc or tcmalloc by LD_PRELOAD, or for glibc
        MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_; write into existing tensors (out=,
        in-place operations).

    Source
        mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD; PyTorch performance tuning guide, "Switch
        memory allocator".
    """

    code = "BN203"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price the faults on a CPU."""
        if facts.timeline.kind != "cpu":
            return ()
        answer = facts.ask(WhatIf.ALLOCATOR_FREE)
        faults = facts.number("memory.faults_per_step")
        if answer is None or answer.saves_ms <= 0 or faults is None:
            return ()
        system = facts.number("memory.system_share") or 0.0
        library = facts.context.get("malloc.library")
        evidence = [
            Evidence(
                text=f"{faults:.0f} page faults per step ({faults * 4096 / 2**20:.0f} MiB touched anew)",
                value=faults,
                unit="1/step",
                source="getrusage over the baseline window",
            ),
            Evidence(
                text=f"{percent(system)} of the step is system time",
                value=system * facts.true_ms,
                unit="ms/step",
                source="getrusage over the baseline window",
            ),
        ]
        if isinstance(library, str):
            evidence.append(Evidence(text=f"memory comes from {library}", source="settings in force"))
        return (
            self.finding(
                facts,
                f"Page faults of memory asked for anew cost {ms(answer.saves_ms)} per step",
                answer=answer,
                time_ms=system * facts.true_ms,
                evidence=evidence,
                sites=facts.sites("forward"),
                not_this="Not a shortage of memory: pages are returned and fetched again.",
            ),
        )
