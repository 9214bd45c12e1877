"""What the samples of the warm-up say about the training loop's lines.

In: run.json, whose `sites` hold the samples by part of the loop. Out: the line that dominates a part,
how the time between an update and the next forward divides, and how much of the step runs in which
Python loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...model.run import SAMPLED, SAMPLED_BACKWARD, LoopTime, Run, SiteTime, SourceSite
from ...model.view import CodeNode

_FEWEST_SAMPLES = 8
"""Fewest samples, a millisecond apart; a quarter more or less is chance."""
_FEWEST_IN_LOOP = 5
"""A loop is seen through many lines at once: five samples are no accident of one of them."""
MAIN_SHARE = 0.25
"""A line, a span or a loop with less of a cost than this is not where it arises."""
NEARLY_ALL = 0.8
"""What one line or loop has so much of is its own."""


def rounds_of(nodes: Sequence[CodeNode], loops: Sequence[LoopTime] = ()) -> list[CodeNode]:
    """Return the rounds of loops in which the user's lines and operators do nearly all of some code.

    The dearest first, of nested ones the outer; none where it is not done in rounds. `loops`: those of which
    it is known whether their rounds need each other, which are none then. Averages that a loop writes into a
    state look like it.
    """
    rounds = sorted(
        (each for node in nodes for each in _rounds(node, loops)), key=lambda each: -each.own_ms()
    )
    nearly = NEARLY_ALL * sum(node.ms for node in nodes) <= sum(each.own_ms() for each in rounds)
    return rounds if nearly else []


def _rounds(node: CodeNode, loops: Sequence[LoopTime]) -> Iterator[CodeNode]:
    here = [loop for loop in loops if loop.site.file == node.file]
    around = [loop for loop in here if loop.rounds[0] <= node.line <= loop.rounds[1]]
    inner = min(around, key=lambda loop: loop.last_line - loop.site.line, default=None)
    if node.in_rounds and not (inner is not None and inner.carried):
        yield node
        return
    for child in node.children:
        yield from _rounds(child, loops)


def main_site(run: Run | None, *parts: str) -> SourceSite | None:
    """Return the line that most samples of some parts of the loop fell on; None if they scatter."""
    found = [item for item in run.sites if item.phase in parts] if run is not None else []
    most = max(found, key=lambda item: item.count, default=None)
    if most is None or most.count < MAIN_SHARE * sum(item.count for item in found):
        return None
    return most.site


def noted_site(run: Run | None, *phases: str) -> SourceSite | None:
    """Return the line that the harness noted most often for the first of the phases it noted at all."""
    for phase in phases:
        seen = [item for item in run.sites if item.phase == phase] if run is not None else []
        if seen:
            return max(seen, key=lambda item: item.count).site
    return None


def after_share(sites: Sequence[SiteTime]) -> float | None:
    """Return the share of the time between update and forward that still belongs to the last step.

    None where too few samples fell there: then it is short, or the lines' order does not tell.
    """
    count = {part: sum(item.count for item in sites if item.phase == part) for part in SAMPLED}
    after, before = count["sampled after"], count["sampled before"]
    return after / (after + before) if after + before >= _FEWEST_SAMPLES else None


SAMPLED_IN = {
    (True, "forward"): "sampled forward",
    (False, "forward"): "sampled between",
    # A model that acts or labels stands in front of the forward that is trained.
    (False, "evaluation"): "sampled before",
    **{(inside, "backward"): "sampled between" for inside in (True, False)},
    **{(inside, phase): "sampled after" for inside in (True, False) for phase in ("optimizer", "zero_grad")},
}
"""(whether inside of it, the phase that began last) -> the part of the loop that it stands in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopShares:
    """How much of each part of the step runs in one Python loop, 0 to 1."""

    forward: float
    between: float
    """Of the time from the forward to the update, without the backward."""
    after: float
    """Of the time from the update to the making of the next batch."""
    update: float
    """Of the update, where the optimizer is the script's own."""
    backward: float = 0.0
    """Of making gradients: rounds that ask for some."""


def loop_shares(loop: LoopTime) -> LoopShares | None:
    """Return the loop's shares; None where fewer samples than `_FEWEST_IN_LOOP` fell into it.

    What stands before the forward makes the batch: that is the input's, loop or not.
    """
    parts = (*SAMPLED[1:], SAMPLED_BACKWARD)
    if sum(loop.seen.get(part, 0) for part in parts) < _FEWEST_IN_LOOP:
        return None
    between, after, forward, update, backward = (
        loop.seen.get(part, 0) / max(1, loop.of.get(part, 0)) for part in parts
    )
    return LoopShares(forward=forward, between=between, after=after, update=update, backward=backward)
