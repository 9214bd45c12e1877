"""Input-bound: the step waits for its next batch.

In: facts. Out: findings BN101 to BN104.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ...model.codes import Part, WhatIf
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.words import ms, percent
from ...timeline.result import SpanKind
from ...timeline.steps.supply import batches_per_iterator, burst_share, production_ms
from ..base import Analyzer, Facts, predicted_evidence

__all__ = [
    "InputBursty",
    "InputProductionSlow",
    "WaitingForInput",
    "WorkerStartUp",
]


class WaitingForInput(Analyzer):
    """The step waits for its next batch.

    What it means
        Between two steps the training has nothing to compute on, because the batch is not there
        yet: the DataLoader blocks in `__next__`, or the training thread itself decodes, transforms
        and collates the samples (num_workers=0), or a hand-written `get_batch` does.

    How it is measured
        The time in the loader is taken in the baseline window, with no profiler attached. On a GPU
        the trace says how much of it left the device idle: only that part counts. Python between
        the fetch and the forward counts as preparing the batch.

    What it costs you
        The step is replayed with every batch ready at once; the difference is the price. With
        enough workers the price can be recovered down to the larger of the remaining step and
        production / workers, which is asked as a question of its own.

    What it is not
        Not the time shown for `DataLoader.__next__` in a profile: a fetch that waits while the GPU
        still works through queued kernels costs nothing. Not the copy to the device (BN701, BN702).

    What to do
        Raise num_workers until supply keeps up; if production is dear (BN102), make it cheaper or
        do it once. Without a DataLoader, prepare batches in one: its workers overlap with the step.

    Source
        torch.utils.data documentation, "Single- and Multi-process Data Loading"; Mohan et al.,
        "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021.
    """

    code = "BN101"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price the wait; evidence from the loader that causes it."""
        answer = facts.ask(WhatIf.INPUT_READY)
        exposed = facts.timeline.part_ms(Part.INPUT)
        cost = answer.saves_ms if answer is not None else (exposed if facts.timeline.kind == "cpu" else None)
        if cost is None or cost <= 0:
            return ()
        loader = facts.training_loader()
        evidence = []
        wait = facts.phases_ms.get("data")
        if wait is not None:
            evidence.append(
                Evidence(
                    text=f"{ms(wait)} of each step spent fetching the batch",
                    value=wait,
                    unit="ms/step",
                    source="baseline window",
                )
            )
        evidence += [
            Evidence(
                text=f"{ms(span.exposed_ms)} preparing the batch between fetch and forward",
                value=span.exposed_ms,
                unit="ms/step",
                source="trace",
                site=span.site,
            )
            for span in facts.spans(Part.INPUT)
            if span.kind is SpanKind.PREPARATION and span.exposed_ms > NEGLIGIBLE_SHARE * facts.true_ms
        ]
        if loader is not None:
            evidence.append(
                Evidence(
                    text=f"{loader.cls} of {loader.dataset or 'data'}, num_workers={loader.num_workers}",
                    value=float(loader.num_workers),
                    unit="workers",
                    source="loader.json",
                    site=loader.site,
                )
            )
        needed = facts.number("loader.needed_workers")
        if needed is not None and loader is not None and needed > loader.num_workers:
            evidence.append(
                Evidence(
                    text=f"{needed:.0f} workers would keep up with the step",
                    value=needed,
                    unit="workers",
                    source="production time over the rest of the step",
                )
            )
        with_workers = facts.ask(WhatIf.INPUT_WORKERS)
        if with_workers is not None:
            evidence.append(predicted_evidence(with_workers, "more workers predict"))
        if loader is None:
            sites = [facts.sampled_site("sampled before"), *facts.sites("fetch")]
        else:
            made = loader.production.sites[:1] if loader.production is not None else []
            sites = [loader.site, *(item.site for item in made), *facts.sites("fetch")]
        own = loader is None or not loader.num_workers
        where = "makes its own input" if own else "waits for its input"
        return (
            self.finding(
                facts,
                f"Each step {where} for {ms(cost)}",
                answer=answer,
                cost_ms=cost,
                time_ms=wait,
                evidence=evidence,
                sites=sites,
                not_this="Only waiting that nothing else hid is counted.",
            ),
        )


class InputProductionSlow(Analyzer):
    """Producing one batch takes long.

    What it means
        Reading, decoding, transforming and collating one batch costs more than the step leaves
        time for. More workers share the cost; they do not lower it, and cores bound them.

    How it is measured
        The fetcher is timed where it runs, in the workers or in the main process: samples (the
        calls of dataset[i]) and collate_fn apart. Workers that keep up with the step = production
        time / (true step - its input wait).

    What it costs you
        Nothing beyond BN101: this finding says why the wait is there. Production that keeps up
        costs no step time, only cores.

    What it is not
        Not the wait itself. A production time above the step time is fine when several workers
        share it.

    What to do
        Move fixed work (decoding, resizing, tokenising) out of the epoch, transform batches instead
        of samples, use faster decoders or the GPU; then set the workers that remain necessary.

    Source
        torch.utils.data documentation; DS-Analyzer (VLDB 2021) calls it prep stall.
    """

    code = "BN102"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report production when it exceeds what the rest of the step leaves time for."""
        loader = facts.training_loader()
        if loader is None:
            return ()
        production = production_ms(loader)
        wait = facts.timeline.part_ms(Part.INPUT)
        rest = facts.true_ms - wait
        if production is None or production < 0.5 * max(rest, 1e-9):
            return ()
        if wait < NEGLIGIBLE_SHARE * facts.true_ms:
            return ()
        made = loader.production
        assert made is not None
        collate = statistics.fmean(made.collate_ms) if made.collate_ms else 0.0
        size = loader.batch_size or 0
        place = "workers" if made.where == "workers" else "main process"
        evidence = [
            Evidence(
                text=f"{ms(production)} to produce one batch"
                + (f", {ms((production - collate) / size)} per sample" if size else ""),
                value=production,
                unit="ms/batch",
                source=f"loader.json, timed in the {place}",
            ),
            Evidence(
                text=f"{ms(rest)} is what the step takes besides",
                value=rest,
                unit="ms/step",
                source="baseline window",
            ),
        ]
        if collate > 0.25 * production:
            evidence.append(
                Evidence(
                    text=f"{ms(collate)} of it in collate_fn",
                    value=collate,
                    unit="ms/batch",
                    source="loader.json",
                )
            )
        evidence += [
            Evidence(
                text=f"{item.site.file}:{item.site.line} took part in it",
                value=item.total_ms,
                unit="ms",
                source="worker samples",
                site=item.site,
            )
            for item in made.sites[:3]
        ]
        return (
            self.finding(
                facts,
                f"One batch takes {ms(production)} to produce, the rest of the step {ms(rest)}",
                time_ms=production,
                evidence=evidence,
                sites=[item.site for item in made.sites[:3]] or [loader.site],
                not_this="Shared by enough workers, this time need not appear in the step.",
            ),
        )


class InputBursty(Analyzer):
    """The supply keeps up on average, yet single fetches wait.

    What it means
        Batches come in bursts: the workers finish together, or some samples are far dearer than
        others, and the queue (prefetch_factor x workers) is too short to carry the step over.

    How it is measured
        Per-fetch waits of the baseline window. Bursty means: mean production over the workers is
        below the step without its wait, and still a tenth of the fetches hold most of the wait.

    What it costs you
        The whole wait of BN101; no price of its own.

    What it is not
        Not slow production: then every fetch waits, or every N-th one with N workers.

    What to do
        Raise prefetch_factor, sort or bucket samples of uneven cost, split rare dear work off.

    Source
        torch.utils.data documentation, prefetch_factor.
    """

    code = "BN103"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report bursts when the context says so and they cost something."""
        loader = facts.training_loader()
        if loader is None or facts.is_on("loader.bursty") is not True:
            return ()
        if facts.timeline.part_ms(Part.INPUT) < NEGLIGIBLE_SHARE * facts.true_ms:
            return ()
        middle, longest = statistics.median(loader.wait_ms), max(loader.wait_ms)
        return (
            self.finding(
                facts,
                f"The slowest tenth of the fetches hold {percent(burst_share(loader))} of the wait",
                time_ms=facts.phases_ms.get("data"),
                evidence=[
                    Evidence(
                        text=f"median wait {ms(middle)}, longest {ms(longest)}",
                        value=longest,
                        unit="ms",
                        source="baseline window",
                    )
                ],
                sites=[loader.site],
                not_this="Production keeps up on average; more workers alone may not help.",
            ),
        )


class WorkerStartUp(Analyzer):
    """Workers are started anew for every epoch.

    What it means
        Without persistent_workers each new iterator forks or spawns its workers, which import the
        program, copy the dataset object and fill the queue before the first batch arrives.

    How it is measured
        Time from the creation of an iterator to its first batch, per iterator; over the steps of an
        epoch that is the price per step.

    What it costs you
        Start-up / steps per epoch. In long epochs that is nothing, in short ones it can dominate.

    What it is not
        Not part of the baseline step, which holds whole epochs only when they are short.

    What to do
        persistent_workers=True; fewer workers; a dataset object that is cheap to pickle.

    Source
        torch.utils.data documentation, persistent_workers.
    """

    code = "BN104"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price the start-up per step of an epoch."""
        loader = facts.training_loader()
        if loader is None or not loader.num_workers or loader.persistent_workers:
            return ()
        starts = [value for value in loader.startup_ms if value > 0]
        if loader.iterators < 2 or not starts or not loader.fetches:
            return ()
        start = statistics.median(starts)
        per_epoch = batches_per_iterator(loader)
        cost = start / per_epoch
        if cost < 0.005 * facts.true_ms:
            return ()
        return (
            self.finding(
                facts,
                f"Starting the workers costs {ms(start)} per {'epoch' if per_epoch > 1 else 'batch'}, "
                f"{ms(cost)} per step",
                cost_ms=min(cost, facts.true_ms),
                time_ms=start,
                evidence=[
                    Evidence(
                        text=f"{loader.iterators} iterators, {per_epoch:.0f} batches each, "
                        f"{ms(start)} from a new iterator to its first batch",
                        value=start,
                        unit="ms",
                        source="loader.json",
                        site=loader.site,
                    )
                ],
                sites=[loader.site],
                not_this="A cost per epoch, spread over its steps for comparison.",
            ),
        )
