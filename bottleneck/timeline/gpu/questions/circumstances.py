"""What a question to the replay of a GPU run may depend on.

In: nothing. Out: `Circumstances`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...lanes.replay import Edit
    from ...result import CostlyCall
    from ...steps.facts import Facts
    from ...steps.loop_price import LoopPrice
    from ..detour import Detours
    from ..narrow import Narrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts besides the program, on which the questions depend."""

    facts: Facts
    copy_bytes: NDArray[np.int64] | None = None
    """Bytes of each activity that is a copy, -1 elsewhere, (m,)."""
    optimizer_flavour: str = "unknown"
    """What ran: "for-loop", "foreach", "fused", "unknown"."""
    optimizer_parameters: int = 0
    """Parameter tensors, counted in the trace."""
    capability: str | None = None
    """Compute capability, like "9.0"."""
    ungraded: NDArray[np.bool_] | None = None
    """Activities of the model that every step runs without gradients, (m,); None where none does."""
    bare: NDArray[np.bool_] | None = None
    """Activities of the forward and around it that no backward visits, (m,); None where none repeats one."""
    later: NDArray[np.bool_] | None = None
    """Activities of backwards that do not go with their forward (`recompute.later_work`), (m,)."""
    dropped: NDArray[np.float64] | None = None
    """Of each activity, the share that computes gradients which nobody needs, (m,); None where none does."""
    idle: NDArray[np.float64] | None = None
    """Of each activity, the share that works on rows that are not in the loss, (m,); None where none does."""
    again: Edit | None = None
    """Takes away what converts what the step has converted before, both ways; None where nothing does."""
    joined: Edit | None = None
    """Takes away what joins what the step joins again with more, both ways; None where nothing does."""
    costly: tuple[tuple[CostlyCall, NDArray[np.bool_]], ...] = ()
    """The operators for which there is a cheaper way, and the events of the calls of each, (n,)."""
    asked_waits: NDArray[np.bool_] | None = None
    """Events that wait for the device because the script asks for it (`context.asked_waits`), (n,)."""
    detours: Detours | None = None
    """What goes from the device to the host and back; None where nothing does."""
    narrow: Narrow | None = None
    """The operator that keeps little of the device at work for longest; None where none does."""
    searches: Edit | None = None
    """Takes away that convolutions time their algorithms; None where none does."""
    plans: Edit | None = None
    """Takes away that cuDNN's attention plans how to compute a new size; None where it does not."""
    offloads: Edit | None = None
    """Takes away that activations are moved to the host and back; None where none are."""
    blocked_ns: NDArray[np.float64] | None = None
    """Of each event, how long its launch took, (n,); None where launches do not wait for their kernels."""
    in_loop: NDArray[np.bool_] | None = None
    """Events that the lines of `loop` ask for, (n,); None where lines were not noted."""
    lined: NDArray[np.bool_] | None = None
    """Events of which the lines are known, whether or not they record a gradient, (n,); None where only those
    of nodes were noted."""
    loop: LoopPrice | None = None
    """The Python loop that takes most of the host's time."""
