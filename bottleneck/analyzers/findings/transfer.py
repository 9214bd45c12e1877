"""Transfer-bound: the step waits for copies between host and device.

In: facts. Out: findings BN701 and BN702.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.codes import Part, WhatIf
from ...model.finding import Evidence, Finding
from ...model.words import ms
from ..base import Analyzer, Facts

__all__ = ["BlockingCopy", "ExposedCopies"]


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
    out = [
        Evidence(
            text=f"{span.count:.1f} {span.what} per step, {ms(span.called_ms)} in them",
            value=span.called_ms,
            unit="ms/step",
            source="trace",
            site=span.site,
        )
        for span in facts.spans(Part.COPIES)[:4]
    ]
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
        The driver cannot copy from pageable memory by itself: it stages through a pinned buffer
        while the host waits, at a fraction of the bandwidth, and after the stream's earlier work.

    How it is measured
        Copies named "Pageable -> Device" in the trace, and the host blocked in their call.

    What it costs you
        Replayed with copies at the measured pinned bandwidth, asynchronous, on their own stream:
        predicted 48.9 and measured 47.9 ms (from 60.9) on an H200.

    What it is not
        Not the volume: from pinned memory the same bytes may hide completely behind kernels.

    What to do
        DataLoader(pin_memory=True) and .to(device, non_blocking=True); copy the next batch while
        this one computes.

    Source
        PyTorch tutorial, "A guide on good usage of non_blocking and pin_memory()".
    """

    code = "BN701"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price blocking copies."""
        if facts.timeline.kind != "gpu" or facts.is_on("copies.pageable_blocking") is not True:
            return ()
        answer = facts.ask(WhatIf.COPIES_ASYNC)
        if answer is None or answer.saves_ms <= 0:
            return ()
        loader = facts.training_loader()
        sites = [*facts.sites("h2d"), loader.site if loader is not None else None]
        return (
            self.finding(
                facts,
                f"Copies from pageable memory keep the step waiting for {ms(answer.saves_ms)}",
                answer=answer,
                time_ms=facts.number("copies.h2d_ms"),
                evidence=[*_copy_evidence(facts), *_bandwidths(facts)],
                sites=sites,
                not_this="Copies that hide behind kernels are not counted.",
            ),
        )


class ExposedCopies(Analyzer):
    """The device waits for copies that could overlap with its work.

    What it means
        Copies run on the same stream as the kernels, or just before the kernels that need them, so
        the compute units idle meanwhile.

    How it is measured
        Time in which a copy and nothing else runs on the device.

    What it costs you
        Replayed with copies on their own stream a step ahead, or gone: the second is a bound.

    What it is not
        Not device-to-device copies, which are memory-bound kernels here.

    What to do
        Prefetch the next batch on a side stream; copy smaller dtypes (uint8 images) and convert on
        the device; keep what is reused there.

    Source
        CUDA C++ best practices guide, "Asynchronous and overlapping transfers with computation".
    """

    code = "BN702"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price exposed copies that are not blocking ones."""
        if facts.timeline.kind != "gpu" or facts.is_on("copies.pageable_blocking") is True:
            return ()
        exposed = facts.timeline.part_ms(Part.COPIES)
        answer = facts.ask(WhatIf.COPIES_ASYNC) or facts.ask(WhatIf.COPIES_GONE)
        if answer is None or answer.saves_ms < 0.002 * facts.true_ms:
            return ()
        return (
            self.finding(
                facts,
                f"Copies that nothing hides cost {ms(answer.saves_ms)} per step",
                answer=answer,
                time_ms=exposed or None,
                evidence=[*_copy_evidence(facts), *_bandwidths(facts)],
                sites=facts.sites("h2d"),
                not_this="Only time in which the device does nothing but copy.",
            ),
        )
