"""What is known about a run besides its trace.

In: run.json, loader.json, compile.json, the step time. Out: `Facts`, which every reading starts from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...model.run import (
    CompileFacts,
    CostlyCalls,
    GraphLines,
    LoaderFacts,
    LoopTime,
    OperatorLines,
    OptimizerFacts,
    RepeatFacts,
    Run,
    SiteTime,
)
from ...model.stacks import Stacks
from ..whose.plain import AboveOperators
from ..whose.tree import Tree, build_tree
from .baseline import Baseline, read_baseline
from .rare import RareWork
from .supply import InputSupply, input_supply, training_loader

_EACH_BY_ITSELF = 2.0
"""Launches in the update per parameter, from which it runs tensor by tensor."""


# No slots: what follows from the facts is worked out once and kept.

MUCH_PADDING = 0.1
"""Share of a batch: where less is padded, grouping samples by length gains little."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known about a run besides its trace."""

    true_ms: float
    """The step time that the budget must add up to."""
    run: Run | None = None
    """None for a bare trace."""
    kept: NDArray[np.bool_] | None = None
    """Which steps of the baseline window stand behind `true_ms`."""
    loaders: Sequence[LoaderFacts] = ()
    compile_facts: CompileFacts | None = None
    rare: RareWork | None = None
    """What only some of the steps do, and `true_ms` is without."""
    true_is_profiled: bool = False
    """No unprofiled step time exists; the reading stays at profiled speed."""
    counted: Collection[str] = ()
    """Operators whose FLOPs were counted; empty when none were."""
    stacks: Stacks | None = None
    """Samples of the training thread's stack; None where none were taken."""

    @cached_property
    def baseline(self) -> Baseline | None:
        """Unprofiled means; None where no window was timed."""
        if self.run is None or self.kept is None:
            return None
        return read_baseline(self.run, kept=self.kept, true_ms=self.true_ms)

    @cached_property
    def tree(self) -> Tree | None:
        """The step by whose code it is; None where no stacks were sampled."""
        if self.stacks is None:
            return None
        breaks = self.compile_facts.breaks if self.compile_facts is not None else ()
        broken_at = [(each.site.file, each.site.line) for each in breaks if each.site is not None]
        above = AboveOperators.of(self.run)
        if self.baseline is None:
            return build_tree(
                self.stacks, true_ms=self.true_ms, phases_ms={}, broken_at=broken_at, above=above
            )
        return build_tree(
            self.stacks,
            true_ms=self.true_ms,
            phases_ms=self.baseline.phases_ms,
            grown_ms=self.baseline.grown_ms,
            steps="ordinary" if self.rare is not None else "all",
            evaluation=self.rare.ungraded_over if self.rare is not None else 0,
            broken_at=broken_at,
            above=above,
        )

    @cached_property
    def supply(self) -> InputSupply | None:
        """Production cost of the input, where measured."""
        phases = self.baseline.phases_ms if self.baseline is not None else {}
        fetching = self.tree.in_fetches() if self.tree is not None else None
        supply = input_supply(
            self.loaders, wait_ms=phases.get("data", 0.0), cores=self.cores, fetching=fetching
        )
        if supply is None or supply.workers or supply.call is not None or self.tree is None:
            return supply
        # In the training process the loader's own samples are those of the warm-up: few.
        line, whole_ms = self.tree.input_line(), self.tree.input_branch().total_ms
        if line is None or not line.call:
            return supply
        return replace(supply, call=line, call_share=(line.total_ms or 0.0) / whole_ms)

    @property
    def input_call(self) -> SiteTime | None:
        """The line that the step waits for most to have its input, and what it calls, if that is known."""
        call = self.supply.main_call if self.supply is not None else None
        return call or (self.tree.input_line() if self.tree is not None else None)

    @cached_property
    def own_input(self) -> float:
        """Share of the time between update and forward in which the step makes its batch; 0 with a loader."""
        baseline, tree = self.baseline, self.tree
        if tree is None or baseline is None or baseline.phases_ms.get("data"):
            return 0.0
        return tree.own_input_share

    @property
    def cores(self) -> int | None:
        """Cores that loader workers may use."""
        return self.run.host.cores if self.run is not None else None

    @property
    def graph(self) -> GraphLines | None:
        """The lines of the nodes of a step's graph."""
        return self.run.graph if self.run is not None else None

    @property
    def operators(self) -> OperatorLines | None:
        """The lines below which a step's operators are called."""
        return self.run.operators if self.run is not None else None

    @property
    def first_cores(self) -> int | None:
        """Cores with which the process began."""
        return self.run.host.cores_at_start if self.run is not None else None

    @property
    def collected_ms(self) -> Sequence[float]:
        """Time of Python's collector in each traced step; empty where it was not measured."""
        traced = self.run.window("trace") if self.run is not None else None
        return traced.steps.gc_ms if traced is not None else ()

    @property
    def optimizers(self) -> Sequence[OptimizerFacts]:
        """As constructed."""
        return self.run.optimizers if self.run is not None else ()

    @property
    def loops(self) -> Sequence[LoopTime]:
        """Python loops inside a step; one that is extra work is priced as that, whatever it dispatches."""
        loops, tree = self.run.loops if self.run is not None else (), self.tree
        if tree is None:
            return loops
        return [loop for loop in loops if not tree.within(loop.site.file, *loop.rounds).is_mostly("extra")]

    def updates_one_by_one(self, launches: float) -> bool:
        """Return whether optimizers that are not torch's update their parameters one after the other.

        `launches`: kernels (CPU: operators) in the update per step.
        """
        own = [o for o in self.optimizers if o.flavour == "unknown" and not o.compiled]
        count = sum(o.parameters for o in own)
        return count > 1 and len(own) == len(self.optimizers) and launches >= _EACH_BY_ITSELF * count

    @property
    def compiled(self) -> bool:
        """torch.compile is in use."""
        return self.compile_facts is not None and self.compile_facts.used

    @property
    def given_up(self) -> bool:
        """Some code reached the recompile limit: it runs eagerly, as if it had never been compiled."""
        return self.compile_facts is not None and bool(self.compile_facts.limit_hit)

    @property
    def broken(self) -> bool:
        """Breaks left no graph at all of a model that is compiled: it runs eagerly."""
        known = self.compile_facts
        return known is not None and bool(known.breaks and known.compiled_modules) and not known.unique_graphs

    def in_force(self, *, regions: bool) -> bool:
        """What is compiled runs so; with `regions` the trace shows some that does, whatever else does not."""
        return self.compiled and (regions or not (self.given_up or self.broken))

    @property
    def evaluates(self) -> bool:
        """Every step runs a model without gradients, as part of the training."""
        if self.tree is not None and self.tree.evaluation_is_extra:
            return False
        return self.baseline is not None and self.baseline.evaluates

    @property
    def frozen_inside(self) -> bool:
        """The forward calls a module of whose parameters none needs a gradient."""
        return self.run is not None and self.run.settings.get("ungraded.inside") is True

    @property
    def micro_steps(self) -> float:
        """Backward passes per update in the baseline."""
        return self.baseline.micro_steps if self.baseline is not None else 1.0

    @property
    def table_share(self) -> float:
        """Share of the parameters in embedding tables whose gradient could be sparse."""
        value = self.run.settings.get("embedding.dense_share") if self.run is not None else None
        return float(value) if isinstance(value, (int, float)) else 0.0

    @property
    def half(self) -> tuple[str, float, float] | None:
        """A type of 16 bits that a CPU run computes in, as far as its rate was measured.

        Returns (its name, its share of the counted FLOPs, its rate over that of float32); None where there is
        none.
        """
        if self.run is None or on_gpu(self.run):
            return None
        rates, counted = self.run.matmul_tflops, self.run.flops
        single = rates.get("fp32", 0.0)
        for kind, short in (("float16", "fp16"), ("bfloat16", "bf16")):
            if single > 0 and rates.get(short, 0.0) > 0:
                flops = counted.flops if counted is not None else 0.0
                share = counted.by_dtype.get(kind, 0.0) / flops if counted is not None and flops else 1.0
                return kind, share, rates[short] / single
        return None

    @property
    def denormal(self) -> tuple[float, float] | None:
        """Denormal numbers of a CPU run: (their share, time with one over time with another), or None."""
        if self.run is None or self.run.denormal_factor is None:
            return None
        shares = [each.denormal_share or 0.0 for each in self.run.optimizers]
        return max(shares, default=0.0), self.run.denormal_factor

    @property
    def costly(self) -> Sequence[CostlyCalls]:
        """Calls that have a cheaper way, by what they were given in one step."""
        flops = self.run.flops if self.run is not None else None
        return flops.costly if flops is not None else ()

    @property
    def idle_masks(self) -> tuple[float, float] | None:
        """Masks of fused attention that mask nothing.

        Returns (share of its calls that have one, time of these without over that with, at most 1); None
        where they were not timed.
        """
        masks = self.run.masks if self.run is not None else None
        if masks is None or masks.timed_ms is None or masks.timed_ms[0] <= 0:
            return None
        masked, plain = masks.timed_ms
        return masks.idle / masks.calls, min(1.0, plain / masked)

    @property
    def repeats(self) -> RepeatFacts | None:
        """What the calls of modules and functions have in common; None where they were not looked at."""
        return self.run.repeats if self.run is not None else None

    @property
    def casts(self) -> bool:
        """Autocast is on in a run without a GPU."""
        if self.run is None or on_gpu(self.run):
            return False
        return self.run.settings.get("autocast.dtype") in ("float16", "bfloat16")

    @property
    def padding_share(self) -> float:
        """Share of the positions of a batch that can be spared; 0 where no padding was seen.

        Those behind the longest sample of the batch, where they are many; else all that are padded.
        """
        loader = training_loader(self.loaders)
        batch = loader.batch if loader is not None else None
        if batch is None:
            return 0.0
        beyond = batch.beyond_share or 0.0
        return beyond if beyond >= MUCH_PADDING else batch.padding_share or 0.0


def on_gpu(run: Run | None) -> bool:
    """Return whether the run had a GPU, as far as known."""
    return run is not None and any(device.kind in ("cuda", "rocm") for device in run.devices)
