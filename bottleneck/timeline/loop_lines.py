"""What the samples of the warm-up say about the training loop's lines.

In: run.json, whose `sites` hold the samples by part of the loop. Out: the line that dominates a part,
and how the time between an update and the next forward divides.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model.run import SAMPLED, Run, SiteTime, SourceSite

__all__ = ["after_share", "main_site"]

_FEWEST_SAMPLES = 8
"""Samples, a millisecond apart, of which a quarter more or less is chance."""
_MAIN_SHARE = 0.25
"""A line with fewer of a part's samples than this is not where its time goes."""


def main_site(run: Run | None, *parts: str) -> SourceSite | None:
    """Return the line that most samples of some parts of the loop fell on; None if they scatter."""
    found = [item for item in run.sites if item.phase in parts] if run is not None else []
    most = max(found, key=lambda item: item.count, default=None)
    if most is None or most.count < _MAIN_SHARE * sum(item.count for item in found):
        return None
    return most.site


def after_share(sites: Sequence[SiteTime]) -> float | None:
    """Return the share of the time between update and forward that still belongs to the last step.

    None where too few samples fell there: then it is short, or the lines' order does not tell.
    """
    count = {part: sum(item.count for item in sites if item.phase == part) for part in SAMPLED}
    after, before = count["sampled after"], count["sampled before"]
    return after / (after + before) if after + before >= _FEWEST_SAMPLES else None
