"""What a run worked on, as far as it must agree for two runs to be comparable.

In: nothing. Out: `Workload`, carried as `Diagnosis.workload`.
"""

from __future__ import annotations

import msgspec

from .run import SourceSite

__all__ = ["LoaderArguments", "OptimizerArguments", "Workload"]


class LoaderArguments(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One DataLoader as constructed."""

    cls: str = ""
    site: SourceSite | None = None
    role: str = "unknown"
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    drop_last: bool | None = None
    shuffle: bool | None = None
    start_method: str | None = None


class OptimizerArguments(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One optimizer as constructed."""

    cls: str
    flavour: str = "unknown"
    parameters: int = 0
    site: SourceSite | None = None


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one rank: its batches, its loaders, its step times."""

    world_size: int = 1
    step_signal: str = ""
    micro_steps: float | None = None
    """Backward passes per step, mean."""
    batch: tuple[str, ...] = ()
    """Tensors of a typical training batch, like "float32[64, 3, 224, 224]"; empty where no loader
    was seen."""
    batch_elements: int | None = None
    """Elements of the tensors fetched in a typical step; None where none were seen."""
    distinct_shapes: int | None = None
    """Different shapes of training batches seen; 1: all steps do the same work."""
    loaders: tuple[LoaderArguments, ...] = ()
    optimizers: tuple[OptimizerArguments, ...] = ()
    step_ms: tuple[float, ...] = ()
    """Unprofiled step times of the baseline window, in order, at most 200."""
