"""Collectives and summaries of small jobs, written down in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torch_bottleneck.fleet.collectives import BINS, Collectives, pack
from torch_bottleneck.fleet.match import Lane
from torch_bottleneck.fleet.summary import RankSummary
from torch_bottleneck.timeline.trace.table import Message

WORLD = Message("0", "[0, 1, 2, 3]", "allreduce")
TRANSFER_MS = 1.0
STEP_MS = 20.0


def collectives(
    ends_ms: Sequence[float],
    lengths_ms: Sequence[float],
    *,
    steps: Sequence[int],
    message: Message = WORLD,
    sizes: Sequence[int] = (),
    sequence: Sequence[int] = (),
    backward: Sequence[int] = (),
    phase: Sequence[int] = (),
) -> Collectives:
    """Collectives during which the device does nothing else."""
    end = np.asarray([round(ms * 1e6) for ms in ends_ms], dtype=np.int64)
    length = np.asarray([round(ms * 1e6) for ms in lengths_ms], dtype=np.int64)
    sizes = tuple(sizes) or (1000,) * len(end)
    kinds = list(dict.fromkeys(sizes))
    return Collectives(
        kinds=tuple((message, size) for size in kinds),
        kind=np.asarray([kinds.index(size) for size in sizes], dtype=np.int64),
        sequence=np.asarray(sequence or [-1] * len(end), dtype=np.int64),
        step=np.asarray(steps, dtype=np.int64),
        backward=np.asarray(backward or [-1] * len(end), dtype=np.int64),
        phase=np.asarray(phase or [-1] * len(end), dtype=np.int64),
        ready=end - length - 1000,
        start=end - length,
        end=end,
        alone=alone_places(length, end),
        exposed=np.repeat(length[:, None] // BINS, BINS, axis=1),
    )


def alone_places(length: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Places in the own work: what is not a collective, which the device and its host do alike."""
    start = end - length
    done = start - (np.cumsum(length) - length)
    return np.stack([done, done, done, done * 0, done * 0], axis=1)


def summary(rank: int, waits_ms: Sequence[float], **more: object) -> RankSummary:
    """A rank that waits so long in each step, in a job whose steps take `STEP_MS`."""
    steps = len(waits_ms)
    own = STEP_MS - TRANSFER_MS - np.asarray(waits_ms)
    columns = collectives(
        [STEP_MS * (k + 1) for k in range(steps)],
        [TRANSFER_MS + wait for wait in waits_ms],
        steps=range(steps),
    )
    known = {
        "true_ms": STEP_MS,
        "recorded_ms": (STEP_MS,) * steps,
        "alone_ms": tuple(own.tolist()),
        "alone_edges_ms": tuple((float(ms), float(ms)) for ms in np.concatenate([[0.0], np.cumsum(own)])),
        "own_work_ms": {"compute": (5.0,) * steps, "host": tuple((own - 5.0).tolist())},
        "budget": {"other host work": float(own.mean()) - 5.0, "tensor-core math": 5.0},
        "step_numbers": tuple(range(steps)),
        "steps": steps,
        "world_size": 4,
        "path": f"rank{rank}.json",
        "collectives": pack(columns),
    }
    return RankSummary(rank=rank, **{**known, **more})  # type: ignore[arg-type]


def lane(columns: Collectives, *, steps: int, numbers: Sequence[int] = ()) -> Lane:
    return Lane(collectives=columns, steps=steps, numbers=np.asarray(numbers, dtype=np.int64))
