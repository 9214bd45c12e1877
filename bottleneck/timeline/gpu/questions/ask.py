"""The questions put to the replay of a GPU run: the step without a cause, or with a thing changed.

In: a `Program`, its `Replay`, the calibration, what is known of loaders, optimizers and the device.
Out: `WhatIfResult`s in ms of the true step, and the edits behind them, so that the second cause can
be asked with the first already removed. The questions themselves stand in gpu_what_ifs_host.py,
gpu_what_ifs_dispatch.py and gpu_what_ifs_device.py.

Each answer is the ratio of two replays, with and without the edit, applied to the true step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ....model.codes import CLASS_QUESTIONS, FIX_QUESTIONS, WHAT_IFS, WhatIf, count_twice
from ....model.diagnosis import WhatIfResult
from ....model.finding import NEGLIGIBLE_SHARE
from ....model.words import milliseconds
from ...cpu.what_ifs import in_main
from ...lanes.replay import Edit
from .device import device_questions
from .dispatch import dispatch_questions
from .host import copy_questions, host_questions

if TYPE_CHECKING:
    from ...lanes.calibrate import Calibration
    from ...lanes.replay import Replay
    from ...steps.supply import InputSupply
    from ..device_masks import DeviceWork
    from .circumstances import Circumstances

__all__ = ["Answers", "ask_gpu", "workers_needed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Results by question, and the edits that produced them."""

    results: dict[WhatIf, WhatIfResult]
    edits: dict[WhatIf, Edit] = field(default_factory=dict)
    after: dict[tuple[WhatIf, WhatIf], float] = field(default_factory=dict)


_NOTHING = 1e-4
"""Savings below this share of the step are rounding."""


def ask_gpu(replay: Replay, calibration: Calibration, work: DeviceWork, known: Circumstances) -> Answers:
    """Ask everything that the program can answer.

    Args:
        replay: the program, ready to run.
        calibration: its calibration.
        work: masks over the activities.
        known: what is known beside the program.

    Returns:
        The answers; only questions that change something.
    """
    program, base, true_ms = replay.program, calibration.base, known.true_ms
    reference = replay.run(base).step_ns
    results: dict[WhatIf, WhatIfResult] = {}
    edits: dict[WhatIf, Edit] = {}

    def ms(edit: Edit, *, may_lose: bool = False) -> float:
        step = true_ms * replay.run(base.and_also(edit)).step_ns / reference
        return step if may_lose else min(true_ms, step)

    for question in (
        *host_questions(program, calibration, work),
        *copy_questions(program, known),
        *dispatch_questions(program, calibration, work, known),
        *device_questions(program, work, known),
    ):
        step = ms(question.edit, may_lose=question.may_lose)
        edits[question.name] = question.edit
        if true_ms - step > _NOTHING * true_ms or question.may_lose:
            results[question.name] = WhatIfResult(
                question=question.name,
                step_ms=step,
                saves_ms=true_ms - step,
                basis=question.basis,
                bound=question.bound,
            )
    workers = _workers(results.get(WhatIf.INPUT_READY), known)
    if workers is not None:
        results[WhatIf.INPUT_WORKERS] = workers
    ready = results.get(WhatIf.INPUT_READY)
    if ready is not None and known.supply is not None:
        without = in_main(known.supply, rest_ms=ready.step_ms, true_ms=true_ms)
        if without is not None:
            results[WhatIf.INPUT_IN_MAIN] = without
    return Answers(results=_relieved(results, edits, ms), edits=edits, after=_pairs(results, edits, ms))


def workers_needed(supply: InputSupply, ready: WhatIfResult) -> int:
    """Return the workers whose supply keeps up with the step that never waits for input."""
    return max(1, int(np.ceil(supply.production_ms / max(ready.step_ms, 1e-6))))


def _workers(ready: WhatIfResult | None, known: Circumstances) -> WhatIfResult | None:
    """Ask for enough workers, from what producing a batch costs."""
    supply, true_ms = known.supply, known.true_ms
    if ready is None or supply is None or supply.production_ms <= 0:
        return None
    needed = workers_needed(supply, ready)
    workers = min(needed, known.cores) if known.cores else needed
    step = max(ready.step_ms, supply.production_ms / workers)
    if workers <= supply.workers or step >= true_ms:
        return None
    return WhatIfResult(
        question=WhatIf.INPUT_WORKERS,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=f"{milliseconds(supply.production_ms)} ms to produce the input of a step, spread over"
        f" {workers} workers, against {milliseconds(ready.step_ms)} ms for the rest of the step",
    )


def _relieved(
    results: dict[WhatIf, WhatIfResult], edits: dict[WhatIf, Edit], ms: Callable[[Edit], float]
) -> dict[WhatIf, WhatIfResult]:
    """Add what changes that hold less memory bring when the allocator's calls end with it."""
    calls = results.get(WhatIf.ALLOCATOR_FREE)
    if calls is None or calls.saves_ms < NEGLIGIBLE_SHARE * (calls.step_ms + calls.saves_ms):
        return results
    free = edits[WhatIf.ALLOCATOR_FREE]
    return results | {
        name: msgspec.structs.replace(results[name], relieved_ms=ms(edits[name].and_also(free)))
        for name, known in WHAT_IFS.items()
        if known.holds_less and name in results
    }


def _pairs(
    results: dict[WhatIf, WhatIfResult],
    edits: dict[WhatIf, Edit],
    ms: Callable[[Edit], float],
) -> dict[tuple[WhatIf, WhatIf], float]:
    """Ask the costly classes, and the fixes that gain most, two at a time."""
    out: dict[tuple[WhatIf, WhatIf], float] = {}
    for questions, most in ((CLASS_QUESTIONS, 5), (FIX_QUESTIONS, 4)):
        asked = [q for q in questions if q in results and q in edits and results[q].saves_ms > 0]
        ranked = sorted(asked, key=lambda q: -results[q].saves_ms)[:most]
        for first, then in combinations(ranked, 2):
            if not count_twice(first, then) and (first, then) not in out:
                # Removing two causes has no order; readers ask in either.
                out[first, then] = out[then, first] = ms(edits[first].and_also(edits[then]))
    return out
