"""Precision of the parameters and of the math: float64 anywhere, 16 bits on a CPU, conversions.

In: facts. Out: findings BN310, BN313, BN324 and BN326.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import WhatIf
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.words import ms, percent
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


class HalfPrecisionOnCpu(Analyzer):
    """The CPU computes in float16 or bfloat16.

    What it means
        Few CPUs multiply matrices in 16 bits: bfloat16 needs AVX512_BF16 or AMX, float16 needs
        AVX512_FP16 or AMX_FP16. Without these units each product is converted or computed number
        by number, and takes many times as long as in float32. With them, small products may still
        take longer. Autocast also casts inputs and weights in every forward.

    How it is measured
        The type that autocast computes in, or else that of most parameters. After the capture the
        step's largest matrix products are timed in that type and in float32, on this machine.

    What it costs you
        The step with its matrix products at the rate of float32, and without the casts. The finding
        is not there if the products would take longer than the casts do.

    What it is not
        Not mixed precision on a GPU, where 16 bits are the fastest.

    What to do
        Compute in float32 where training runs on a CPU.

    Source
        PyTorch documentation, torch.amp, CPU op-specific behaviour; pytorch/pytorch issues 118499
        and 146508.
    """

    code = "BN313"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report 16 bits on a CPU."""
        kind = facts.context.get("math.half")
        if facts.run is None or not isinstance(kind, str):
            return
        answer = facts.ask(WhatIf.SINGLE_PRECISION)
        if answer is None and facts.run.matmul_tflops:
            return
        title = f"The CPU computes in {kind}"
        if answer is not None:
            title += f"; at the rate of float32 the step would take {ms(answer.step_ms)}"
        rates = ", ".join(f"{name} {1e3 * rate:.1f}" for name, rate in facts.run.matmul_tflops.items())
        yield self.finding(
            facts,
            title,
            answer=answer,
            evidence=[Evidence(text=f"matrix products: {rates or 'not measured'} GFLOP/s", source="probe")],
            sites=facts.sites("forward") or [item.site for item in facts.run.optimizers],
            not_this="On a GPU 16 bits are faster.",
            note=answer is None,
        )


class ConvertedAgain(Analyzer):
    """The same tensor is converted to another number type several times in a step.

    What it means
        Autocast keeps what it converts of weights until its context ends, so that a second call of a
        layer converts nothing. It does not where its cache is off, where each call enters a context of
        its own, or behind a call without gradients. What is no weight it converts for each operation
        that takes it: the output of a norm three times, for queries, keys and values.

    How it is measured
        In one step, the nodes of the backward's graph that convert: those whose tensor another of them
        has converted before. Not in compiled code.

    What it costs you
        The step is replayed without these conversions, forward and backward.

    What it is not
        Not the one conversion of each tensor that computing in 16 bits takes.

    What to do
        Keep what was converted: by autocast's cache for weights, by a line of your own for the rest.

    Source
        PyTorch documentation, torch.autocast; Lightning-AI/pytorch-lightning issue 21611.
    """

    code = "BN326"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Say how many conversions, and where."""
        answer = facts.ask(WhatIf.CONVERTED_ONCE)
        graph = facts.run.graph if facts.run is not None else None
        if answer is None or graph is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        count, weights = round(sum(graph.again)), graph.weights_again
        yield self.finding(
            facts,
            f"Tensors are converted again, {count} times per step, {ms(answer.saves_ms)}",
            answer=answer,
            evidence=[
                Evidence(text=f"{weights} of {count} convert a weight", source="the graph of one step")
            ],
            sites=graph.sites_of(map(bool, graph.again)) or facts.forward_sites(),
            not_this="What must be in both types is converted once.",
        )


class DenormalNumbers(Analyzer):
    """Numbers are so small that the processor takes a detour for each.

    What it means
        Below 1.2e-38 float32 numbers are denormal. Most CPUs compute with them in microcode, at a
        tenth to a hundredth of the usual rate: a product with a weight matrix of such numbers took
        1,000 ms instead of 8. Weights that only decay get there, and so do states of an optimizer
        and gradients that vanish.

    How it is measured
        The bits of parameters, gradients and the optimizer's state, up to 65,536 numbers of each,
        after the capture.

    What it costs you
        How much longer a product takes with such numbers is measured on this machine. The step is
        replayed with their share of the numbers at the usual rate: a bound, since one of them holds
        up others that are computed with it. A trial takes them for zeros and times the step.

    What it is not
        Not a matter of GPUs, which compute with denormal numbers at full rate.

    What to do
        torch.set_flush_denormal(True) before the first operator: each thread begins with the switch
        of the one that starts it.

    Source
        PyTorch documentation, torch.set_flush_denormal; measurements of this tool (Xeon, AVX512).
    """

    code = "BN324"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report a share that matters, where the processor computes with them."""
        answer, share = facts.ask(WhatIf.DENORMALS_GONE), facts.number("denormals.share") or 0.0
        if answer is None or facts.run is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        yield self.finding(
            facts,
            f"{percent(share)} of the optimizer's numbers are denormal: up to {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{percent(share)} of parameters, gradients and state: below 1.2e-38, not zero",
                    value=share,
                    source="bits of these tensors",
                ),
                Evidence(text=answer.basis, source="probe"),
            ],
            sites=[item.site for item in facts.run.optimizers],
            not_this="What they cost depends on the processor: a trial tells.",
        )
