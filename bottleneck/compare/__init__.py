"""Two sets of runs against each other: what grew, whether that can be told, and what caused it.

In: run folders, diagnoses, baselines, or a script to run. Out: a `Comparison`. Counters have no noise
and decide at once; times are decided from repeated runs or left undecided.
"""

from __future__ import annotations

__all__: list[str] = []
