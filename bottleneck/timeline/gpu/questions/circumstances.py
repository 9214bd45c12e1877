"""What a question to the replay of a GPU run is made of, and what it may depend on.

In: nothing. Out: `Question`, `Circumstances`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ....model.codes import WhatIf
    from ....model.run import OptimizerFacts
    from ...lanes.replay import Edit
    from ...steps.supply import InputSupply

__all__ = ["Circumstances", "Question"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known beside the program: the questions depend on it."""

    true_ms: float
    supply: InputSupply | None = None
    """Production cost of the input, when measured."""
    cores: int | None = None
    """Cores that loader workers may use."""
    pinned_gbps: float | None = None
    """Measured pinned host-to-device bandwidth, GB/s."""
    copy_bytes: NDArray[np.int64] | None = None
    """Bytes of each activity that is a copy, -1 elsewhere, (m,)."""
    optimizers: Sequence[OptimizerFacts] = ()
    optimizer_flavour: str = "unknown"
    """What ran: "for-loop", "foreach", "fused", "unknown"."""
    optimizer_parameters: int = 0
    """Parameter tensors, counted in the trace."""
    matmul_tflops: dict[str, float] = field(default_factory=dict)
    """Measured dense matmul rates by dtype."""
    capability: str | None = None
    """Compute capability, like "9.0"."""
    compiled: bool = False
    """torch.compile is in use."""
    gc_ms: float | None = None
    """Collector time per step in the baseline."""
    micro_steps: float = 1.0
    """Backward passes per update in the baseline."""
    table_share: float = 0.0
    """Of the parameters, in embedding tables whose gradient could be sparse."""
    ungraded: NDArray[np.bool_] | None = None
    """Activities of the model that every step runs without gradients, (m,); None where none does."""


@dataclass(frozen=True, slots=True)
class Question:
    """One change to the program, and what is said of its answer."""

    name: WhatIf
    edit: Edit
    basis: str
    bound: bool = False
    may_lose: bool = False
    """The answer is kept where the change would cost time: whoever suggests it should know."""
