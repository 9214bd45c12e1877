"""What each activity of a program is, as far as a what-if asks for it.

In: nothing. Out: `DeviceWork`, masks and factors that device_work.py fills.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .compiler_reach import Reach


ALIGNED_NUMBERS = {"bf16": 8, "fp16": 8, "tf32": 4}
"""Numbers in 16 bytes, which tensor cores read at once (NVIDIA, "Matrix Multiplication Background")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """Masks over the program's activities, each (m,)."""

    fp32_math: NDArray[np.bool_]
    """Matmul and convolution kernels that compute in full fp32, but for those of the linear algebra library:
    no switch of torch reaches what solves and factorises."""
    convolutions: NDArray[np.bool_]
    """What convolutions and their backward launch."""
    convolution_calls: int
    """Convolutions and their backward, each one call."""
    autocast: NDArray[np.bool_]
    """What autocast may reach: all but the backward of linear algebra, whose products stay in fp32."""
    attention: NDArray[np.bool_]
    """Fused attention."""
    fp32_attention: NDArray[np.bool_]
    """Fused attention in fp32, which no TF32 switch changes, but bf16 does."""
    tf32_math: NDArray[np.bool_]
    low_traffic: NDArray[np.bool_]
    """Element-wise kernels on what products in fp32 or TF32 gave: half the bytes in a 16-bit type."""
    scores: NDArray[np.bool_]
    """Kernels between the two batched matmuls of attention that is not fused."""
    score_products: NDArray[np.bool_]
    """Those batched matmuls, which write and read the scores."""
    reach: Reach
    """What a compiled model would run."""
    filled: NDArray[np.float64]
    """Share of the warp schedulers that a kernel has a warp for; 1 where the trace does not tell."""
    alike: NDArray[np.float64]
    """Kernels of the same name in a step, itself among them."""
    chains: NDArray[np.float64]
    """Factor on duration that fusing its neighbouring memory-bound kernels gives (fusion.py)."""
    relaunched: NDArray[np.float64]
    """Kernels that a compiled model launches in place of each."""
    merged: NDArray[np.bool_]
    """Kernels that a graph without seams would compute together with a neighbour."""
    merged_by: NDArray[np.int16]
    """Group of the seam that keeps each of these apart; -1 elsewhere."""
    index_sums: NDArray[np.bool_]
    """Sums of gradients in the backward of an index: those of one row one after the other. Not of a mask,
    which names no row twice."""
    picked: NDArray[np.bool_]
    """What picking by masks launches, forward and backward."""
    unaligned: dict[str, NDArray[np.bool_]]
    """Matrix products whose rows do not begin at 16 bytes, by type: "bf16", "fp16" or "tf32"."""
    fills: NDArray[np.bool_]
    """Fills of new memory, which determinism asks for."""
    layout: NDArray[np.bool_]
    """Conversions between NCHW and NHWC that the convolution library inserts."""
    nhwc: NDArray[np.float64]
    """Factor on duration when convolutions run in NHWC from end to end."""
    zero_grad: NDArray[np.bool_]
    optimizer: NDArray[np.bool_]
    items: NDArray[np.bool_]
    """Copies to the host that a Python number was made of (`.item()`, `float()`, `if tensor`)."""
    recomputed: NDArray[np.bool_]
    """Forward work that backward repeats (activation checkpointing)."""
    offloaded: NDArray[np.bool_]
    """Copies of what backward needs, to the host and back."""
