"""Double precision: the training computes in float64.

In: facts. Out: finding BN310.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.codes import WhatIf
from ...model.finding import Evidence, Finding
from ...model.words import ms
from ..base import Analyzer, Facts

__all__ = ["DoublePrecision"]


class DoublePrecision(Analyzer):
    """The parameters are float64, and so is all that is computed with them.

    What it means
        NumPy makes float64 arrays; a model turned .double() to match them computes everything in
        double precision. That is rarely wanted: gradients are noisier than float32 is coarse.

    How it is measured
        The dtype of most elements that the optimizers update.

    What it costs you
        On a CPU about half of the operators' work: half the bytes, and twice the numbers in a vector
        register. GPUs differ: data-centre ones compute float64 at half the rate of float32 and without
        its faster modes, others at a sixty-fourth; there no price is given.

    What it is not
        Not a few float64 scalars (learning rates, metrics): only parameters count.

    What to do
        Convert the data once, torch.from_numpy(x).float(), and leave the model in float32.

    Source
        PyTorch documentation, torch.set_default_dtype; NVIDIA H100 and RTX 4090 data sheets (rates).
    """

    code = "BN310"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report float64 parameters."""
        if facts.context.get("optimizer.parameter_dtype") != "float64" or facts.run is None:
            return ()
        answer = facts.ask(WhatIf.SINGLE_PRECISION)
        title = "The model trains in float64"
        if answer is not None:
            title += f"; in float32 the step would take {ms(answer.step_ms)}"
        return (
            self.finding(
                facts,
                title,
                answer=answer,
                evidence=[Evidence(text="parameters are float64", source="optimizer's parameters")],
                sites=[item.site for item in facts.run.optimizers],
                not_this="Changes numerics: compare losses before keeping it.",
                note=answer is None,
            ),
        )
