"""What a compiler makes of a model's memory-bound kernels: fewer of them, and none slower than memory.

In: a `Trace`, its `Program`, masks. Out: `Fusion`: a factor on each duration, and
how many kernels are launched in its place.

Neighbours in the order of launches are fused, up to a product: a fused kernel still reads the largest input
and writes the result, which is about what the longest of the run moves. Kernels that move their bytes slowly
(batch norms of cuDNN, reductions over strided memory, element-wise kernels that are not vectorised) are
replaced by generated ones that do not; how many bytes they move is told by a vectorised element-wise kernel
nearby, which reads and writes tensors of that size once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..lanes.program import Program
from ..trace.kernels import classify
from ..trace.table import Trace

_AT_MOST = 8
"""Kernels in one fusion: registers and shapes end it."""
_NEAR = 4
"""How far away, in launches, an element-wise kernel may be that works on tensors of the same size."""
_SHORTEST_NS = 3_000.0
"""No kernel is held to less: at that length it is no matter of bytes."""

_VECTORISED = re.compile(r"vectorized_elementwise_kernel")
_PASSES: tuple[tuple[re.Pattern[str], float], ...] = (
    # Accesses to tensors of the operand's size over the two of a unary element-wise kernel: forward of
    # a norm reads twice and writes, its backward reads twice two tensors and writes; a sum reads once,
    # and what another kernel makes of partial sums is granted the rest.
    (re.compile(r"bn_bw|batch_?norm_backward|batch_norm_backward|layer_norm_grad_input", re.IGNORECASE), 2.5),
    (re.compile(r"batch_norm_(collect|transform)"), 1.0),
    (re.compile(r"bn_fw|batch_?norm|layer_?norm|rms_?norm|group_?norm", re.IGNORECASE), 1.5),
    (re.compile(r"reduce_kernel"), 1.0),
    (re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<"), 1.5),
)
_LAUNCHES: tuple[tuple[re.Pattern[str], int], ...] = (
    # A reduction over the batch is two kernels, the second over partial sums; gamma and beta are two of them.
    (re.compile(r"GammaBeta", re.IGNORECASE), 4),
    (re.compile(r"bn_bw|batch_?norm_backward", re.IGNORECASE), 3),
    (re.compile(r"bn_fw|batch_?norm", re.IGNORECASE), 2),
)
_NORMALISES = ("norm", "softmax", "loss")
_REDUCTION = re.compile(r"reduce_kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Per activity, (m,)."""

    factor: NDArray[np.float64]
    """On its duration; 0 where a neighbour's kernel computes it as well."""
    launches: NDArray[np.float64]
    """Kernels that are launched in its place."""
    held: NDArray[np.float64]
    """On its duration when it stays a kernel of its own that moves its bytes at the speed of memory."""


def _look_up(
    trace: Trace, program: Program, table: Sequence[tuple[re.Pattern[str], float]]
) -> NDArray[np.float64]:
    def value_of(name: str) -> float:
        return next((value for pattern, value in table if pattern.search(name)), 0.0)

    return trace.by_name(program.activity_row, value_of, np.float64)


def _held_to_memory(trace: Trace, program: Program, fusable: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return durations, none longer than its bytes take at the speed of an element-wise kernel nearby."""
    duration = program.duration.astype(np.float64)
    passes = _look_up(trace, program, _PASSES)
    plain = trace.named(_VECTORISED, program.activity_row) & fusable
    near = np.zeros(len(duration))
    for away in range(1, _NEAR + 1):
        for ours, theirs in (
            (slice(away, None), slice(None, -away)),
            (slice(None, -away), slice(away, None)),
        ):
            same = plain[theirs] & (program.lane[theirs] == program.lane[ours])
            # The largest of them: to take too small a tensor would promise too much.
            near[ours] = np.maximum(near[ours], np.where(same, duration[theirs], 0.0))
    bound = np.maximum(passes * near, _SHORTEST_NS)
    slow = fusable & (passes > 0) & (near > 0) & (duration > bound)
    return np.where(slow, bound, duration)


def fuse(
    trace: Trace,
    program: Program,
    *,
    fusable: NDArray[np.bool_],
    backward: NDArray[np.bool_],
) -> Fusion:
    """Fuse the memory-bound kernels of a model.

    What is not `fusable` (m,), a kernel that a compiler would generate, keeps its duration and its launch.
    `backward` (m,) marks what backward launches.
    """
    held = _held_to_memory(trace, program, fusable)
    alone = np.where(fusable, held / np.maximum(program.duration, 1.0), 1.0)
    factor = alone.copy()
    launches = np.ones(len(factor))
    reduces = trace.named(_REDUCTION, program.activity_row)
    special = _look_up(trace, program, _LAUNCHES)
    normalises = trace.named(lambda name: classify(name).family in _NORMALISES, program.activity_row)
    plain = np.where(reduces, np.where(backward, 2, 1), normalises)
    own = np.where(special > 0, special, plain).astype(np.float64)
    joined = np.flatnonzero(fusable)
    if not len(joined):
        return Fusion(factor=factor, launches=launches, held=alone)
    place = np.arange(len(joined))
    run = np.maximum.accumulate(np.where(np.diff(joined, prepend=-2) != 1, place, 0))
    begins = (place - run) % _AT_MOST == 0
    first, piece = np.flatnonzero(begins), np.cumsum(begins) - 1
    # Of equally long ones the earliest stays.
    longest = np.flatnonzero(held[joined] == np.maximum.reduceat(held[joined], first)[piece])
    longest = joined[longest[np.unique(piece[longest], return_index=True)[1]]]
    factor[joined] = 0.0
    factor[longest] = alone[longest]
    launches[joined] = own[joined]
    none = np.maximum.reduceat(own[joined], first) == 0.0
    launches[longest[none]] = 1.0
    return Fusion(factor=factor, launches=launches, held=alone)
