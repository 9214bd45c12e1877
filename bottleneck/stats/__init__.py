"""Intervals, spreads and decisions about noisy times; numpy only, arrays in and numbers out."""

from __future__ import annotations

from .decide import BOUND_WEIGHT, CLOSE, RIVAL_SHARE, Effect, weigh_effect, worth
from .interval import mean_interval
from .spread import mad_spread
from .typical import TypicalStep, typical_step

__all__ = [
    "BOUND_WEIGHT",
    "CLOSE",
    "RIVAL_SHARE",
    "Effect",
    "TypicalStep",
    "mad_spread",
    "mean_interval",
    "typical_step",
    "weigh_effect",
    "worth",
]
