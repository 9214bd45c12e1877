"""The loader that feeds the training: which one it is, what a batch costs, and whether supply keeps up.

In: loader.json. Out: one loader, figures of it, and what more workers, or none, would give.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...model.codes import QuestionKey, WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.run import LoaderFacts, Production, SiteTime
from ...model.words import ms, percent
from ..whose.branch import Branch
from .baseline import Baseline

_MOSTLY = 0.5
_FEWEST_FETCHES = 10
"""Of fewer, a tenth is not one."""
_KEEPS_UP = 0.9
"""Of the step without its wait: production that takes less per worker keeps up with it."""
_FULL = 0.8
"""Share of the cores' time from which production and training are taken to be short of cores."""
_BURST = 0.7
"""Share of the wait in the slowest tenth of the fetches from which the supply is called bursty."""


def training_loader(loaders: Sequence[LoaderFacts]) -> LoaderFacts | None:
    """Return the loader that feeds the training, if one was seen; never one of an evaluation."""
    able = [item for item in loaders if item.role == "train"] or [
        item for item in loaders if item.role != "eval"
    ]
    return max(able, key=lambda item: item.fetches, default=None)


def feeds_all_along(loaders: Sequence[LoaderFacts]) -> bool:
    """Return whether one loader makes all batches that are trained on."""
    return sum(item.role == "train" for item in loaders) == 1


def production_ms(loader: LoaderFacts) -> float | None:
    """Return the mean cost of one batch where it is produced, ms; None if not measured."""
    made = loader.production
    if made is None or not made.fetch_ms:
        return None
    total = statistics.fmean(made.fetch_ms)
    return total + (statistics.fmean(made.collate_ms) if made.collate_ms else 0.0)


def batches_per_step(loader: LoaderFacts) -> float:
    """Return how many batches a step fetches."""
    steps = len(set(loader.wait_step))
    return len(loader.wait_ms) / steps if steps else 1.0


def made_every_ms(loader: LoaderFacts) -> float | None:
    """Return how often workers hand over the batches of a step, ms; None if not measured."""
    made = production_ms(loader)
    return made * batches_per_step(loader) / max(1, loader.num_workers) if made is not None else None


def main_call(loader: LoaderFacts | None) -> SiteTime | None:
    """Return the line that at least half of a batch's production goes to, if it is known what it calls."""
    made = loader.production if loader is not None else None
    if made is None or not made.sites or not made.sites[0].call or _share_of_first(made) < _MOSTLY:
        return None
    return made.sites[0]


def sampled_total(made: Production) -> int:
    """Return how many samples of the production there are."""
    return max(made.samples, sum(item.count for item in made.sites))


def _share_of_first(made: Production) -> float:
    return made.sites[0].count / max(1, sampled_total(made)) if made.sites else 0.0


def _goes_with_first(made: Production | None) -> tuple[str, float]:
    """Return the user's function that goes with the first line, empty if none does, and its share.

    What torch calls itself, the dataset's methods and a collate function, stays: it makes the batch.
    """
    if made is None or not made.sites:
        return "", 0.0
    first = made.sites[0].site
    if first.function.startswith(("__", "<")) or sum(made.collate_ms) > sum(made.fetch_ms):
        return "", _share_of_first(made)
    of = sum(i.count for i in made.sites if (i.site.file, i.site.function) == (first.file, first.function))
    return first.function, of / max(1, sampled_total(made))


def batches_per_iterator(loader: LoaderFacts) -> float:
    """Return how many batches one iterator yields: the length, or fewer where it is given up early."""
    seen = loader.fetches / loader.iterators if loader.iterators else float(loader.length or 1)
    # The last pass is still under way: a mean below the length says little unless passes are many.
    whole = loader.length is not None and (loader.iterators < 3 or seen > 0.5 * loader.length)
    return max(1.0, float(loader.length) if whole and loader.length is not None else seen)


def burst_share(loader: LoaderFacts) -> float:
    """Return the share of all waiting that the slowest tenth of the fetches hold, 0..1."""
    waits = sorted(loader.wait_ms)
    total = sum(waits)
    return sum(waits[int(0.9 * len(waits)) :]) / total if total > 0 else 0.0


def is_bursty(loader: LoaderFacts | None, *, rest_ms: float) -> bool | None:
    """Return whether supply keeps up on average but single fetches wait; None if unknown."""
    if loader is None or not loader.num_workers or len(loader.wait_ms) < _FEWEST_FETCHES:
        return None
    made = made_every_ms(loader)
    return None if made is None else made < _KEEPS_UP * rest_ms and burst_share(loader) > _BURST


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSupply:
    """What producing the input of one step costs, and who does it."""

    production_ms: float
    """Serial time to produce the batches of one step."""
    batches_per_step: float
    workers: int
    where: str
    wait_ms: float
    """Of the step: waiting in the loader."""
    rows_share: float | None = None
    """Of the production: handling rows one by one; None where not known."""
    call: SiteTime | None = None
    """The user's line that at least half of the production goes to, if it is known what it calls."""
    call_function: str = ""
    """The user's function around that line, where it goes with the line."""
    call_share: float = 0.0
    """Of the production: the function, or the line alone."""
    alone_ms: float | None = None
    """What producing would take in the training process; None where no worker was timed."""
    own_ms: float = 0.0
    """Of the wait: what the training process itself does beside making a batch: drawing the indices."""
    own_call: SiteTime | None = None
    """Where most of that is, if it is most of the wait."""
    core_wait_ms: float = 0.0
    """Of the production: workers could run and had no core."""
    worker_cores: int | None = None
    """Cores that a worker may use; None where it was not asked."""
    computed_ms: float = 0.0
    """Of the production: processor time of the threads that make batches, in workers."""
    helped_ms: float = 0.0
    """Beside it: processor time of threads that libraries have started in the workers."""
    bursts: float = 0.0
    """Of the wait: in the slowest tenth of the fetches."""
    starts_ms: float = 0.0
    """Of the step: making iterators, until the first batch of each is there."""
    passes_per_step: float = 0.0
    """Iterators that are made, 1 at most: the first batch of each is not begun before it is asked for."""

    @property
    def processor_ms(self) -> float:
        """Processor time of making batches in workers; 0 where it was not measured."""
        return self.computed_ms + self.helped_ms

    @property
    def main_call(self) -> SiteTime | None:
        """The line that the input of a step waits for most, if it is known what it calls."""
        return self.own_call or self.call


def input_supply(
    loaders: Sequence[LoaderFacts],
    *,
    wait_ms: float,
    cores: int | None = None,
    fetching: Branch | None = None,
) -> InputSupply | None:
    """Join the training loader's production cost with the step.

    `fetching` is what the training process does beside making a batch, while it fetches (`Tree.in_fetches`).
    """
    loader = training_loader(loaders)
    if loader is None:
        return None
    per_step, made = batches_per_step(loader), loader.production
    one = production_ms(loader)
    if one is not None:
        production = one * per_step
    elif loader.num_workers == 0:
        production = wait_ms
    else:
        return None
    function, share = _goes_with_first(made)
    own_ms = min(wait_ms, fetching.total_ms) if fetching is not None else 0.0
    knows_passes = loader.length is not None or loader.iterators > 1  # a first pass may never end
    passes = min(1.0, per_step / batches_per_iterator(loader)) if knows_passes else 0.0
    alone = None
    if loader.num_workers and made is not None and made.fetch_ms:
        # More workers than cores keep each other waiting: their median batch is nearer to one made alone.
        typical = statistics.median if cores is not None and loader.num_workers > cores else statistics.fmean
        alone = per_step * (typical(made.fetch_ms) + (typical(made.collate_ms) if made.collate_ms else 0.0))
    return InputSupply(
        production_ms=production,
        batches_per_step=per_step,
        workers=loader.num_workers,
        where="workers" if loader.num_workers else "main",
        wait_ms=wait_ms,
        rows_share=made.rows_share if made is not None else None,
        call=main_call(loader),
        call_function=function,
        call_share=share,
        alone_ms=alone,
        own_ms=own_ms,
        core_wait_ms=per_step * statistics.fmean(made.core_wait_ms) if made and made.core_wait_ms else 0.0,
        worker_cores=made.worker_cores if made is not None else None,
        computed_ms=per_step * (made.computed_ms or 0.0) if made is not None else 0.0,
        helped_ms=per_step * (made.helped_ms or 0.0) if made is not None else 0.0,
        own_call=fetching.most().site_time() if fetching is not None and own_ms > _MOSTLY * wait_ms else None,
        bursts=burst_share(loader),
        starts_ms=passes * statistics.fmean(loader.startup_ms) if loader.startup_ms else 0.0,
        passes_per_step=passes,
    )


def workers_needed(supply: InputSupply, *, rest_ms: float) -> int:
    """Return the workers whose supply keeps up with the step that never waits for input."""
    return max(1, math.ceil(supply.production_ms / max(rest_ms + supply.own_ms, 1e-6)))


def supply_answers(
    supply: InputSupply,
    *,
    rest_ms: float,
    true_ms: float,
    cores: int | None,
    first_cores: int | None,
    baseline: Baseline | None,
) -> dict[QuestionKey, WhatIfResult]:
    """Answer what no replay can: the producers are other processes, or should be.

    `rest_ms` is the step when no batch is waited for, `cores` those that workers may use, `first_cores` those
    with which the process began; the baseline's processor time says what production and training share. What
    the training process itself does for a batch stays, however many workers there are.
    """
    busy_ms = rest_ms + supply.own_ms
    in_main = _in_main(supply, rest_ms=busy_ms, true_ms=true_ms)
    handed = _handed_over(supply, rest_ms=rest_ms, true_ms=true_ms)
    if handed is not None:
        # Production is not what the step waits for.
        return {each.question: each for each in (handed, in_main) if each is not None and each.saves_ms > 0}
    found = (
        _more_workers(supply, rest_ms=busy_ms, true_ms=true_ms, cores=cores, baseline=baseline),
        in_main,
        _on_cores(supply, rest_ms=busy_ms, true_ms=true_ms, cores=first_cores),
        _one_thread(supply, rest_ms=busy_ms, true_ms=true_ms),
    )
    answers = [answer for answer in found if answer is not None and answer.saves_ms > 0]
    # A part of the production that costs nothing is an answer, too.
    on_cores = _share_of_cores(supply, true_ms=true_ms, cores=cores, baseline=baseline)
    parts = _divided(supply, rest_ms=rest_ms, true_ms=true_ms, share_of_cores=on_cores)
    return {answer.question: answer for answer in (*answers, *parts)}


def made_ahead(ready: WhatIfResult, *, host_ms: float, true_ms: float) -> WhatIfResult:
    """Ask a step that makes its own batch for the one in which one other thread makes the next meanwhile.

    `ready` is the step for which each batch is there at once. Making one takes what that saves, or `host_ms`,
    the host's own work on it, where the device hides some of it. The longer of making and the rest remains.
    """
    making_ms = max(ready.saves_ms, host_ms)
    step_ms = min(max(ready.step_ms, making_ms), true_ms)
    return WhatIfResult(
        question=WhatIf.INPUT_AHEAD,
        step_ms=step_ms,
        saves_ms=true_ms - step_ms,
        basis=f"{ms(making_ms)} to make a batch in one other thread, at the same time as "
        f"{ms(ready.step_ms)} of everything else",
        bound=True,
    )


def _handed_over(supply: InputSupply, *, rest_ms: float, true_ms: float) -> WhatIfResult | None:
    """Ask for the step if batches that workers have made were there at once.

    An answer where the workers keep up and nearly each fetch waits nevertheless: for what comes after them.
    """
    if supply.alone_ms is None or supply.bursts > _BURST:
        return None
    if max(supply.own_ms, supply.starts_ms) > _MOSTLY * supply.wait_ms:
        return None
    made_ms = supply.production_ms / supply.workers
    if made_ms >= _KEEPS_UP * rest_ms or rest_ms >= true_ms:
        return None
    return WhatIfResult(
        question=WhatIf.BATCHES_HANDED_OVER,
        step_ms=rest_ms,
        saves_ms=true_ms - rest_ms,
        basis=f"{supply.workers} workers make the input of a step in {ms(made_ms)}, less than the "
        f"{ms(rest_ms)} of everything else: it waits for batches that are made",
        bound=True,
    )


def _more_workers(
    supply: InputSupply, *, rest_ms: float, true_ms: float, cores: int | None, baseline: Baseline | None
) -> WhatIfResult | None:
    if not cores:
        return None
    # More workers than cores only pay while they sleep on a disk, which is not assumed.
    workers = min(workers_needed(supply, rest_ms=rest_ms - supply.own_ms), cores)
    if workers <= supply.workers:
        return None
    cpu_rest, cpu_production = rest_ms, supply.production_ms
    cpu = baseline.processor_ms if baseline is not None else None
    if cpu is not None:
        if supply.where == "main":
            cpu_production = min(supply.production_ms, max(0.0, cpu - rest_ms))
            cpu_rest = max(0.0, cpu - cpu_production)
        else:
            cpu_rest = cpu
            # A worker that waits for a disk needs no core meanwhile.
            cpu_production = min(supply.production_ms, supply.processor_ms or supply.production_ms)
    shared = (cpu_rest + cpu_production) / cores
    ahead = max(rest_ms, supply.production_ms / workers, shared)
    first = supply.passes_per_step
    step = min(first * (rest_ms + supply.production_ms) + (1.0 - first) * ahead, true_ms)
    basis = (
        f"{ms(supply.production_ms)} of production per step on {workers} workers, at the same time as "
        f"{ms(rest_ms)} of everything else, on {cores} cores"
    )
    tight = shared > _FULL * step
    if tight:
        basis += "; production and training share the cores, so this is a bound"
    return WhatIfResult(
        question=WhatIf.INPUT_WORKERS,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=basis,
        bound=tight,
    )


def _in_main(supply: InputSupply, *, rest_ms: float, true_ms: float) -> WhatIfResult | None:
    """Ask for the step without workers, which is faster where sending batches or starting workers is slow."""
    if supply.alone_ms is None:
        return None
    step = rest_ms + supply.alone_ms
    return WhatIfResult(
        question=WhatIf.INPUT_IN_MAIN,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=f"{ms(supply.alone_ms)} to make the input of a step without workers, after "
        f"{ms(rest_ms)} of everything else; with {supply.workers} it waits {ms(supply.wait_ms)}",
    )


def _on_cores(
    supply: InputSupply, *, rest_ms: float, true_ms: float, cores: int | None
) -> WhatIfResult | None:
    """Ask for the step with workers that may use all cores with which the process began."""
    now = supply.worker_cores
    if not cores or not now or now >= cores or not supply.core_wait_ms:
        return None
    # A worker for which the step waits is never idle: beside what it makes it sends, too.
    worked_ms = max(supply.production_ms, supply.workers * true_ms) - supply.core_wait_ms
    step = max(rest_ms, worked_ms / min(supply.workers, cores))
    return WhatIfResult(
        question=WhatIf.WORKERS_ON_CORES,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=f"{ms(supply.core_wait_ms)} of {ms(supply.production_ms)} of production, in which workers wait "
        f"for a core, gone where they may use {cores} in place of {now}",
    )


def _one_thread(supply: InputSupply, *, rest_ms: float, true_ms: float) -> WhatIfResult | None:
    """Ask for the step with workers in which no library starts threads.

    A worker that waits for a core waits for these threads at most as long as all of them run. What they
    compute, the worker then computes itself, unless they only wait for one another: hence a bound. Cores that
    the training gains are not in it.
    """
    if not supply.helped_ms or not supply.core_wait_ms:
        return None
    waits_ms = min(supply.core_wait_ms, supply.workers * supply.helped_ms)
    step = max(rest_ms, true_ms - waits_ms / supply.workers)
    return WhatIfResult(
        question=WhatIf.WORKERS_ONE_THREAD,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=f"{ms(waits_ms)} of {ms(supply.production_ms)} of production, in which workers wait for a "
        f"core, gone with the threads that libraries start in them: these take {ms(supply.helped_ms)} of "
        f"processor time beside {ms(supply.computed_ms)} of the worker's own",
        bound=True,
    )


def _share_of_cores(
    supply: InputSupply, *, true_ms: float, cores: int | None, baseline: Baseline | None
) -> float:
    """Return production's share of the processor time where it and the training fill the cores; else 0."""
    made_ms = supply.processor_ms
    cpu_ms = baseline.processor_ms if baseline is not None else None
    if not cores or not made_ms or cpu_ms is None:
        return 0.0
    used_ms = made_ms + cpu_ms
    return made_ms / used_ms if used_ms > _FULL * cores * true_ms else 0.0


def _divided(
    supply: InputSupply, *, rest_ms: float, true_ms: float, share_of_cores: float
) -> Iterator[WhatIfResult]:
    """Ask for the step without parts of the production, where samples tell them apart.

    While the step waits, its length is that of production: what a batch takes less, the step takes less,
    until nothing is waited for. Where workers and training fill the cores, the training gets what is not
    computed any more, whether it waits for batches or not; how much of that it can use is not known.
    """
    # Without workers the wait is the production, with what is around it.
    each = supply.production_ms / supply.workers if supply.workers else supply.wait_ms

    def without(
        question: WhatIf, ms_gone: float, basis: str, *, bound: bool, call: str = "", callee: str = ""
    ) -> WhatIfResult:
        step = max(rest_ms, true_ms - ms_gone)
        share = min(1.0, ms_gone / max(each, 1e-6))
        on_cores = max(true_ms * (1.0 - share * share_of_cores), (1.0 - share) * each)
        if on_cores < step:
            step, bound = on_cores, True
            basis += "; workers and training fill the cores, so that the training gets that processor time"
        return WhatIfResult(
            question=question,
            call=call,
            callee=callee,
            step_ms=step,
            saves_ms=true_ms - step,
            basis=basis,
            bound=bound,
        )

    own = supply.own_call
    if own is not None:
        yield without(
            WhatIf.PRODUCTION_CHEAPER,
            supply.own_ms,
            f"without the {ms(supply.own_ms)} that the training process itself spends in a fetch, mostly for "
            f"`{own.call}` at {own.site.short}",
            bound=False,
            call=own.call,
        )
        return
    rows = supply.rows_share
    if rows is None:
        return
    yield without(
        WhatIf.ROWS_BATCHED,
        rows * each,
        f"{percent(rows)} of {ms(supply.production_ms)} of production goes to fetching and collating rows "
        "one by one, by samples of its stack; one call for all of them takes time, too",
        bound=False,
    )
    call = supply.call
    if call is not None:
        yield without(
            WhatIf.PRODUCTION_CHEAPER,
            supply.call_share * each,
            f"{percent(supply.call_share)} of {ms(supply.production_ms)} of production is `{call.call}` at "
            f"{call.site.short}"
            + (f" and the rest of {supply.call_function}()" if supply.call_function else ""),
            bound=False,
            call=call.call,
            callee="" if supply.call_function else call.callee,
        )
    else:
        yield without(
            WhatIf.PRODUCTION_CHEAPER,
            (1.0 - rows) * each,
            f"without the {percent(1.0 - rows)} of {ms(supply.production_ms)} of production that does more "
            "than handle rows",
            bound=True,
        )
