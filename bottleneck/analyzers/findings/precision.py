"""Double precision: the training computes in float64.

In: facts. Out: finding BN310.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import WhatIf
from ...model.finding import Evidence, Finding
from ...model.words import ms
from ..base import Analyzer, Facts


class DoublePrecision(Analyzer):
    """The parameters are float64, and so is everything computed with them.

    What it means
        NumPy makes float64 arrays. A model that is converted with .double() to match them computes
        everything in double precision. That is rarely needed: the noise of the gradients is larger
        than the rounding of float32.

    How it is measured
        The dtype of most parameters that the optimizers update.

    What it costs you
        On a CPU about half of the operators' work: float32 has half the bytes, and a vector
        register holds twice as many numbers. GPUs differ, so no price is given there: data-centre
        GPUs compute float64 at half the rate of float32 and without its faster modes, others at a
        sixty-fourth.

    What it is not
        Not a few float64 scalars (learning rates, metrics): only parameters count.

    What to do
        Convert the data once, torch.from_numpy(x).float(), and leave the model in float32.

    Source
        PyTorch documentation, torch.set_default_dtype; NVIDIA H100 and RTX 4090 data sheets (rates).
    """

    code = "BN310"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report float64 parameters."""
        if facts.context.get("optimizer.parameter_dtype") != "float64" or facts.run is None:
            return
        answer = facts.ask(WhatIf.SINGLE_PRECISION)
        title = "The model trains in float64"
        if answer is not None:
            title += f"; in float32 the step would take {ms(answer.step_ms)}"
        yield self.finding(
            facts,
            title,
            answer=answer,
            evidence=[Evidence(text="parameters are float64", source="optimizer's parameters")],
            sites=[item.site for item in facts.run.optimizers],
            not_this="float32 changes the numerics: compare losses before keeping it.",
            note=answer is None,
        )
