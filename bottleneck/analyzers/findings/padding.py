"""Padding: positions of a batch that are computed and not used.

In: facts. Out: finding BN312.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import WhatIf
from ...model.finding import Evidence, Finding
from ...model.words import ms, percent
from ...timeline.steps.facts import MUCH_PADDING
from ..base import Analyzer, Facts


class Padding(Analyzer):
    """Much of the batch is padding.

    What it means
        Samples of different length are padded to the longest of their batch, or to a fixed length.
        The model computes the padded positions like all others, and the loss ignores them.

    How it is measured
        The first batches of the loader: positions that the attention mask, or a boolean mask in the
        shape of a padding mask, marks as padded; else the ends of rows of integers that are one number,
        which hardly occurs elsewhere.

    What it costs you
        The step is replayed with a share of the work of forward, loss and backward gone: what lies
        behind the longest sample of each batch, where that is a tenth or more, else all padding. This
        is an upper bound: batches of similar lengths are padded a little, too. Attention, which grows
        with the square of the length, may save more.

    What it is not
        Not a mask that hides future positions: those belong to the sample.

    What to do
        Put samples of similar length into one batch, pack several into one row, or pad to the
        longest sample of the batch instead of a fixed length.

    Source
        Krell et al., "Efficient sequence packing without cross-contamination", 2021.
    """

    code = "BN312"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price what is padded."""
        share = facts.number("batch.padding_share")
        answer = facts.ask(WhatIf.PADDING_GONE)
        if share is None or share < MUCH_PADDING or answer is None:
            return
        loader, beyond = facts.training_loader(), facts.number("batch.beyond_share") or 0.0
        title = f"{percent(share)} of the batch is padding, which takes up to {ms(answer.saves_ms)} per step"
        if beyond >= MUCH_PADDING:
            title = f"{percent(beyond)} of a batch is behind its longest sample: up to {ms(answer.saves_ms)}"
        yield self.finding(
            facts,
            title,
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{percent(share)} of the positions are padded",
                    value=share,
                    unit="share",
                    source="batches",
                )
            ],
            sites=[loader.site if loader is not None else None],
            not_this="Some padding always remains.",
        )
