"""Transfer-bound: the step waits for copies between host and device.

In: facts. Out: findings BN701 and BN702.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import Part, WhatIf
from ...model.finding import Evidence, Finding
from ...model.words import ms
from ..base import Analyzer, Facts, call_evidence


def _bandwidths(facts: Facts) -> list[Evidence]:
    if facts.run is None:
        return []
    return [
        Evidence(
            text=f"{name} host memory copies at {rate:.1f} GB/s here",
            value=rate,
            unit="GB/s",
            source="measured on this device",
        )
        for name, rate in (("pinned", facts.run.pinned_gbps), ("pageable", facts.run.pageable_gbps))
        if rate
    ]


def _copy_evidence(facts: Facts) -> list[Evidence]:
    out = call_evidence(facts.spans(Part.COPIES))
    copied = facts.number("copies.h2d_ms")
    if copied:
        out.append(
            Evidence(
                text=f"{ms(copied)} of host-to-device copies per step",
                value=copied,
                unit="ms/step",
                source="trace",
            )
        )
    return out


class BlockingCopy(Analyzer):
    """A copy from pageable memory blocks the host and cannot overlap.

    What it means
        The driver cannot copy directly from pageable memory. It copies through a pinned buffer, at
        a fraction of the bandwidth and only after the stream's earlier work. The host waits for all
        of it.

    How it is measured
        Copies named "Pageable -> Device" in the trace, and the time that the host is blocked in
        their calls.

    What it costs you
        The step is replayed with asynchronous copies on their own stream, at the bandwidth measured
        for pinned memory. In one run on an H200 this predicted 48.9 ms instead of 60.9 ms; 47.9 ms
        were measured.

    What it is not
        Not the number of bytes: from pinned memory the same copy may overlap completely with
        kernels.

    What to do
        DataLoader(pin_memory=True) and .to(device, non_blocking=True); copy the next batch while
        this one computes.

    Source
        PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory()".
    """

    code = "BN701"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price blocking copies."""
        if facts.timeline.kind != "gpu" or facts.is_on("copies.pageable_blocking") is not True:
            return
        answer = facts.ask(WhatIf.COPIES_ASYNC)
        if answer is None or answer.saves_ms <= 0:
            return
        loader = facts.training_loader()
        sites = [*facts.sites("h2d"), loader.site if loader is not None else None]
        yield self.finding(
            facts,
            f"Copies from pageable memory keep the step waiting for {ms(answer.saves_ms)}",
            answer=answer,
            time_ms=facts.number("copies.h2d_ms"),
            evidence=[*_copy_evidence(facts), *_bandwidths(facts)],
            sites=sites,
            not_this="Copies that overlap with kernels are not counted.",
        )


class ExposedCopies(Analyzer):
    """The device waits for copies that could overlap with computation.

    What it means
        Copies run on the same stream as the kernels, or just before the kernels that need them. The
        compute units are idle meanwhile.

    How it is measured
        The time in which the device runs a copy and nothing else.

    What it costs you
        The step is replayed with copies on their own stream one step ahead, or without the copies;
        the latter is an upper bound. Where most of it are activations that hooks of saved tensors move,
        without those and the waits for them.

    What it is not
        Not device-to-device copies, which count as memory-bound kernels.

    What to do
        Prefetch the next batch on a side stream; copy smaller dtypes (uint8 images) and convert on
        the device; keep reused data on the device, and activations where there is room for them.

    Source
        CUDA C++ best practices guide, "Asynchronous and overlapping transfers with computation".
    """

    code = "BN702"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price exposed copies that are not blocking ones."""
        if facts.timeline.kind != "gpu" or facts.is_on("copies.pageable_blocking") is True:
            return
        exposed = facts.timeline.part_ms(Part.COPIES)
        answer = facts.ask(WhatIf.COPIES_ASYNC) or facts.ask(WhatIf.COPIES_GONE)
        what = "Copies that do not overlap with computation cost"
        moved = facts.ask(WhatIf.OFFLOADS_GONE)
        if moved is not None and (answer is None or moved.saves_ms > answer.saves_ms):
            answer, what = moved, "Moving activations to the host and back costs"
        if answer is None or answer.saves_ms < 0.002 * facts.true_ms:
            return
        yield self.finding(
            facts,
            f"{what} {ms(answer.saves_ms)} per step",
            answer=answer,
            time_ms=exposed or None,
            evidence=[*_copy_evidence(facts), *_bandwidths(facts)],
            sites=facts.sites("h2d"),
            not_this="Only time in which the device does nothing but copy.",
        )
