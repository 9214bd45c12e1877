"""What the step would take without one cause (CPU runs).

In: the budget and what is known of loaders, optimizers and cores. Out: `WhatIfResult`s. One lane
runs everything, so removing a part saves that part; only the input can overlap with the step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.codes import CLASSES, Part, WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.run import OptimizerFacts, Run
from ...model.words import ms, percent
from ..steps.baseline import Baseline
from ..steps.supply import InputSupply
from .budget import CpuBudget

__all__ = ["answer", "in_main", "remove_both", "table_share"]

_FUSED_WORK_LEFT = {
    # Processor time of the fused update over that of the for-loop, 8 tensors of a million elements,
    # one thread, torch 2.13. Counted in tensor passes one expects 7 of 20 for Adam; its temporaries
    # make the loop slower still.
    "Adam": 0.2,
    "AdamW": 0.2,
    "Adagrad": 0.35,
    "SGD": 0.82,
}
_FUSED_DISPATCH_LEFT = 0.25
"""The same for 100 tensors of 4096 elements, where dispatch is nearly all: 0.28 for AdamW, of which
some is work; what stays is collecting parameters, state and gradients."""


_DOUBLE_OVER_SINGLE = 0.5
"""Share of the work that goes with float32 for float64: both the vector width and the bytes halve."""


def _input_workers(
    supply: InputSupply, *, true_ms: float, baseline: Baseline | None, cores: int | None
) -> WhatIfResult | None:
    if supply.needed_workers is None or not cores:
        return None
    # More workers than cores only pay while they sleep on a disk, which is not assumed.
    workers = min(supply.needed_workers, cores)
    if workers <= supply.workers:
        return None
    rest = max(0.0, true_ms - supply.wait_ms)
    cpu_rest, cpu_production = rest, supply.production_ms
    if baseline is not None and baseline.user_ms is not None and baseline.system_ms is not None:
        cpu = baseline.user_ms + baseline.system_ms
        if supply.where == "main":
            cpu_production = min(supply.production_ms, max(0.0, cpu - rest))
            cpu_rest = max(0.0, cpu - cpu_production)
        else:
            cpu_rest = cpu
    shared = (cpu_rest + cpu_production) / cores
    step = max(rest, supply.production_ms / workers, shared)
    step = min(step, true_ms)
    basis = (
        f"{ms(supply.production_ms)} of production per step spread over {workers} workers, beside "
        f"{ms(rest)} of everything else, on {cores} cores"
    )
    tight = shared > 0.8 * step
    if tight:
        basis += "; production and training share the cores, so this is the most it can give"
    return WhatIfResult(
        question=WhatIf.INPUT_WORKERS,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=basis,
        bound=tight,
    )


def in_main(supply: InputSupply, *, rest_ms: float, true_ms: float) -> WhatIfResult | None:
    """Ask for no workers: where shipping a batch costs more than making it, or starting them does.

    Args:
        supply: the training loader.
        rest_ms: the step when no batch is waited for.
        true_ms: the step.
    """
    if supply.alone_ms is None:
        return None
    step = rest_ms + supply.alone_ms
    if step >= true_ms:
        return None
    return WhatIfResult(
        question=WhatIf.INPUT_IN_MAIN,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=f"{ms(supply.alone_ms)} to make the input of a step without workers, after "
        f"{ms(rest_ms)} of everything else; with {supply.workers} it waits {ms(supply.wait_ms)}",
    )


def table_share(run: Run | None) -> float:
    """Return the share of the parameters in embedding tables whose gradient could be sparse."""
    value = run.settings.get("embedding.dense_share") if run is not None else None
    return float(value) if isinstance(value, (int, float)) else 0.0


def _optimizer_fused(budget: CpuBudget, optimizers: Sequence[OptimizerFacts]) -> tuple[float, str] | None:
    able = [o for o in optimizers if o.cls in _FUSED_WORK_LEFT and o.flavour != "fused" and not o.compiled]
    if not able or len(able) != len(optimizers):
        return None
    left = sum(_FUSED_WORK_LEFT[o.cls] for o in able) / len(able)
    saves = budget.parts[Part.OPTIMIZER] * (1.0 - left)
    saves += budget.optimizer_dispatch_ms * (1.0 - _FUSED_DISPATCH_LEFT)
    return saves, (
        f"the optimizer's operators become one: {ms(budget.optimizer_dispatch_ms)} of dispatch goes "
        f"but for {percent(_FUSED_DISPATCH_LEFT)}, its work falls to {percent(left)} (measured on another"
        " machine)"
    )


def answer(
    budget: CpuBudget,
    *,
    true_ms: float,
    baseline: Baseline | None,
    supply: InputSupply | None,
    optimizers: Sequence[OptimizerFacts],
    compiled: bool,
    cores: int | None,
    table_share: float = 0.0,
    table_ms: float = 0.0,
    recomputed_ms: float = 0.0,
) -> dict[WhatIf, WhatIfResult]:
    """Answer every question that the budget can answer.

    Args:
        budget: the step's parts.
        true_ms: the step.
        baseline: unprofiled means.
        supply: the training loader.
        optimizers: as constructed.
        compiled: compiled code runs.
        cores: that workers may use.
        table_share: of the parameters, in embedding tables whose gradient could be sparse.
        table_ms: what making their gradient takes.
        recomputed_ms: forward work that backward repeats.
    """
    out: dict[WhatIf, WhatIfResult] = {}

    def ask(question: WhatIf, saves: float, basis: str, *, bound: bool = False) -> None:
        saves = min(max(saves, 0.0), true_ms)
        if saves > 0:
            out[question] = WhatIfResult(
                question=question, step_ms=true_ms - saves, saves_ms=saves, basis=basis, bound=bound
            )

    parts = budget.parts
    ask(
        WhatIf.INPUT_READY,
        parts[Part.INPUT],
        "one lane: the step without the time in which the training thread waits for or makes its input",
    )
    if supply is not None:
        ask(
            WhatIf.WORKERS_KEPT,
            min(supply.startup_ms, parts[Part.INPUT]),
            f"{ms(supply.startup_ms)} per step from new iterators to their first batches, median",
        )
        workers = _input_workers(supply, true_ms=true_ms, baseline=baseline, cores=cores)
        if workers is not None and workers.saves_ms > 0:
            out[WhatIf.INPUT_WORKERS] = workers
        without = in_main(supply, rest_ms=true_ms - supply.wait_ms, true_ms=true_ms)
        if without is not None:
            out[WhatIf.INPUT_IN_MAIN] = without
    ask(
        WhatIf.ALLOCATOR_FREE,
        budget.faults_ms,
        "system time per step of the baseline window, as far as page faults explain it; the pages' "
        "cold caches come on top",
    )
    ask(
        WhatIf.DISPATCH_FREE,
        parts[Part.DISPATCH],
        "every operator's fixed cost and the Python between operators gone",
        bound=True,
    )
    if not compiled:
        ask(
            WhatIf.COMPILED,
            budget.training_dispatch_ms,
            "dispatch of forward and backward gone; fused element-wise work would come on top, guards off",
            bound=True,
        )
    if any(o.parameter_dtype == "float64" for o in optimizers):
        work = parts[Part.OTHER_MATH] + parts[Part.MEMORY_BOUND] + parts[Part.OPTIMIZER]
        ask(
            WhatIf.SINGLE_PRECISION,
            _DOUBLE_OVER_SINGLE * work,
            "operators' work halved: half the bytes, and twice the numbers in each vector register",
        )
    fused = _optimizer_fused(budget, optimizers)
    if fused is not None:
        ask(WhatIf.OPTIMIZER_FUSED, fused[0], fused[1])
    ask(
        WhatIf.RECOMPUTE_GONE,
        recomputed_ms,
        f"{ms(recomputed_ms)} of forward operators inside nodes of backward gone; what saving them "
        "costs goes, too",
    )
    if table_share > 0:
        ask(
            WhatIf.SPARSE_ROWS,
            # The profiled time of making the gradient holds its page faults, which are counted already.
            table_share * (parts[Part.OPTIMIZER] + budget.faults_ms)
            + min(table_ms, parts[Part.MEMORY_BOUND]),
            f"the embedding tables' {percent(table_share)} of the update and of the page faults gone, and"
            f" their gradient ({ms(table_ms)}), as few rows are touched",
        )
    ask(
        WhatIf.SEAMS_GONE,
        budget.seams_ms,
        "every crossing of a break at the mean cost of entering and leaving compiled code, with the Python "
        "between; what fusing across them would give comes on top",
    )
    ask(
        WhatIf.NO_COMPILE,
        parts[Part.COMPILE],
        "baseline: mean step less mean step without a compilation in it",
    )
    if baseline is not None and baseline.micro_steps > 1:
        ask(
            WhatIf.COMM_ONCE,
            parts[Part.COMMUNICATION] * (1.0 - 1.0 / baseline.micro_steps),
            f"collectives of one of {baseline.micro_steps:.0f} backward passes left",
        )
    ask(
        WhatIf.COMM_OVERLAPPED,
        parts[Part.COMMUNICATION],
        "time of the training thread inside collectives gone",
        bound=True,
    )
    if baseline is not None and baseline.evaluates:
        ask(
            WhatIf.FORWARD_STORED,
            baseline.phases_ms.get("evaluation", 0.0),
            "the step without the model that runs without gradients; reading what was stored comes on top",
            bound=True,
        )
    host = parts[Part.HOST] - budget.collector_ms
    ask(WhatIf.HOST_WORK_GONE, host, "one lane: Python outside operators and phases gone")
    ask(
        WhatIf.GC_FREE,
        budget.collector_ms,
        "collector time measured by gc.callbacks in the baseline",
    )
    return out


def remove_both(
    what_ifs: dict[WhatIf, WhatIfResult], *, true_ms: float
) -> dict[tuple[WhatIf, WhatIf], float]:
    """Step with two causes gone: on one lane disjoint savings add up.

    Pairs that remove the same time (all dispatch, and the optimizer's) are left out.
    """
    disjoint = (question for entry in CLASSES.values() for question in entry.questions)
    asked = [question for question in disjoint if question in what_ifs]
    return {
        (first, then): max(0.0, true_ms - what_ifs[first].saves_ms - what_ifs[then].saves_ms)
        for first in asked
        for then in asked
        if first is not then
    }
