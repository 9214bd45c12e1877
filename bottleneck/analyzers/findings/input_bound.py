"""Input-bound: the step waits for its next batch.

In: facts. Out: findings BN101 to BN104.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ...model.codes import Part, WhatIf
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.run import LoaderFacts, SiteTime
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
        Between two steps the training has nothing to compute on, because the next batch is not
        ready. The DataLoader blocks in `__next__`, or the training thread itself decodes,
        transforms and collates the samples: with num_workers=0, or in a hand-written `get_batch`.

    How it is measured
        The time in the loader is measured in the baseline window, with no profiler attached. On a
        GPU the trace shows how much of it left the device idle, and only that part counts. Python
        between the fetch and the forward counts as preparing the batch.

    What it costs you
        The step is replayed with every batch ready immediately; the difference is the price. More
        workers cannot always save all of it: the step still takes at least production time /
        workers. That is predicted separately.

    What it is not
        Not the time shown for `DataLoader.__next__` in a profile: waiting costs nothing while the
        GPU still runs queued kernels. Not the copy to the device (BN701, BN702).

    What to do
        Raise num_workers until the loader keeps up. If batches are slow to produce (BN102), make
        producing them cheaper or do the work once, ahead of the training. Without a DataLoader,
        move the work into one: its workers overlap with the step.

    Source
        torch.utils.data documentation, "Single- and Multi-process Data Loading"; Mohan et al.,
        "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021.
    """

    code = "BN101"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price the wait, with evidence from the loader that causes it."""
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
        title = f"Each step {where} for {ms(cost)}"
        slow = _main_call(loader)
        if slow is not None:
            title += f", mostly for `{slow.call}` at {slow.site.file.rpartition('/')[2]}:{slow.site.line}"
        return (
            self.finding(
                facts,
                title,
                answer=answer,
                cost_ms=cost,
                time_ms=wait,
                evidence=evidence,
                sites=sites,
                not_this="Only waiting that overlaps with no other work is counted.",
            ),
        )


def _main_call(loader: LoaderFacts | None) -> SiteTime | None:
    """Return the line that most of a batch's production goes to, where it is known what it calls."""
    sites = loader.production.sites if loader is not None and loader.production is not None else []
    if not sites or not sites[0].call or 2 * sites[0].count < sum(item.count for item in sites):
        return None
    return sites[0]


class InputProductionSlow(Analyzer):
    """Batches are slow to produce.

    What it means
        Reading, decoding, transforming and collating one batch takes longer than the rest of the
        step. More workers share this cost but do not lower it, and the number of cores limits them.

    How it is measured
        The loading code is timed where it runs, in the workers or in the main process; samples
        (calls of dataset[i]) and collate_fn are timed separately. The number of workers that keeps
        up with the step is production time / (true step - its input wait).

    What it costs you
        Nothing beyond BN101: this finding says why the step waits. Production that keeps up costs
        no step time, only cores.

    What it is not
        Not the wait itself. It is fine if producing a batch takes longer than a step, as long as
        several workers share it.

    What to do
        Move fixed work (decoding, resizing, tokenising) out of the epoch, transform batches instead
        of samples, use faster decoders or the GPU. Then set as many workers as are still needed.

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
        where = "workers" if made.where == "workers" else "main process"
        evidence = [
            Evidence(
                text=f"{ms(production)} to produce one batch"
                + (f", {ms((production - collate) / size)} per sample" if size else ""),
                value=production,
                unit="ms/batch",
                source=f"loader.json, timed in the {where}",
            ),
            Evidence(
                text=f"{ms(rest)} is what the rest of the step takes",
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
                text=f"{ms(item.total_ms / made.batches)} of it at {item.site.file}:{item.site.line}"
                + (f", in {item.call}" if item.call else ""),
                value=item.total_ms / made.batches,
                unit="ms/batch",
                source=f"stack samples of the {where}",
                site=item.site,
            )
            for item in made.sites[:3]
            if item.total_ms is not None and made.batches
        ]
        return (
            self.finding(
                facts,
                f"One batch takes {ms(production)} to produce, the rest of the step {ms(rest)}",
                time_ms=production,
                evidence=evidence,
                sites=[item.site for item in made.sites[:3]] or [loader.site],
                not_this="With enough workers this time does not appear in the step.",
            ),
        )


class InputBursty(Analyzer):
    """The loader keeps up on average, but single fetches wait.

    What it means
        Batches arrive in bursts: the workers finish together, or some samples are far more
        expensive than others. The queue (prefetch_factor x workers) is too short to bridge the
        gaps.

    How it is measured
        The wait of every fetch in the baseline window. Bursty means: production time / workers is
        below the step without its wait, and yet a tenth of the fetches account for most of the
        wait.

    What it costs you
        It causes the wait of BN101, and has no price of its own.

    What it is not
        Not slow production: then every fetch waits, or with N workers every N-th.

    What to do
        Raise prefetch_factor, sort or bucket samples of uneven cost, move rare expensive work
        elsewhere.

    Source
        torch.utils.data documentation, prefetch_factor.
    """

    code = "BN103"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report bursts where the context shows them and they cost time."""
        loader = facts.training_loader()
        if loader is None or facts.is_on("loader.bursty") is not True:
            return ()
        if facts.timeline.part_ms(Part.INPUT) < NEGLIGIBLE_SHARE * facts.true_ms:
            return ()
        middle, longest = statistics.median(loader.wait_ms), max(loader.wait_ms)
        return (
            self.finding(
                facts,
                f"The slowest tenth of the fetches account for {percent(burst_share(loader))} of the wait",
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
    """The workers are started again for every epoch.

    What it means
        Without persistent_workers each new iterator forks or spawns new workers. They import the
        program, copy the dataset object and fill the queue before the first batch arrives.

    How it is measured
        The time from the creation of each iterator to its first batch, divided by the steps of an
        epoch.

    What it costs you
        Start-up time / steps per epoch. In long epochs that is negligible, in short ones it can
        dominate.

    What it is not
        Usually not part of the baseline step: the baseline window contains whole epochs only if
        they are short.

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
                not_this="It is a cost per epoch, divided by its steps for comparison.",
            ),
        )
