"""Which unlabelled time prepares the next batch (CPU runs).

In: segments. Out: a mask of the segments that belong to the input although no DataLoader label
covers them: a transform between the fetch and the forward, or a hand-written `get_batch`.

Position decides. Between a fetch and the forward that consumes it stands preparation. Where the
script has no loader at all, what stands between an update and the next forward is the last step's
metrics and logging, then the next step's batch. Samples of the loop's lines (`after_share`) tell how
much of it is which. Without them the stretch before the step's first forward is preparation if
tensors are made in it, from the last scalar read onwards; and where no optimizer of torch's was seen,
from the last in-place arithmetic onwards, which is the script's own update.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..trace.intervals import behind_share, within
from ..trace.operators import OpClass
from .segments import Segments

_MAKES_TENSORS = (OpClass.MATH, OpClass.MEMORY, OpClass.CREATION)


def _runs(labels: NDArray[np.int16]) -> list[tuple[int, int, int]]:
    """Return maximal runs of equal labels as (first, last + 1, label)."""
    if len(labels) == 0:
        return []
    edges = np.flatnonzero(np.diff(labels)) + 1
    bounds = [0, *edges.tolist(), len(labels)]
    return [(a, b, int(labels[a])) for a, b in pairwise(bounds)]


def _neighbour(runs: list[tuple[int, int, int]], at: int, by: int, skip: set[int]) -> int:
    """Return the label of the next run in direction `by` that is not in `skip`, cyclically."""
    for distance in range(1, len(runs)):
        label = runs[(at + by * distance) % len(runs)][2]
        if label not in skip:
            return label
    return 0


def _between_forwards(runs: list[tuple[int, int, int]], at: int, forward: int) -> bool:
    """Whether forwards stand on both sides of a run within its step.

    That is the model's own code, or the noise for a generator, and not the batch of the step.
    """
    before = any(label == forward for _, _, label in runs[:at])
    after = any(label == forward for _, _, label in runs[at + 1 :])
    return before and after


def _from_the_share_on(segments: Segments, chosen: list[int], share: float) -> list[int]:
    """Return the segments, in order of time, that lie behind that share of them all."""
    behind = behind_share(segments.dur_ns[chosen], share)
    return [at for at, counts in zip(chosen, behind.tolist(), strict=True) if counts]


def _phases(segments: Segments, *, evaluates: bool) -> NDArray[np.int16]:
    """Return the phase of each segment; a model without gradients in every step counts as a forward."""
    code = {name: i for i, name in enumerate(segments.phases)}
    if not evaluates or "evaluation" not in code:
        return segments.phase
    evaluation = segments.phase == code["evaluation"]
    return np.where(evaluation, code["forward"], segments.phase).astype(np.int16)


def preparation(
    segments: Segments, *, after_share: float | None = None, evaluates: bool = False
) -> NDArray[np.bool_]:
    """Return the mask of unlabelled segments that prepare a batch, bool[m].

    `after_share`, from `loop_lines`, is used where the script has no loader. With `evaluates` every step runs
    a model without gradients (a teacher, a frozen encoder, a policy).
    """
    mask = np.zeros(len(segments.row), dtype=np.bool_)
    code = {name: i for i, name in enumerate(segments.phases)}
    forward = code["forward"]
    phases = _phases(segments, evaluates=evaluates)
    has_loader = bool((segments.phase == code["data"]).any())
    skip = {0, code["h2d"], code["zero_grad"]}
    makes = np.isin(segments.op_class, _MAKES_TENSORS)
    ended = segments.op_class == OpClass.SYNC
    if not (segments.phase == code["optimizer"]).any():
        ended |= segments.in_place
    for k in range(segments.steps):
        mine = within(segments.step, k, k + 1)
        first, last = mine.start, mine.stop
        runs = _runs(phases[first:last])
        following: list[int] = []
        leading: list[int] = []
        for at, (a, b, label) in enumerate(runs):
            if label != 0 or _neighbour(runs, at, 1, skip) != forward:
                continue
            if has_loader:
                if _neighbour(runs, at, -1, skip) == code["data"]:
                    mask[first + a : first + b] = True
                continue
            if _between_forwards(runs, at, forward):
                continue
            if after_share is not None:
                begun = any(earlier == forward for _, _, earlier in runs[:at])
                (following if begun else leading).extend(range(first + a, first + b))
                continue
            reads = np.flatnonzero(ended[first + a : first + b])
            begin = first + a + (int(reads[-1]) + 1 if len(reads) else 0)
            if makes[begin : first + b].any():
                mask[begin : first + b] = True
        if after_share is not None:
            # In the loop the end of a step comes before the beginning of the next one.
            mask[_from_the_share_on(segments, following + leading, after_share)] = True
    return mask


def aside(segments: Segments, *, evaluates: bool = False) -> NDArray[np.bool_]:
    """Return the mask of unlabelled segments that are no part of training a batch, bool[m].

    That is what stands behind a step's last update or before its first forward: metrics, logging, a
    moving average of the weights. Its operators are dispatched like any others, but neither a compiled
    model nor a larger batch makes them fewer. Steps that update by hand, in no optimizer, have no such
    mark: there nothing counts as aside.
    """
    mask = np.zeros(len(segments.row), dtype=np.bool_)
    code = {name: i for i, name in enumerate(segments.phases)}
    forward, optimizer = code["forward"], code["optimizer"]
    phases = _phases(segments, evaluates=evaluates)
    for k in range(segments.steps):
        mine = within(segments.step, k, k + 1)
        first, last = mine.start, mine.stop
        phase = phases[first:last]
        forwards, updates = np.flatnonzero(phase == forward), np.flatnonzero(phase == optimizer)
        if not len(forwards) or not len(updates) or updates[-1] < forwards[-1]:
            continue
        at = np.arange(last - first)
        mask[first:last] = (phase == 0) & ((at > updates[-1]) | (at < forwards[0]))
    return mask
