"""Compute-bound: the device (or, without one, the operators) is at work.

In: facts. Out: findings BN301, BN306 and BN311; what limits the kernels is in kernels.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...model.codes import WORK_PARTS, Part, WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.flops import ROW_PRODUCTS
from ...model.run import GraphLines, SourceSite
from ...model.words import ms, percent
from ..base import Analyzer, Facts, kernel_evidence
from ..sections.compute_facts import compute_facts, dtype_text

_LEAST_UNGRADED = 0.05
"""Share of the step; less is not reported."""


def _second_question(facts: Facts) -> list[Evidence]:
    """Data types of the math, its rate against the peak, and how much of it was padding."""
    known = compute_facts(facts)
    if known is None:
        return []
    out: list[Evidence] = []
    if known.math:
        shares = ", ".join(
            f"{dtype_text(row.dtype)} {percent(row.share)}"
            + ("" if row.tensor_cores else " outside the tensor cores")
            for row in known.math[:4]
        )
        out.append(
            Evidence(
                text=f"products, convolutions and attention by type: {shares}",
                value=known.tensor_core_share,
                unit="share on tensor cores",
                source="trace",
            )
        )
    if known.achieved_tflops is not None:
        text = f"{rate(known.achieved_tflops)} achieved over the step"
        if known.math_tflops is not None:
            text += f", {rate(known.math_tflops)} while the math runs"
        if known.utilisation is not None and known.peak_tflops is not None:
            which, mix = f"{known.peak_dtype} peak", ""
            if "%" in known.peak_dtype:
                which, mix = "peak", f"for {known.peak_dtype}; "
            text += (
                f": {percent(known.utilisation)} of the {which} of {rate(known.peak_tflops)} "
                f"({mix}{known.peak_source})"
            )
        out.append(Evidence(text=text, value=known.achieved_tflops, unit="TFLOP/s", source=known.flops_from))
    if known.padding_share:
        out.append(
            Evidence(
                text=f"{percent(known.padding_share)} of the batch is padding: computed but not used",
                value=known.padding_share,
                unit="share",
                source="batches",
            )
        )
    return out


def rate(tflops: float) -> str:
    """Write a rate: "412 TFLOP/s", "3.1 GFLOP/s"."""
    value, unit = (tflops, "TFLOP/s") if tflops >= 1 else (tflops * 1e3, "GFLOP/s")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


class DeviceBusy(Analyzer):
    """The device is busy nearly all the time.

    What it means
        Nothing on the host keeps the step waiting for long. Its length is that of the kernels (on a
        CPU, of the operators). The next question is which of them take the time, and whether they
        could be cheaper.

    How it is measured
        The step budget divides the true step time into work by kind and idle time by cause, each
        moment counted once. On a CPU the fixed cost of every operator, measured on this machine, is
        dispatch; the rest of its time is work. The kernels that ran show the data type of the math.
        FLOPs come from the shapes of one extra step; peaks are the published ones.

    What it costs you
        Work has no price, since it cannot simply be removed. BN302 to BN309 say what cheaper work
        would save (another dtype, a fused kernel), where the trace supports it.

    What it is not
        Not efficiency. A device can be busy all the time and still run at a tenth of its peak: look
        at the kinds of kernels, at padding, at fp32.

    What to do
        Lower precision where the device has units for it, fused attention and optimizer,
        torch.compile for element-wise chains. Then less wasted work: less padding, packed
        sequences.

    Source
        Williams et al., "Roofline", CACM 2009; PyTorch performance tuning guide.
    """

    code = "BN301"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """State how the work divides, when it fills most of the step."""
        work = facts.timeline.part_ms(*WORK_PARTS)
        share = work / facts.true_ms if facts.true_ms > 0 else 0.0
        if share < 0.3:
            return
        lines = [line for line in facts.timeline.budget if line.part in WORK_PARTS and line.ms > 0]
        who = "The device" if facts.timeline.kind == "gpu" else "Operators"
        are = "is" if facts.timeline.kind == "gpu" else "are"
        evidence = [
            Evidence(
                text=f"{line.part.value}: {ms(line.ms)} ({percent(line.share)})",
                value=line.ms,
                unit="ms/step",
                source="step budget",
            )
            for line in lines
        ]
        evidence += _second_question(facts)
        if facts.run is not None and facts.run.matmul_tflops:
            rates = ", ".join(f"{k} {v:.0f}" for k, v in facts.run.matmul_tflops.items())
            evidence.append(
                Evidence(
                    text=f"dense matmul measured on this device, TFLOP/s: {rates}", source="device probe"
                )
            )
        yield self.finding(
            facts,
            f"{who} {are} at work for {ms(work)} of {ms(facts.true_ms)} ({percent(share)})",
            time_ms=work,
            evidence=[*evidence, *kernel_evidence(facts)],
            sites=facts.lines_of_work(),
            not_this="A busy device is not necessarily an efficient one.",
        )


class ForwardWithoutGradients(Analyzer):
    """A model runs without gradients in every step.

    What it means
        A teacher, a frozen encoder, a reference or target model, or a policy that acts: its forward
        is part of each step, in addition to that of the model that is trained.

    How it is measured
        The time of module calls while gradients are off, in steps of the baseline window. Steps
        with many more such calls than usual contain an evaluation and do not count. Inside the forward
        of the model that is trained: its operators that no backward visits, where it holds a module of
        whose parameters none needs a gradient. The version counters of the parameters show whether the
        model changes.

    What it costs you
        The step without those calls (GPU: without the kernels that they launch). An upper bound:
        what replaces them, such as reading stored outputs, takes time too.

    What it is not
        Not an evaluation every N steps, which is other host work (BN901).

    What to do
        If it is frozen and sees the same samples again: store its outputs once. Otherwise run it in
        torch.inference_mode(), in lower precision, or compiled. If layers that are trained make its
        inputs, nothing that is trained reads its outputs: do not compute them (for a language model
        of which only the hidden states are used, logits_to_keep=1, or its body without the head).

    Source
        Rombach et al., "High-resolution image synthesis with latent diffusion models", 2022.
    """

    code = "BN311"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price it."""
        answer = facts.ask(WhatIf.FORWARD_STORED)
        if answer is None or answer.saves_ms < _LEAST_UNGRADED * facts.true_ms:
            return
        spent = facts.phases_ms.get("evaluation")
        frozen = facts.is_on("ungraded.frozen")
        evidence = []
        if spent:
            evidence.append(
                Evidence(
                    text=f"{ms(spent)} of host time per step in module calls without gradients",
                    value=spent,
                    unit="ms/step",
                    source="baseline window",
                )
            )
        if frozen is not None:
            text = "it did not change before the trace" if frozen else "it changes during the training"
            evidence.append(Evidence(text=text, source="versions of its parameters"))
        elif facts.is_on("ungraded.twin"):
            text = "it is built like the model that is trained, which may be copied to it later"
            evidence.append(Evidence(text=text, source="modules of the program"))
        repeats = facts.run.repeats if facts.run is not None else None
        if repeats is not None and repeats.fed_share:
            evidence.append(
                Evidence(
                    text=f"layers that are trained make the inputs of {percent(repeats.fed_share)} of it, "
                    "and no backward goes through it: nothing that is trained reads those outputs",
                    value=repeats.fed_share,
                    unit="share",
                    source="calls of modules",
                )
            )
        yield self.finding(
            facts,
            f"A model without gradients takes up to {ms(answer.saves_ms)} of each step",
            answer=answer,
            time_ms=spent,
            evidence=evidence,
            sites=facts.sites("evaluation")[:1] or _longest_in_forward(facts),
            not_this="An evaluation every N steps is counted separately.",
        )


def _longest_in_forward(facts: Facts) -> tuple[SourceSite, ...]:
    """Return the line of the model's forward that takes longest."""
    top = facts.timeline.tree
    calls = [node for node in top.children if node.role == "forward"] if top is not None else []
    inside = [inner for node in calls for inner in node.children]
    longest = max(inside, key=lambda node: node.ms, default=None)
    if longest is None or longest.site is None:
        return facts.sites("forward")[:1]
    return (longest.site,)


def _fusable(facts: Facts) -> list[Evidence]:
    known = facts.timeline.compute
    if known is None or not known.fusable_ms or facts.true_ms <= 0:
        return []
    return [
        Evidence(
            text=f"at most {ms(known.fusable_ms)} of it ({percent(known.fusable_ms / facts.true_ms)} of the "
            "step) are kernels that could be fused with a neighbour",
            value=known.fusable_ms,
            unit="ms/step",
            source="trace",
        )
    ]


class MemoryBoundKernels(Analyzer):
    """Element-wise, normalisation and copy kernels take a large part of the work.

    What it means
        These kernels do little arithmetic per byte: their time is memory traffic. Each kernel in a
        chain reads and writes the whole tensor again.

    How it is measured
        Kernels (CPU: operators) are classified by name; their time is compared with the true step.

    What it costs you
        The step is replayed with every run of neighbouring element-wise kernels reduced to its
        longest: a fused kernel still reads the input and writes the result. This is only a bound,
        since shapes and reductions also end a fusion. To find out, try torch.compile.

    What it is not
        Not a defect where the tensors are small: then launches set the pace (BN501).

    What to do
        torch.compile, fused kernels for normalisation, rotary embedding and loss, bf16 activations.

    Source
        Ivanov et al., "Data Movement Is All You Need", MLSys 2021.
    """

    code = "BN306"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report a large memory-bound share."""
        share = facts.number("kernels.memory_bound_share")
        if share is None:
            share = facts.timeline.part_ms(Part.MEMORY_BOUND) / max(facts.true_ms, 1e-9)
        if share < 0.2:
            return
        yield self.finding(
            facts,
            f"Memory-bound work takes {percent(share)} of the step",
            time_ms=share * facts.true_ms,
            evidence=[*_fusable(facts), *kernel_evidence(facts, Part.MEMORY_BOUND)],
            sites=facts.lines_of_work(),
            not_this="The saving depends on the chains of kernels: the figure shown is a bound.",
        )


class GradientsNobodyUses(Analyzer):
    """Gradients are computed that nobody uses.

    What it means
        A part of the model is meant to stay as it is, and was left out of the optimizer. Its
        parameters still need gradients, so that the backward computes them, in each step. Or one
        model's loss goes back through another model, as a discriminator's through the generator, and
        zero_grad() clears what it leaves there. Or a function with a backward of its own returns
        gradients for inputs that need none: autograd drops them.

    How it is measured
        In one step, who looks at a parameter's gradient between the backward that makes it and what
        clears it. The graph of that backward tells which of its nodes lead to nothing but unread
        gradients. Hooks count as readers. Not in compiled code, nor where ranks train together:
        there, the parameters that have a gradient and no optimizer are counted.

    What it costs you
        The replay shortens the backward by these nodes, and by one factor's share of a product's
        backward. Where only the parameters are counted, the figure is their share of the backward.

    What it is not
        Not layers that a gradient only passes through on its way to others: these have to stay.

    What to do
        parameter.requires_grad_(False) for what is never updated. Where that is the beginning of the
        model, run it under torch.no_grad(). For what another loss updates, detach() what comes from
        it, or name what this backward is for: loss.backward(inputs=list(own.parameters())). In a
        function of your own, look at ctx.needs_input_grad, and return None where it is False.

    Source
        PyTorch notes, "Autograd mechanics"; awslabs/fortuna issue 90, JDAI-CV/fast-reid issue 178,
        NVIDIA/apex pull request 1517.
    """

    code = "BN315"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Say of which backward, and of which functions; without a graph, how many parameters."""
        graph = facts.run.graph if facts.run is not None else None
        answer = facts.ask(WhatIf.DROPPED_GONE)
        if graph is not None and answer is not None:
            yield from self._priced(facts, graph, answer)
            if graph.unread:
                return
        share = facts.number("gradients.unused_share") or 0.0
        backward_ms = facts.phases_ms.get("backward")
        if share < NEGLIGIBLE_SHARE or not backward_ms:
            return
        yield self.finding(
            facts,
            f"{percent(share)} of the parameters get a gradient that no optimizer uses; the backward takes "
            f"{ms(backward_ms)}",
            cost_ms=min(facts.true_ms, share * backward_ms),
            time_ms=backward_ms,
            evidence=[Evidence(text=f"{percent(share)} of the parameters", source="optimizers and modules")],
            sites=facts.sites("backward"),
            not_this="Their price is not known from the trace: it is measured where it is tried.",
        )

    def _priced(self, facts: Facts, graph: GraphLines, answer: WhatIfResult) -> Iterator[Finding]:
        if answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        returned = [
            f"{name} ({percent(share)} of its gradients)" for name, share in sorted(graph.dropped.items())
        ]
        backward = [
            f"the backward of {Path(each.site.file).name}:{each.site.line}"
            f" (for {each.unread} of {each.tensors} parameters)"
            for each in graph.unread_by
        ]
        yield self.finding(
            facts,
            f"Gradients that nobody uses are computed in {', '.join(backward + returned)}",
            answer=answer,
            evidence=[
                *(Evidence(text=f"never read: {told}", source="the graph of one step") for told in backward),
                *(
                    Evidence(text=f"dropped by autograd: {told}", source="the graph of one step")
                    for told in returned
                ),
            ],
            sites=[
                *(each.site for each in graph.unread_by),
                *graph.sites_of(graph.names[node] in graph.dropped for node in graph.node),
            ],
            not_this="Each gradient of a function of your own, and each factor of a product, counts alike.",
        )


class OutputsNobodyCounts(Analyzer):
    """Rows are computed that have no part in the loss.

    What it means
        The last layer computes a row for each position, and the loss looks at a part of them: labels
        are ignored (the prompt of an answer, words that are not masked), a mask takes positions out,
        only the last step counts. With a large vocabulary this layer is a large part of the model. Or
        a layer computes all rows, and some are multiplied by zero behind it: a branch that is dropped
        for a part of the samples, experts that all tokens go through, positions that are padding.

    How it is measured
        In one step, the rows of the gradient that reaches the matrix products: where it is zero in all
        places, the row has no part in the loss. What the loss leaves out counts for the last products
        only: the layers before them may need it. Not in compiled code.

    What it costs you
        The step is replayed with these products and what follows them shorter by these rows, forward
        and backward. Picking the other rows takes time, too.

    What it is not
        Not rows of which only the loss itself knows that they do not count, as those within the
        margin of a hinge: they have to be computed. Padding is told apart, in BN312.

    What to do
        Pick the rows that count before the last layer, not after it.

    Source
        verl-project/verl issue 7686; google-research/bert, gather_indexes in run_pretraining.py.
    """

    code = "BN320"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Say how many rows, and where they are computed."""
        answer = facts.ask(WhatIf.IDLE_ROWS_GONE)
        graph = facts.run.graph if facts.run is not None else None
        if answer is None or graph is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        share = max(graph.idle)
        products = (
            idle > 0 and graph.names[node].startswith(ROW_PRODUCTS)
            for node, idle in zip(graph.node, graph.idle, strict=True)
        )
        yield self.finding(
            facts,
            f"{percent(share)} of the rows that a layer computes have no part in the loss",
            answer=answer,
            evidence=[
                Evidence(text=f"{percent(share)} of the rows get no gradient", source="the graph of one step")
            ],
            sites=graph.sites_of(products) or facts.forward_sites(),
            not_this="Where only the loss can tell which rows count, they have to be computed.",
        )


_AGAIN = {
    "repeated": "computes again what this step has computed",
    "tested": "runs the model once more, on what this step trains on",
    "steady": "computes in each step what does not change",
}
"""Sites of repeated calls, by phase -> what is said of the call."""


class ForwardRepeated(Analyzer):
    """A module or a function computes again what is known from this step, or from another one.

    What it means
        Two parts of the script need the same output, and each computes it: for the policy and the value
        of one network, for the loss and a metric, in each layer for the same positions or links. Or
        each step computes what no step changes: masks, tables, the norms of a graph.

    How it is measured
        The calls of all modules, and of torch's functions, in the steps in which FLOPs are counted. A
        module repeats itself if it is given the same values, its parameters are unchanged, and neither
        call drew random numbers; a function if it is given the same values, and if the same comes out.
        Values are the same that the same functions have computed from the same tensors. From another
        step only what no gradient is recorded for. Not in compiled code. A model that runs without
        gradients on the very input that it is trained on does so again, in whatever mode: its outputs
        in training are as good for a metric, or as a target.

    What it costs you
        The time in such calls over that in all calls of modules, and the same share of the backward
        where they are recorded for it. A trial hands out the output of the first call again.

    What it is not
        Not the recomputation of checkpoints, and not a second view of a batch: its values differ. A
        script that trains on one batch again and again (a benchmark) computes more of it anew than one
        with data.

    What to do
        Compute it once, keep the output, and use it in both places until the next batch or update. What
        does not change at all can be computed before the loop.

    Source
        Toni-SM/skrl pull request 156 (shared models); dmlc/dgl issue 307 (norms of a graph).
    """

    code = "BN316"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name the module and the lines that call it again."""
        repeats = facts.run.repeats if facts.run is not None else None
        answer = facts.ask(WhatIf.FORWARD_ONCE)
        if repeats is None or answer is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        sites = sorted(repeats.sites, key=lambda item: -(item.total_ms or 0.0))
        phase = max(_AGAIN, key=repeats.ms_of)
        what, told = repeats.steady if phase == "steady" else repeats.module, _AGAIN[phase]
        call = next((item.call for item in sites if item.phase == phase), "")
        what = f"`{call}`" if call else what
        shares = (
            (repeats.share, "in modules: known in this step"),
            (repeats.steady_share, "in modules: known in an earlier one"),
            (repeats.outside_share, "in functions outside of modules: known"),
        )
        yield self.finding(
            facts,
            f"{what} {told}: {ms(answer.saves_ms)}",
            answer=answer,
            evidence=[
                Evidence(text=f"{percent(share)} of the time {where}", source="their calls")
                for share, where in shares
                if share > 0
            ],
            sites=[item.site for item in sites],
            not_this="Buffers, as the statistics of a normalisation, are not compared.",
        )


class CopiedAgain(Analyzer):
    """A buffer is copied whole to add or move a little.

    What it means
        A window of past frames, spikes or rewards is kept as one tensor, and each step makes a new one:
        torch.cat((window[1:], new)), torch.roll(window, -1, 0). All that was there is copied again for
        the little that is new. A tensor that grows by torch.cat in a loop does the same, and takes
        longer each time.

    How it is measured
        The calls of cat, stack and roll in the steps in which FLOPs are counted, from the second step
        on: more than half of what one returns are numbers that an earlier call on that line has
        returned, and nothing in it needs a gradient. Where gradients are needed, the graph of a step:
        what several calls of torch.cat return is joined by another one, and else the loss depends on it
        entry by entry only. Not in compiled code.

    What it costs you
        The step without these calls and their backward. At best, since what is new has to be written;
        of what needs gradients the last join is left, which does that.

    What it is not
        Not the joining of features in a model, whose parts are computed anew.

    What to do
        Keep a list or a collections.deque, and join it where it is read. Or write into a tensor that is
        made once, at a position that goes around.

    Source
        isaac-sim/IsaacLab issue 5849; BindsNET/bindsnet pull request 310.
    """

    code = "BN323"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name the line that copies most."""
        repeats, answer = facts.run.repeats if facts.run is not None else None, facts.ask(WhatIf.COPIED_ONCE)
        if repeats is None or answer is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        graph = facts.run.graph if facts.run is not None else None
        grown = graph.sites_of(graph.joins()) if graph is not None else []
        call = "torch.cat()" if grown else repeats.call_at("carried")
        what = f"`{call}`" if call else "A line"
        yield self.finding(
            facts,
            f"{what} copies again what it has copied before: {ms(answer.saves_ms)}",
            answer=answer,
            evidence=[Evidence(text=answer.basis, source="calls of cat, stack and roll")],
            sites=[*grown, *(item.site for item in repeats.at("carried"))],
            not_this="What is new has to be written in any case.",
        )
