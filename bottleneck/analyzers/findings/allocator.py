"""Allocator-thrashing: memory is freed and allocated again, step after step.

In: facts. Out: findings BN201 to BN203.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...model.codes import Part, WhatIf
from ...model.finding import Evidence, Finding
from ...model.run import NO_CACHING
from ...model.words import byte_size, ms, percent
from ..base import Analyzer, Facts, call_evidence


class AllocatorInCriticalPath(Analyzer):
    """The device allocator keeps the step waiting.

    What it means
        The caching allocator did not find a fitting block and went to the driver: cudaMalloc, and
        when memory is short cudaFree of everything unused first, which waits for the whole device.
        When tensor sizes vary and memory is nearly full, this happens in every step.

    How it is measured
        The allocator's driver calls in the trace, and the device idle time that they caused;
        retries and segments from torch.cuda.memory_stats over the baseline window.

    What it costs you
        The step is replayed with allocator calls that take no time. The saving is often far less
        than the time spent in them. In one measured run 18 cudaFree calls took 197 of 950 ms of
        host time but cost only 0.3 of 119 ms per step, because the GPU always had kernels queued.

    What it is not
        Not memory use. A full device costs nothing while the allocator rarely calls the driver.
        Retries (num_alloc_retries) or many calls do not prove a cost either.

    What to do
        PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, a few fixed shapes (buckets), the largest
        batch first, no empty_cache() in the loop, and PYTORCH_NO_CUDA_MEMORY_CACHING unset.

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
        evidence = call_evidence(spans)
        for key, text in (
            ("allocator.retries_per_step", "retries after freeing everything unused"),
            ("allocator.device_allocs_per_step", "allocations by the driver"),
            ("allocator.device_frees_per_step", "blocks returned to the driver"),
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
                    text="max_split_size_mb is set: larger blocks are kept whole for requests of their size",
                    source="settings in force",
                )
            )
        churn = facts.memory[0].churn if facts.memory else None
        if churn is not None and churn.sites:
            site, count = churn.sites[0]
            evidence.append(
                Evidence(
                    text=f"{count:.1f} requests per step from this line went to the driver"
                    f"{_sizes(churn.distinct_sizes)}; {byte_size(churn.bytes)} allocated there per step",
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
            title = f"{calls:.0f} allocator calls per step reach the driver; what they cost is unknown"
        else:
            title = (
                f"{retries:.2g} times per step the allocator freed all unused memory to serve a request; "
                "what that costs is unknown"
            )
        if facts.is_on("allocator.caches") is False:
            title += f" ({NO_CACHING} is set)"
        return (
            self.finding(
                facts,
                title,
                answer=answer,
                time_ms=spent or None,
                evidence=evidence,
                sites=[
                    *facts.sites(NO_CACHING)[:1],
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
        """Report the number of driver calls in a memory history, which cannot tell what they cost."""
        found = []
        for summary in facts.memory:
            churn = summary.churn
            calls = churn.frees + churn.unmaps if churn is not None else 0.0
            if churn is None or not calls:
                continue
            evidence = [
                Evidence(
                    text=f"{count:.2g} requests per step from this line went to the driver"
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
                    f"The allocator frees {calls:.2g} segments per step and allocates "
                    f"{byte_size(churn.bytes)}; only a trace can tell what that costs",
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
        empty_cache() waits for the device and returns every unused block to the driver. The next
        step has to allocate all of it again.

    How it is measured
        Segments freed and allocated again in every step of the baseline window without a retry
        (memory_stats), and cudaFree calls in the trace. With a memory history: segments freed
        inside empty_cache(), and the line that called it.

    What it costs you
        Included in the price of all allocator calls: see BN201.

    What it is not
        Not a way to lower the peak: the allocator reuses its blocks anyway, and it frees unused
        ones before it reports out of memory.

    What to do
        Remove the call, or make it once between phases, such as before an evaluation with other
        shapes.

    Source
        PyTorch documentation, torch.cuda.empty_cache.
    """

    code = "BN202"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report calls seen per step."""
        calls = facts.number("allocator.empty_cache_per_step")
        if not calls or calls < 0.05 or facts.is_on("allocator.caches") is False:
            return  # where nothing is cached, everything is returned
        answer = facts.ask(WhatIf.ALLOCATOR_FREE)
        yield self.finding(
            facts,
            "empty_cache() runs in the training loop",
            answer=answer,
            evidence=[
                Evidence(
                    text=f"blocks are returned to the driver {calls:.1f} times per step without a retry",
                    value=calls,
                    unit="1/step",
                    source="memory_stats over the baseline window",
                )
            ],
            sites=[
                *(site for summary in facts.memory for site in summary.empty_cache_sites),
                *facts.sites("empty_cache"),
            ],
            not_this="The cost is that of all allocator calls; this call is their cause.",
        )


class PageFaults(Analyzer):
    """Every step returns memory to the operating system and faults it in again (CPU).

    What it means
        glibc's malloc maps large blocks directly from the kernel and unmaps them when they are
        freed. Each step then pays for every page again: a page fault, zeroing the page, cold
        caches.

    How it is measured
        Minor page faults and system time per step, from getrusage over the baseline window. System
        time counts only as far as the faults explain it (at most 5 us per 4 KiB fault). The share
        that the input must have taken is subtracted. The result is a lower bound: measured programs
        saved 1.1 to 1.4 times their system time with a malloc that keeps its pages.

    What it costs you
        The step without that system time.

    What it is not
        Not memory shortage and not swapping (those are major faults). Faults in the first steps,
        when memory is touched for the first time, do not repeat and are not in the baseline.

    What to do
        Let malloc keep its pages: preload jemalloc or tcmalloc with LD_PRELOAD, or for glibc set
        MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_. Write into existing tensors (out=,
        in-place operations).

    Source
        mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD; PyTorch performance tuning guide, "Switch
        memory allocator".
    """

    code = "BN203"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the faults on a CPU."""
        if facts.timeline.kind != "cpu":
            return
        answer = facts.ask(WhatIf.ALLOCATOR_FREE)
        faults = facts.number("memory.faults_per_step")
        if answer is None or answer.saves_ms <= 0 or faults is None:
            return
        system = facts.number("memory.system_share") or 0.0
        library = facts.context.get("malloc.library")
        evidence = [
            Evidence(
                text=f"{faults:.0f} page faults per step ({faults * 4096 / 2**20:.0f} MiB touched again)",
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
        yield self.finding(
            facts,
            f"Page faults on newly allocated memory cost {ms(answer.saves_ms)} per step",
            answer=answer,
            time_ms=system * facts.true_ms,
            evidence=evidence,
            sites=facts.lines_of_work(),
            not_this="Not a shortage of memory: pages are returned to the system and mapped again.",
        )
