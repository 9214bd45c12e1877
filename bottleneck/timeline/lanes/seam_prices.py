"""What each set of graph breaks costs, of what all seams together do.

In: a `Replay` at true speed, an edit per set. Out: `SeamPrice`s that add up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..result import SeamPrice
from .labels import Work
from .replay import Edit, Replay

_MOST_REPLAYED = 16
"""Sets of breaks that are replayed one by one; seams of more are priced by the first of them."""


def price_seams(
    replay: Replay,
    base: Edit,
    without: Callable[[int], Edit],
    *,
    steps: int,
    true_ms: float,
    together_ms: float,
) -> tuple[SeamPrice, ...]:
    """Share the price of all seams out among the sets of breaks that they are owed to.

    Each set's seams are taken away alone; what all of them save together is divided in proportion, so
    that the prices add up (behind a busy device several seams may each cost nothing alone: then in
    proportion to their host time).

    `base` is the edit under which it runs at true speed, `together_ms` what the step saves with all seams
    gone.
    """
    program = replay.program
    owners, counts = program.host_work.seam_owners, program.host_work.seam_count
    if not owners:
        return ()
    reference = replay.run(base).step_ns
    host = program.seam_work.sum(axis=0) / max(1, program.steps) / 1e6 * base.factors()[Work.SEAM]
    alone = np.zeros(len(owners))
    for group in np.argsort(-host)[:_MOST_REPLAYED].tolist():
        alone[group] = max(0.0, reference - replay.run(base.and_also(without(group))).step_ns)
    weight = alone if alone.sum() > 0 else host
    shares = weight / weight.sum() if weight.sum() > 0 else weight
    scale = true_ms * 1e6 / reference if reference else 1.0
    return tuple(
        SeamPrice(
            owners=each,
            per_step=counts[group] / max(1, steps),
            host_ms=float(host[group]) * scale,
            cost_ms=together_ms * float(shares[group]),
        )
        for group, each in enumerate(owners)
    )
