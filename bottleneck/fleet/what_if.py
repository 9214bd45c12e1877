"""The step of the job without a cause, or with one change, by replaying its ranks together.

In: a `JointProgram`, late ranks, what each rank takes alone without a cause. Out: `WhatIfResult`s, with the
questions of a single rank where the change is the same.

Each answer is the ratio of two replays, with and without the change, applied to the true step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model.codes import LateCause, WhatIf
from ..model.diagnosis import WhatIfResult
from ..timeline.steps.kinds import as_timed, as_traced_ms
from .account import Account
from .causes import OF_DEVICE
from .joint import JointEdit, JointProgram
from .stragglers import Found, excess_of
from .summary import RankSummary

__all__ = ["MAX_JOINT_ERROR", "TOGETHER", "Answered", "answer"]

MAX_JOINT_ERROR = 0.10
"""Of the step, that the replay of the ranks may miss it by; above it nothing is drawn from it."""
_MOST_LATE = 24
"""Late sets that are priced by the replay, the most expensive ones."""
_NOTHING = 1e-3
"""Savings below this share of the step are rounding."""
TOGETHER = "replay of all ranks together"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What the joint replay says."""

    what_ifs: tuple[WhatIfResult, ...]
    costs_ms: tuple[float, ...]
    """Of each late set, once the others are not late; of the most expensive ones only."""
    without_late_ms: float
    error: float
    """How far the replay misses the step, as a share of it."""


def answer(
    program: JointProgram,
    found: Found,
    causes: Sequence[LateCause],
    account: Account,
    summaries: Sequence[RankSummary],
    *,
    step_ms: float,
    disturbed: Floats,
) -> Answered | None:
    """Ask all questions; None where the replay does not give the step.

    `causes` are those of `found.late`; `disturbed`, (n,), is what kernels take longer beside collectives that
    wait, ms: gone with the late ranks.
    """
    steps = program.steps
    plain_ms = program.lengths_ms([JointEdit()])[0]
    if plain_ms.sum() <= 0 or step_ms <= 0:
        return None
    # Any of them: they make their steps together.
    timed_ms = max((s.timed_ms for s in summaries), key=len)
    window_ms = as_traced_ms(plain_ms, timed_ms) or float(np.median([s.unprofiled_ms for s in summaries]))
    error = float(abs(plain_ms.mean() - window_ms)) / window_ms
    if error > MAX_JOINT_ERROR:
        return None
    timed = as_timed(plain_ms, timed_ms)
    # In the time of the replay, as what is taken off there.
    lateness = found.lateness_ms[:, -steps:] / timed.paces
    late = [excess_of(each, found, steps) / timed.paces for each in found.late]
    nobody = np.sum(late, axis=0) + np.zeros_like(lateness)
    late = late[:_MOST_LATE]
    hosts = _hosts_ms(found, causes, summaries, steps)
    late_lanes = [lane for each in found.late for lane in each.lanes]
    undisturbed = np.repeat(disturbed[:, None], steps, axis=1) * bool(late_lanes)
    # By as much later than thought are those that they are late beside.
    undisturbed[late_lanes] = (
        np.median(np.delete(disturbed, late_lanes)) if len(disturbed) > len(late_lanes) else 0.0
    )
    asked: list[tuple[WhatIf, JointEdit, str, bool]] = [
        (
            WhatIf.NO_LATE_RANK,
            JointEdit(late_ms=nobody, less_ms=undisturbed, hosts_ms=hosts),
            "no rank later than its peers",
            False,
        ),
        (
            WhatIf.RANKS_EVEN,
            JointEdit(late_ms=np.maximum(lateness, 0.0), less_ms=undisturbed, hosts_ms=hosts),
            "no rank slower than the median of its peers, in no step",
            True,
        ),
        (
            WhatIf.COMM_OVERLAPPED,
            JointEdit(transfer=0.0),
            "transfers hidden behind other work as far as the network keeps up, waiting for late ranks not",
            True,
        ),
        (
            WhatIf.NETWORK_TWICE,
            JointEdit(transfer=0.5, beside=0.5),
            "each transfer taking half its time",
            False,
        ),
    ]
    for question, bound in _of_causes(summaries).items():
        gone = np.stack([_removed(s, question, steps) for s in summaries])
        asked.append(
            (
                question,
                JointEdit(less_ms=np.clip(gone, 0.0, account.work_ms[:, -steps:])),
                "this cause gone on all of them",
                bound,
            )
        )
    lengths = program.lengths_ms(
        [
            *(
                JointEdit(late_ms=nobody - each, less_ms=undisturbed * (len(late) > 1), hosts_ms=hosts)
                for each in late
            ),
            *(edit for _, edit, _, _ in asked),
        ]
    )
    scale = step_ms / float(timed.mean_ms(plain_ms))
    rest = timed.mean_ms(lengths).tolist()
    costs, answers = rest[: len(late)], rest[len(late) :]
    least = {WhatIf.COMM_OVERLAPPED: program.busy_ms}
    results = []
    for (question, _, basis, bound), ms in zip(asked, answers, strict=True):
        step = scale * max(ms, least.get(question, 0.0))
        if step_ms - step > _NOTHING * step_ms:
            results.append(
                WhatIfResult(
                    question=question,
                    step_ms=step,
                    saves_ms=step_ms - step,
                    basis=f"{TOGETHER}, {basis}",
                    bound=bound,
                )
            )
    without = min(step_ms, scale * answers[0])
    return Answered(
        what_ifs=tuple(sorted(results, key=lambda result: -result.saves_ms)),
        costs_ms=tuple(max(0.0, scale * ms - without) for ms in costs),
        without_late_ms=without,
        error=error,
    )


def _hosts_ms(
    found: Found, causes: Sequence[LateCause], summaries: Sequence[RankSummary], steps: int
) -> Floats:
    """Return what the hosts of ranks take whose devices are late, (n, steps): that remains; 0 for others."""
    out = np.zeros((len(summaries), steps))
    for late, cause in zip(found.late, causes, strict=True):
        for lane in late.lanes if cause in OF_DEVICE else ():
            if summaries[lane].alone_host_ms:
                out[lane] = np.median(summaries[lane].alone_host_ms)
    return out


def _of_causes(summaries: Sequence[RankSummary]) -> dict[WhatIf, bool]:
    """Return the questions that any rank can answer alone, and whether the answer is a bound."""
    found: dict[WhatIf, bool] = {}
    for summary in summaries:
        for each in summary.alone_without:
            found[each.question] = found.get(each.question, False) or each.bound
    return found


def _removed(summary: RankSummary, question: WhatIf, steps: int) -> Floats:
    """Return what a rank is shorter alone without a cause, (steps,)."""
    saved = next((each.saves_ms for each in summary.alone_without if each.question is question), ())
    found = np.asarray(saved[-steps:], dtype=np.float64)
    typical = float(found.mean()) if len(found) else 0.0
    return np.concatenate([np.full(steps - len(found), typical), found])
