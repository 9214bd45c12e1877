"""Is an effect larger than the noise it was measured in, and what does a predicted one count for?

In: the effect, the interval of what it is compared with, the smallest effect that matters. Out:
`Effect`, an answer that may be "undecided" (pyperf's order: enough samples, then larger than the
noise, then large enough to matter); the weight of a saving compared with others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..model.finding import NEGLIGIBLE_SHARE

BOUND_WEIGHT = 0.7
"""Weight of a bound compared with an estimate of the same size: "at most 50 ms" is a weaker reason to start
there than "40 ms". In trials, fixes saved at least 0.55 of their bound (reports/trials.md, accuracy.md)."""
CLOSE = 0.3
"""A figure that lies within this share of a limit is close to it: limits are no better known than that."""
RIVAL_SHARE = 0.5
"""A saving with less than half of the best one's weight cannot replace it."""


def worth(saves_ms: float, *, bound: bool, weight: float | None = None) -> float:
    """Return the weight of a saving when causes or fixes are sorted, in ms.

    `weight` is that of a bound of which more is known than of bounds in general.
    """
    if not bound:
        return saves_ms
    return saves_ms * (BOUND_WEIGHT if weight is None else weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The weight of one effect."""

    decision: Literal["real", "negligible", "undecided"]
    noise_ms: float
    """Half width of the interval that the effect must exceed."""
    ratio: float
    """Effect over noise; infinite when there is no noise."""


def weigh_effect(
    effect_ms: float,
    *,
    step_ms: float,
    interval_ms: tuple[float, float] | None,
    relative_error: float = 0.0,
) -> Effect:
    """Weigh a saving against the noise of the step time and the error of the prediction.

    Below `NEGLIGIBLE_SHARE` of the step it is "negligible", above the noise "real", otherwise "undecided", as
    all others are without a 95 % interval of the step. `relative_error` is that of the replay, as a share of
    the step.
    """
    half_width = (interval_ms[1] - interval_ms[0]) / 2.0 if interval_ms is not None else 0.0
    noise = half_width + relative_error * step_ms
    ratio = effect_ms / noise if noise > 0 else float("inf")
    if effect_ms < NEGLIGIBLE_SHARE * step_ms:
        decision: Literal["real", "negligible", "undecided"] = "negligible"
    elif interval_ms is None or ratio < 1.0:
        decision = "undecided"
    else:
        decision = "real"
    return Effect(decision=decision, noise_ms=noise, ratio=ratio)
