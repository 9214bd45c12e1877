"""Sync-bound: the host waits for the device, and the device then waits for the host.

In: facts. Out: finding BN601.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import Part, WhatIf
from ...model.finding import NEGLIGIBLE_SHARE, Finding
from ...model.words import ms
from ..base import Analyzer, Facts, call_evidence

_MANY = 10.0
"""Per step: so many are suspected where they are seen, and said to cost nothing where they do."""


class SynchronisationStalls(Analyzer):
    """Synchronising calls leave the device without work.

    What it means
        .item(), .cpu(), float(loss), printing a tensor, nonzero or torch.cuda.synchronize() wait
        until the device has finished all queued work. The device is then idle until the host
        launches again.

    How it is measured
        Synchronising calls on the launching thread, and the device's idle gaps that begin during
        such a call or end with the first launch after it.

    What it costs you
        The step is replayed without the waits. The cost can be small: in one measured launch-bound
        run 24 .item() calls per step cost 0.2 %, because the device was waiting for launches
        anyway.

    What it is not
        Not the time inside the calls: during most of it the device does work that is needed anyway.
        On a CPU there is nothing to wait for, so .item() costs almost nothing; of many of them it
        is told how long they take.

    What to do
        Accumulate metrics on the device and read them every N steps; torch.where instead of boolean
        indexing; non_blocking copies; read the previous step's loss instead of this one's.

    Source
        PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
    """

    code = "BN601"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the waits on a GPU; on a CPU many reads are told to cost nothing."""
        if facts.timeline.kind != "gpu":
            yield from self._reads(facts)
            return
        answer = facts.ask(WhatIf.SYNCS_GONE)
        spans = facts.spans(Part.SYNC)
        per_step = facts.number("sync.per_step") or sum(span.count for span in spans)
        if (answer is None or answer.saves_ms <= 0) and per_step < 0.5:
            return
        spent = sum(span.called_ms for span in spans)
        evidence = call_evidence(spans, most=5)
        cost = answer.saves_ms if answer is not None else None
        if cost is not None:
            many, keep = ("", "s") if round(per_step) == 1 else ("s", "")
            title = f"{per_step:.0f} synchronisation{many} per step keep{keep} it waiting for {ms(cost)}"
        else:
            title = f"{per_step:.0f} synchronisations per step; what they cost is unknown"
        yield self.finding(
            facts,
            title,
            answer=answer,
            time_ms=spent or None,
            evidence=evidence,
            sites=[span.site for span in spans],
            not_this=f"Not the {ms(spent)} spent in the calls: the device is busy during most of that."
            if spent
            else "",
            note=cost is not None and cost < 0.002 * facts.true_ms and per_step < _MANY,
        )

    def _reads(self, facts: Facts) -> Iterator[Finding]:
        per_step, cost = facts.number("sync.per_step") or 0.0, facts.number("sync.reads_ms") or 0.0
        if per_step >= _MANY and cost < NEGLIGIBLE_SHARE * facts.true_ms:
            title = f"{per_step:.0f} reads of values per step take {ms(cost)}"
            yield self.finding(facts, title, cost_ms=cost, not_this="On a CPU there is nothing to wait for.")
