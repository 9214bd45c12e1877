"""Launch-bound: Python and dispatch take longer than the work that they start.

In: facts. Out: findings BN501 to BN508.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import Part, WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.run import DEFAULT_DEVICE, LAUNCH_BLOCKING, SourceSite
from ...model.view import CodeNode
from ...model.words import ms, percent
from ...timeline.lanes.questions import DISTRIBUTIONS
from ...timeline.steps.loop_lines import MAIN_SHARE
from ..base import Analyzer, Facts, predicted_evidence


class DispatchDecides(Analyzer):
    """Dispatching operators takes longer than the work they do.

    What it means
        Every eager operator costs the host some microseconds: Python, the dispatcher, autograd's
        bookkeeping, the launch. When the kernels are shorter than that, the device waits for the
        host. On a CPU this time is simply part of the step.

    How it is measured
        GPU: idle gaps that end with a kernel launched after the gap began, while the launching
        thread was dispatching. CPU: the fixed cost of an operator, measured on this machine with a
        few elements, for every operator, plus the Python between operators. Both are scaled so that
        each phase takes the time that it took unprofiled.

    What it costs you
        The step is replayed with dispatch that takes no time, or with one launch per region. This
        is an upper bound; CUDA graphs come closest to it, then torch.compile.

    What it is not
        Not the profiler's own cost, which is largest in such programs (up to 1.75 times the step):
        costs refer to the unprofiled step. Not low utilisation in general: waiting for input or for
        a synchronisation looks the same on a utilisation graph.

    What to do
        torch.compile (mode="reduce-overhead" where shapes are fixed), a fused or foreach optimizer,
        larger batches if memory allows, fewer and larger operators.

    Source
        PyTorch blog, "Accelerating PyTorch with CUDA Graphs"; torch.compile documentation, modes.
    """

    code = "BN501"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price dispatch."""
        answer = facts.ask(WhatIf.DISPATCH_FREE)
        exposed = facts.timeline.part_ms(Part.DISPATCH)
        if answer is None or answer.saves_ms < 0.005 * facts.true_ms:
            return
        evidence = [
            Evidence(
                text=f"{ms(exposed)} of dispatch while the device waits ({percent(exposed / facts.true_ms)})",
                value=exposed,
                unit="ms/step",
                source="step budget",
            )
        ]
        launches = facts.number("launches.per_step")
        if launches:
            what = "kernel launches" if facts.timeline.kind == "gpu" else "operators that do work"
            evidence.append(
                Evidence(
                    text=f"{launches:.0f} {what} per step, one every {facts.true_ms / launches * 1e3:.0f} us",
                    value=launches,
                    unit="1/step",
                    source="trace",
                )
            )
        if facts.run is not None and facts.run.dispatch_ns:
            evidence.append(
                Evidence(
                    text=f"one small operator costs {facts.run.dispatch_ns / 1e3:.1f} us on this host",
                    value=facts.run.dispatch_ns / 1e3,
                    unit="us",
                    source="measured on this machine",
                )
            )
        known = facts.timeline.compute
        if known is not None and known.fusable_ms and known.fusable_ms >= 0.005 * facts.true_ms:
            evidence.append(
                Evidence(
                    text=f"{ms(known.fusable_ms)} of device time in element-wise kernels that compiling "
                    "could fuse with a neighbour",
                    value=known.fusable_ms,
                    unit="ms/step",
                    source="trace",
                )
            )
        compiled = facts.ask(WhatIf.COMPILED)
        if compiled is not None:
            evidence.append(predicted_evidence(compiled, "compiling predicts"))
        title, line = (
            f"Dispatching operators costs up to {ms(answer.saves_ms)} per step",
            _line(facts, answer),
        )
        if line is not None and line.site is not None:
            title += f", {ms(line.price_ms or 0.0)} of it for {line.site.short}"
        yield self.finding(
            facts,
            title,
            answer=answer,
            time_ms=exposed,
            evidence=evidence,
            sites=_places(facts, line),
            not_this="This is an upper bound: some dispatch always remains.",
        )


def _line(facts: Facts, answer: WhatIfResult) -> CodeNode | None:
    """Return the line whose launches are a main part of the dispatch; None where no line's are.

    What it costs beyond the work of the device is its launches.
    """
    lines = [(node.price_ms or 0.0, node) for node in facts.timeline.device_lines]
    price_ms, dearest = max(lines, key=lambda line: line[0], default=(0.0, None))
    if dearest is None or price_ms > answer.saves_ms:
        return None
    return dearest if price_ms - dearest.ms >= MAIN_SHARE * answer.saves_ms else None


def _places(facts: Facts, line: CodeNode | None) -> list[SourceSite | None]:
    """Return where dispatch happens, most specific first: loop, sampled line, main line, model."""
    loop = facts.timeline.loop
    if loop is not None and (facts.number("loop.share") or 0.0) < MAIN_SHARE:
        loop = None
    return [
        loop.site if loop is not None else None,
        facts.sampled_site("sampled between", "sampled forward"),
        line.site if line is not None else None,
        *facts.sites("forward")[:1],
    ]


class PythonLoop(Analyzer):
    """A Python loop inside the step causes much of the dispatch.

    What it means
        The code loops over samples, attention heads, time steps, tasks or parameters, and each
        iteration dispatches its own operators. One operator over all of them is dispatched once.

    How it is measured
        The running line is sampled once a millisecond during the warm-up. The source shows which of
        the sampled lines are in a loop other than the training loop. The loop's share of the
        samples in a phase is its share of that phase's time, which the baseline and the trace
        measure.

    What it costs you
        The step without the loop and without its share of the backward. This is an upper bound,
        since one operator for all iterations takes time too. Loops of large operators are not
        reported.

    What it is not
        Not a loop over layers, where each layer needs the output of the one before. Not the loop
        over batches, nor that of an optimizer over its groups.

    What to do
        Turn the loop into a tensor dimension: batched matmul, scaled_dot_product_attention,
        torch.vmap, index_add_; torch._foreach_ operators for lists of tensors. Where an iteration
        depends on the one before (time steps), move everything that does not out of the loop, or
        use nn.LSTM or nn.GRU.

    Source
        PyTorch documentation, torch.vmap, torch.nn.GRU; PyTorch performance tuning guide.
    """

    code = "BN503"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name the most expensive loop."""
        loop, answer = facts.timeline.loop, facts.ask(WhatIf.LOOP_GONE)
        if loop is None or answer is None:
            return
        evidence = [
            Evidence(
                text=f"{loop.seen[part]} of {loop.of[part]} samples {_WHERE[part]} are in lines "
                f"{loop.site.line} to {loop.last_line}",
                value=loop.seen[part] / loop.of[part],
                unit="share",
                source="samples of the warm-up",
                site=loop.site,
            )
            for part in _WHERE
            if loop.seen.get(part) and loop.of.get(part)
        ]
        yield self.finding(
            facts,
            f"A Python loop of small operators takes up to {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=evidence,
            sites=[loop.site],
            not_this="This is an upper bound: the same work in one operator takes time too.",
        )


_WHERE = {
    "sampled forward": "in the forward",
    "sampled between": "between forward and update",
    "sampled after": "after the update",
    "sampled update": "in the update",
}


def mostly_launching(facts: Facts, fused: WhatIfResult) -> bool:
    """Return whether what a fused optimizer saves is its launches, and not its work.

    On the CPU the new pages of its temporaries go as well: they are no launches.
    """
    work = facts.timeline.part_ms(Part.OPTIMIZER)
    share = facts.number("optimizer.share")
    if facts.timeline.kind == "cpu" and share is not None and share * facts.true_ms - work < work:
        return False
    return work < 0.5 * fused.saves_ms


class OptimizerDispatch(Analyzer):
    """The optimizer launches its update tensor by tensor.

    What it means
        A for-loop optimizer dispatches about ten operators for every parameter. These are hundreds
        of small launches at the end of each step, when little other work is queued.

    How it is measured
        Launches (CPU: operators) inside Optimizer.step, and the implementation that actually ran.

    What it costs you
        The step is replayed with the fused optimizer: one launch per group, one pass over memory.

    What it is not
        Not slow arithmetic: the tensors are small, but there are many of them.

    What to do
        fused=True, or foreach=True; both give the same update.

    Source
        PyTorch documentation, torch.optim, "Algorithms".
    """

    code = "BN502"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report a for-loop optimizer with many launches."""
        launches = facts.number("optimizer.launches")
        flavour = facts.context.get("optimizer.flavour")
        answer = facts.ask(WhatIf.OPTIMIZER_FUSED)
        if launches is None or answer is None or flavour == "fused":
            return
        if answer.saves_ms < 0.005 * facts.true_ms or not mostly_launching(facts, answer):
            return  # mostly work: BN305
        sites = [facts.timeline.update_loop]
        sites += [item.site for item in facts.run.optimizers] if facts.run is not None else []
        yield self.finding(
            facts,
            f"The optimizer's {launches:.0f} launches per step cost {ms(answer.saves_ms)}",
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{launches:.0f} launches inside Optimizer.step()",
                    value=launches,
                    unit="1/step",
                    source="trace",
                )
            ],
            sites=sites,
            not_this="Most of this is launching; where the update's work dominates, it is BN305.",
        )


class AnomalyDetection(Analyzer):
    """Anomaly detection is on while the model trains.

    What it means
        torch.autograd.set_detect_anomaly(True), or the context of that name, formats a Python stack
        for every operator that the backward will visit, and looks for NaN in every gradient.

    How it is measured
        CPU: the operators of the forward that compute nothing, against the cost of one with the
        detection off for a moment, and the checks in the backward. The line is the one that
        switched it on first.

    What it costs you
        The step without both. On a GPU this is an upper bound: without any dispatch.

    What it is not
        Not a reason to leave a NaN unfound: switch it on for the run that looks for one.

    What to do
        Switch it off, or tie it to an option of the script.

    Source
        PyTorch documentation, torch.autograd.detect_anomaly.
    """

    code = "BN504"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price it where it is on."""
        answer = facts.ask(WhatIf.ANOMALIES_IGNORED)
        if not facts.is_on("debug.anomaly"):
            return
        cost = "is on"
        if answer is not None:
            cost = f"takes {'up to ' if answer.bound else ''}{ms(answer.saves_ms)} per step"
        yield self.finding(
            facts,
            f"Anomaly detection {cost}",
            answer=answer,
            sites=facts.sites("anomalies")[:1],
            not_this="It finds a NaN; it prevents none.",
        )


class LaunchesBlock(Analyzer):
    """Each launch waits until its kernel has ended.

    What it means
        CUDA_LAUNCH_BLOCKING=1 is set: the host and the device never work at the same time. It is
        meant for finding the operator that fails on the device.

    How it is measured
        The variable is read from the environment. The line is the first one in the program's own
        files that names it, if one does. In the trace, a launch lasts until its kernel has ended.

    What it costs you
        At most the calls that launch: the step is replayed without them. What a launch takes that
        does not wait, some microseconds, cannot be told from such a trace.

    What it is not
        Not a slow host, although it shows as dispatching. CUDA graphs would hide it, too.

    What to do
        Unset the variable. Set it for the run that looks for an error.

    Source
        PyTorch documentation, CUDA semantics, "Asynchronous execution".
    """

    code = "BN506"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price it where it is set."""
        if not facts.is_on("debug.launch_blocking") or facts.timeline.kind == "cpu":
            return
        answer = facts.ask(WhatIf.LAUNCHES_ASYNC)
        cost = f": up to {ms(answer.saves_ms)} per step" if answer is not None else ""
        yield self.finding(
            facts,
            f"Each launch waits for its kernel ({LAUNCH_BLOCKING}=1){cost}",
            answer=answer,
            sites=facts.sites(LAUNCH_BLOCKING)[:1],
            not_this="The host is not slow: it waits.",
        )


class DistributionChecks(Analyzer):
    """torch.distributions check their arguments in every step.

    What it means
        Each distribution that is made looks at all of its parameters, and each log_prob at all values,
        before it computes anything. On a GPU the host waits for each answer. In a step of small
        operations, as in reinforcement learning, the checks may take as long as the rest of these
        calls.

    How it is measured
        Stack samples of the training thread in calls of torch.distributions, while the checks are on.

    What it costs you
        The step without these calls: an upper bound, since what they compute is needed. A trial
        tells what the checks take.

    What it is not
        Not a wrong argument: the checks find one, and find none here.

    What to do
        Switch the checks off when the script has run once without a complaint.

    Source
        PyTorch documentation, torch.distributions.Distribution.set_default_validate_args.
    """

    code = "BN505"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the calls while the checks are on."""
        answer = facts.ask(WhatIf.DISTRIBUTIONS_UNCHECKED)
        tree = facts.timeline.tree
        if answer is None or tree is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        called = [node for node in tree.walk() if node.callee.startswith(DISTRIBUTIONS)]
        yield self.finding(
            facts,
            f"Distributions check their arguments, in calls that take {ms(answer.saves_ms)} per step",
            answer=answer,
            sites=[node.site for node in sorted(called, key=lambda node: -node.ms)],
            not_this="What the calls compute is needed; the checks are not.",
        )


class CallsThroughModes(Analyzer):
    """Each call of torch's functions goes through Python once more.

    What it means
        torch.set_default_device, or `with torch.device(...)` around the loop, puts a mode in front of
        every function and property of a tensor: a Python function that looks whether the call makes
        a tensor. Other libraries put modes of their own there. A step of small operators takes a
        third to a half longer.

    How it is measured
        The modes that are on while training. A small operator is timed with them and without, after
        the capture; the trace tells how many calls from Python a step has.

    What it costs you
        The step is replayed without what they add to these calls. Looks at shapes and types go
        through them, too, and are not counted.

    What it is not
        Not the device itself, nor the copies to it.

    What to do
        Set the default device while the model is built, then torch.set_default_device(None), and name
        the device where tensors are made in the loop.

    Source
        PyTorch documentation, torch.set_default_device; pytorch/pytorch issue 92701.
    """

    code = "BN508"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the modes."""
        answer, modes = facts.ask(WhatIf.MODES_GONE), facts.context.get("calls.modes")
        if (
            answer is None
            or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms
            or not isinstance(modes, list)
        ):
            return
        yield self.finding(
            facts,
            f"Each call goes through {', '.join(str(mode).rpartition('.')[2] for mode in modes)},"
            f" for {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=[
                Evidence(text=answer.basis, source="probe and trace"),
                *(
                    Evidence(text=f"a mode of functions is on: {mode}", source="settings in force")
                    for mode in modes
                ),
            ],
            sites=facts.sites(DEFAULT_DEVICE)[:1],
            not_this="The calls themselves stay.",
        )


class CalledInParts(Analyzer):
    """A model is called several times in a step, on inputs that one call could have.

    What it means
        Two views of a batch, an anchor with its positive and its negative, or real and generated
        samples go through the same model one after the other. Each call dispatches all of its
        operators, and so does its part of the backward. One call on all of them dispatches once,
        on larger tensors.

    How it is measured
        The calls of modules in the steps in which FLOPs are counted: with gradients, of one module that
        keeps no state, in one mode, on inputs of the same shapes that need no gradient, without a
        backward in between. Not in compiled code.

    What it costs you
        The step without what all calls but the first dispatch. The work of the operators stays: on a
        GPU that waits for the host it fills the time.

    What it is not
        Not the accumulation of gradients, where a backward follows each call. Not a loop over time,
        where a call needs what the one before has made.

    What to do
        Join the inputs along the first dimension, call the model once, and take the outputs apart.

    Source
        MPI-Dortmund/tomotwin-cryoet pull request 105; PyTorch performance tuning guide.
    """

    code = "BN507"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the dispatch of the calls."""
        repeats = facts.run.repeats if facts.run is not None else None
        answer = facts.ask(WhatIf.CALLS_JOINED)
        if repeats is None or answer is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        call = repeats.call_at("apart")
        what = f"`{call}`" if call else "a model"
        yield self.finding(
            facts,
            f"{what} runs again on inputs that one call could have: {ms(answer.saves_ms)}",
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{repeats.apart_calls:.0f} such calls in each step, {percent(repeats.apart_share)} "
                    "of the time in modules that are trained",
                    source="their calls",
                )
            ],
            sites=[item.site for item in repeats.at("apart")],
            not_this="Normalisation over the batch sees all inputs together then.",
        )
