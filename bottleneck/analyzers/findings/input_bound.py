"""Input-bound: the step waits for its next batch.

In: facts. Out: findings BN101 to BN108.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import msgspec

from ...model.codes import Part, WhatIf
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.view import CodeNode
from ...model.words import byte_size, ms, percent
from ...timeline.result import SpanKind
from ...timeline.steps.loop_lines import MAIN_SHARE, NEARLY_ALL, rounds_of
from ...timeline.steps.starts import LoaderStarts, WorkerStarts
from ...timeline.steps.supply import burst_share, production_ms
from ..base import Analyzer, Facts, predicted_evidence


class WaitingForInput(Analyzer):
    """The step waits for its next batch.

    What it means
        Between two steps the training has nothing to compute on, because the next batch is not
        ready. The DataLoader blocks in `__next__`, or the training thread itself decodes,
        transforms and collates the samples: with num_workers=0, or in a hand-written `get_batch`.

    How it is measured
        The time in the loader is measured in the baseline window, with no profiler attached. On a
        GPU the trace shows how much of it left the device idle, and only that part counts. Python
        between the fetch and the forward counts as preparing the batch. Where no step fetches one, so
        does what stands between the update and the next forward and has a value that is used.

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
        move the work into one: its workers overlap with the step. Where the rounds of a loop make the
        batch sample by sample, do it for all at once.

    Source
        torch.utils.data documentation, "Single- and Multi-process Data Loading"; Mohan et al.,
        "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021.
    """

    code = "BN101"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the wait, with evidence from the loader that causes it."""
        answer = facts.ask(WhatIf.INPUT_READY)
        exposed = facts.timeline.part_ms(Part.INPUT)
        cost = answer.saves_ms if answer is not None else (exposed if facts.timeline.kind == "cpu" else None)
        if cost is None or cost <= 0:
            return
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
        slow, starts = facts.timeline.input_call, facts.timeline.starts
        call = ""
        if starts is not None and starts.cost_ms >= MAIN_SHARE * cost:
            title += f", {ms(starts.cost_ms)} of it to start workers"
            sites = [*(each.loader.site for each in starts.loaders), *sites]
        elif loader is None and (rounds := _made_in_rounds(facts, cost)) is not None:
            call = f"`{rounds.name}`"
            assert rounds.site is not None
            title += f", mostly in the rounds of a loop: {call} at {rounds.site.short}"
            sites = [rounds.site, *sites]
        elif slow is not None:
            title += f", mostly for `{slow.call or slow.site.function}` at {slow.site.short}"
            sites = sites if slow.site in sites else [slow.site, *sites]
        found = self.finding(
            facts,
            title,
            answer=answer,
            cost_ms=cost,
            time_ms=wait,
            evidence=evidence,
            sites=sites,
            not_this="Only waiting that overlaps with no other work is counted.",
        )
        yield msgspec.structs.replace(found, call=call, in_rounds=bool(call))


def _made_in_rounds(facts: Facts, cost_ms: float) -> CodeNode | None:
    """Return the rounds of the one loop that nearly all of the input is made in; None where there is none."""
    if facts.timeline.tree is None:
        return None
    makes = facts.timeline.tree.parts("input")
    rounds = rounds_of(makes, facts.run.loops if facts.run is not None else ())
    least_ms = NEARLY_ALL * max(cost_ms, sum(node.ms for node in makes))
    return rounds[0] if rounds and rounds[0].own_ms() >= least_ms else None


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

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report production when it exceeds what the rest of the step leaves time for."""
        loader = facts.training_loader()
        if loader is None:
            return
        production = production_ms(loader)
        wait = facts.timeline.part_ms(Part.INPUT)
        rest = facts.true_ms - wait
        if facts.ask(WhatIf.BATCHES_HANDED_OVER) is not None:
            return
        if production is None or production < 0.5 * max(rest, 1e-9):
            return
        if wait < NEGLIGIBLE_SHARE * facts.true_ms:
            return
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
        if made.rows_share is not None:
            evidence.append(
                Evidence(
                    text=f"{percent(made.rows_share)} of it handling rows one by one, in no call of yours",
                    value=made.rows_share,
                    unit="share",
                    source=f"stack samples of the {where}",
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
        yield self.finding(
            facts,
            f"One batch takes {ms(production)} to produce, the rest of the step {ms(rest)}",
            time_ms=production,
            evidence=evidence,
            sites=[item.site for item in made.sites[:3]] or [loader.site],
            not_this="With enough workers this time does not appear in the step.",
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

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report bursts where the context shows them and they cost time."""
        loader = facts.training_loader()
        if loader is None or facts.is_on("loader.bursty") is not True:
            return
        if facts.timeline.part_ms(Part.INPUT) < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        middle, longest = statistics.median(loader.wait_ms), max(loader.wait_ms)
        yield self.finding(
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
        )


class WorkerStartUp(Analyzer):
    """Worker processes are started again and again.

    What it means
        Without persistent_workers each new iterator forks or spawns new workers, for every epoch of
        the training and for every evaluation. They import the program, copy the dataset object and
        fill the queue before the first batch arrives.

    How it is measured
        Each start is timed: making the iterator, the wait for its first batch beyond what a batch
        takes to make, and stopping the workers at its end. Forward, backward and update of the steps
        that hold a start are compared with those of others: memory shared with a new process is
        copied when it is written to. How often there is a start is counted over all steps.

    What it costs you
        The time of a start times how many there are per step, wherever in the loop they lie. It is
        part of the step time. In long epochs it is negligible, in short ones it can dominate.

    What it is not
        Not the first start of a persistent worker: that happens once. Where every step with a start
        holds an evaluation, too, that may have a part in what slows the rest of the step.

    What to do
        persistent_workers=True, no workers where batches are cheap, or fewer; a dataset object that is
        cheap to pickle.

    Source
        torch.utils.data documentation, persistent_workers.
    """

    code = "BN104"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the starts of all loaders."""
        starts, answer = facts.timeline.starts, facts.ask(WhatIf.WORKERS_KEPT)
        if starts is None or starts.cost_ms < 0.005 * facts.true_ms:
            return
        first = starts.loaders[0]
        site = first.loader.site
        at = f" of the loader at {site.short}" if site is not None else ""
        more = f", of {len(starts.loaders)} loaders" if len(starts.loaders) > 1 else ""
        yield self.finding(
            facts,
            f"Starting the workers{at} takes {ms(first.each_ms)}, {first.how_often}: "
            f"{ms(starts.cost_ms)} per step{more}",
            answer=answer,
            cost_ms=starts.cost_ms,
            time_ms=first.each_ms,
            evidence=[*(_start_evidence(each) for each in starts.loaders), *_slowed_evidence(starts)],
            sites=[each.loader.site for each in starts.loaders],
            not_this="What a batch takes to make is not counted: it stays when the workers do.",
        )


def _slowed_evidence(starts: WorkerStarts) -> Sequence[Evidence]:
    if starts.slowed_ms <= 0:
        return ()
    text = f"{ms(starts.slowed_ms)} per step by which training is slower in the steps with a start"
    return [Evidence(text=text, value=starts.slowed_ms, unit="ms/step", source="baseline window")]


def _start_evidence(each: LoaderStarts) -> Evidence:
    loader = each.loader
    return Evidence(
        text=f"{len(loader.starts)} starts of {loader.num_workers} workers"
        f"{'' if each.trains else ' outside the training'}: {ms(each.each_ms)} each, "
        f"{ms(each.cost_ms)} per step",
        value=each.cost_ms,
        unit="ms/step",
        source="loader.json",
        site=loader.site,
    )


class DatasetSent(Analyzer):
    """The dataset object is pickled for each worker.

    What it means
        Workers that are spawned get a copy of the dataset object through a pipe. The training
        process pickles it for each of them, and starts the next one only when the one before has
        read it.

    How it is measured
        What is pickled while an iterator is made is timed and measured in bytes, and so is reading
        it in the worker. More than a pipe holds (64 KiB) makes the starts follow one another.

    What it costs you
        The start as it is, less the start of one worker that is sent next to nothing: without a
        large object all of them start at the same time. It is part of the price of BN104.

    What it is not
        Not the samples that workers send back. Workers that are forked get no copy by a pipe.

    What to do
        Keep paths and records in one array in a file and open it in the worker, at the first sample.

    Source
        torch.utils.data documentation, "Platform-specific behaviors"; Python documentation,
        multiprocessing, "Contexts and start methods".
    """

    code = "BN105"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price what is sent to the workers."""
        starts, answer = facts.timeline.starts, facts.ask(WhatIf.DATASET_LIGHT)
        if starts is None or answer is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        each = max(starts.loaders, key=lambda each: each.sent_ms)
        loader = each.loader
        start = loader.starts[-1]
        yield self.finding(
            facts,
            f"Sending {loader.dataset} to {loader.num_workers} workers "
            f"({byte_size(start.pickled_bytes)}) "
            f"costs {ms(answer.saves_ms)} per step",
            answer=answer,
            time_ms=each.each_ms,
            evidence=[
                Evidence(text=f"{ms(value)} {what}", value=value, unit="ms", source="loader.json")
                for value, what in (
                    (start.pickling_ms, "to pickle it, per start"),
                    (start.unpickling_ms, "to read it, in all workers together"),
                    (start.booting_ms, "until a worker begins to read"),
                )
            ],
            sites=[loader.site],
            not_this="With persistent workers it is paid once.",
        )


class WorkersShareFewCores(Analyzer):
    """Loader workers may use fewer cores than the process began with.

    What it means
        Something took cores away from the process after it began: a library that is imported binds
        the thread that imports it to one core, or the script does so itself. Worker processes
        inherit that, and wait for one another while other cores are idle.

    How it is measured
        Each worker tells, with every batch, on how many cores it may run, and how long it could run
        and had none (Linux: /proc/thread-self/schedstat). Both are compared with the start of the
        process.

    What it costs you
        Production is taken without the waiting, and shared among the workers. The step takes at
        least as long as that, and as everything else in it. A trial gives the workers all cores.

    What it is not
        Not a job that was given few cores from its start: ask for more where it is started.

    What to do
        Give the workers the cores of the start again, in worker_init_fn. Better, find what takes
        them away: OMP_PROC_BIND, KMP_AFFINITY, GOMP_CPU_AFFINITY, sched_setaffinity.

    Source
        PyTorch issues 99625 and 101850; sched_setaffinity(2).
    """

    code = "BN106"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report workers that wait for cores which the process had at its start."""
        answer = facts.ask(WhatIf.WORKERS_ON_CORES)
        loader = facts.training_loader()
        made = loader.production if loader is not None else None
        if answer is None or loader is None or made is None or facts.run is None:
            return
        waited = sum(made.core_wait_ms) / max(1e-9, sum(made.fetch_ms) + sum(made.collate_ms))
        now, first = made.worker_cores, facts.run.host.cores_at_start
        yield self.finding(
            facts,
            f"{loader.num_workers} workers may use {now} of the {first} cores of the start",
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{percent(waited)} of making a batch is waiting for a core",
                    value=waited,
                    unit="share",
                    source="loader.json, timed in the workers",
                )
            ],
            sites=[loader.site],
            not_this="Cores that the job never had are not counted.",
        )


class WorkersStartThreads(Analyzer):
    """Libraries start threads in each loader worker, which keep one another from the cores.

    What it means
        NumPy's BLAS, OpenMP or OpenCV start as many threads as there are cores, in each worker
        process. With a few workers there are many more threads than cores, and threads that wait for
        each other by spinning use cores that others need. torch limits its own threads in a worker to
        one, not those of other libraries.

    How it is measured
        Each worker tells, with every batch, how long it could run and had no core, and how much
        processor time threads took that Python has not started (Linux: schedstat of each).

    What it costs you
        Waiting for a core goes with these threads, at most as long as they run. What they compute,
        the worker then computes itself, unless they only wait for one another: the price is at best,
        as far as batches go (the training gets cores, too). A trial limits them.

    What it is not
        Not threads that the dataset starts in Python, and not too few cores for the workers alone.

    What to do
        Limit the libraries to one thread in worker_init_fn, with threadpoolctl and, for OpenCV,
        cv2.setNumThreads(0). Then as many workers as there are cores can each use one.

    Source
        torch.utils.data documentation (workers call torch.set_num_threads(1)); threadpoolctl's README.
    """

    code = "BN107"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report workers whose libraries' threads take cores."""
        answer = facts.ask(WhatIf.WORKERS_ONE_THREAD)
        loader = facts.training_loader()
        made = loader.production if loader is not None else None
        if answer is None or loader is None or made is None or made.helped_ms is None:
            return
        yield self.finding(
            facts,
            f"Libraries start threads in each loader worker ({loader.num_workers})",
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{ms(made.helped_ms)} of processor time per batch in threads of libraries"
                    f" (NumPy's BLAS, OpenMP, OpenCV), {ms(made.computed_ms or 0.0)} in the worker's own",
                    value=made.helped_ms,
                    unit="ms/batch",
                    source="loader.json, timed in the workers",
                ),
                Evidence(
                    text=f"{ms(statistics.fmean(made.core_wait_ms))} waiting for a core",
                    value=statistics.fmean(made.core_wait_ms),
                    unit="ms/batch",
                    source="loader.json, timed in the workers",
                ),
            ],
            sites=[*(item.site for item in made.sites[:1]), loader.site],
            not_this="Threads that Python has started are not among them.",
        )


class HandOverSlow(Analyzer):
    """Batches are made in time and arrive late.

    What it means
        The workers have batches ready and wait. Between them and the training, every tensor of a batch
        becomes a file in shared memory, whose handle goes through a socket, and is mapped again by one
        thread of the training process, which also pins it. Hundreds of small tensors, a list of dicts
        per image, take longer there than to make. A slice of a larger tensor is sent with all the
        memory that it is cut from: the whole video for a few of its frames.

    How it is measured
        Production time, timed in the workers, over their number is below the rest of the step, and
        nearly each fetch waits, not only a few.

    What it costs you
        The step is replayed with every batch ready. A batch in fewer parts still takes some time.

    What it is not
        Not slow production: more workers, or a cheaper dataset, change nothing.

    What to do
        Pack what belongs together into one tensor in collate_fn, with the lengths beside it, and split
        it on the device. Send smaller types. Clone slices where the dataset returns them.

    Source
        torch.multiprocessing documentation, "Sharing CPU tensors"; roboflow/rf-detr pull request 1399;
        embeddings-benchmark/mteb pull request 4747.
    """

    code = "BN108"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report batches that workers have made and the step waits for."""
        answer = facts.ask(WhatIf.BATCHES_HANDED_OVER)
        loader = facts.training_loader()
        if answer is None or loader is None:
            return
        made, batch = loader.production, loader.batch
        sends, evidence = "", []
        if batch is not None and batch.tensors:
            parts = len(batch.tensors)
            sends = f": it is {parts} tensors"
            evidence.append(
                Evidence(
                    text=f"{parts} tensors per batch, {byte_size(batch.bytes)} in all",
                    value=float(parts),
                    unit="tensors/batch",
                    source="loader.json",
                )
            )
            if batch.memory_bytes > 2 * batch.bytes:  # most of it is not wanted
                sends = f": {byte_size(batch.memory_bytes)} are sent for {byte_size(batch.bytes)}"
                evidence.append(
                    Evidence(
                        text=f"they are slices of {byte_size(batch.memory_bytes)}, and all of that is sent",
                        value=float(batch.memory_bytes),
                        unit="bytes",
                        source="loader.json",
                    )
                )
        if made is not None and made.busy_share is not None:
            evidence.append(
                Evidence(
                    text=f"workers make batches for {percent(made.busy_share)} of their time",
                    value=made.busy_share,
                    unit="share",
                    source="loader.json, timed in the workers",
                )
            )
        yield self.finding(
            facts,
            f"{loader.num_workers} workers keep up, but each batch arrives late{sends}",
            answer=answer,
            evidence=evidence,
            sites=[loader.site],
            not_this="Production is not slow: see the workers' time.",
        )
