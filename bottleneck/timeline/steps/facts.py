"""What is known of a run beside its trace.

In: run.json, loader.json, compile.json, the step time. Out: `Facts`, which every reading starts from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.run import CompileFacts, LoaderFacts, OptimizerFacts, Run
from .baseline import Baseline, read_baseline
from .supply import InputSupply, input_supply

__all__ = ["Facts", "gather_facts", "on_gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a run beside its trace."""

    true_ms: float
    """The step time that the budget must add up to."""
    run: Run | None = None
    """None for a bare trace."""
    baseline: Baseline | None = None
    supply: InputSupply | None = None
    """Production cost of the input, where measured."""
    compile_facts: CompileFacts | None = None
    true_is_profiled: bool = False
    """No unprofiled step time exists."""
    counted: Collection[str] = ()
    """Operators whose FLOPs were counted; empty when none were."""

    @property
    def cores(self) -> int | None:
        """Cores that loader workers may use."""
        return self.run.host.cores if self.run is not None else None

    @property
    def optimizers(self) -> Sequence[OptimizerFacts]:
        """As constructed."""
        return self.run.optimizers if self.run is not None else ()

    @property
    def compiled(self) -> bool:
        """torch.compile is in use."""
        return self.compile_facts is not None and self.compile_facts.used

    @property
    def evaluates(self) -> bool:
        """Every step runs a model without gradients."""
        return self.baseline is not None and self.baseline.evaluates

    @property
    def micro_steps(self) -> float:
        """Backward passes per update in the baseline."""
        return self.baseline.micro_steps if self.baseline is not None else 1.0

    @property
    def table_share(self) -> float:
        """Share of the parameters in embedding tables whose gradient could be sparse."""
        value = self.run.settings.get("embedding.dense_share") if self.run is not None else None
        return float(value) if isinstance(value, (int, float)) else 0.0


def on_gpu(run: Run | None) -> bool:
    """Return whether the run had a GPU, as far as it tells."""
    return run is not None and any(device.kind in ("cuda", "rocm") for device in run.devices)


def gather_facts(
    *,
    true_ms: float,
    run: Run | None = None,
    kept: NDArray[np.bool_] | None = None,
    loaders: Sequence[LoaderFacts] = (),
    compile_facts: CompileFacts | None = None,
    true_is_profiled: bool = False,
    counted: Collection[str] = (),
) -> Facts:
    """Put together what is known of a run.

    Args:
        true_ms: the step time that the budget must add up to.
        run: run.json, or None for a bare trace.
        kept: which steps of the baseline window stand behind `true_ms`.
        loaders: loader.json.
        compile_facts: compile.json.
        true_is_profiled: no unprofiled step time exists; the reading stays at profiled speed.
        counted: operators whose FLOPs were counted; empty when none were.
    """
    baseline = None
    if run is not None and kept is not None:
        baseline = read_baseline(run, kept=kept, true_ms=true_ms)
    return Facts(
        true_ms=true_ms,
        run=run,
        baseline=baseline,
        supply=input_supply(
            loaders,
            wait_ms=baseline.phases_ms.get("data", 0.0) if baseline is not None else 0.0,
            cores=run.host.cores if run is not None else None,
        ),
        compile_facts=compile_facts,
        true_is_profiled=true_is_profiled,
        counted=counted,
    )
