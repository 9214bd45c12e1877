"""Communication-bound: the step waits for other ranks.

In: facts. Out: findings BN801 to BN806.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ...model.codes import Part, WhatIf
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.view import ALL_REDUCE, CodeNode
from ...model.words import ms, percent
from ..base import Analyzer, Facts
from .host import HALF, ExtraWork

_SENDING_OPERATORS = ("c10d::", "_c10d_functional::")
"""How names of operators begin that send between ranks."""
_MODEL_AND_UPDATE = ("forward", "loss", "backward", "update")
"""Roles of lines that lead to collectives of sharded parameters."""


class ExposedCommunication(Analyzer):
    """The device does nothing but communicate.

    What it means
        Gradients (or parameters) are sent between ranks while nothing is computed. Common reasons:
        buckets that fill too late, large FSDP units that are gathered as a whole, an all-reduce in
        every micro-step.

    How it is measured
        Time in which a communication kernel runs and no other kernel does, per rank. Without a GPU:
        time that the training thread stands waiting for a collective. Where the script calls the
        collective itself, samples of the stack tell its line; on a GPU, what that line launches.

    What it costs you
        The step is replayed with communication that overlaps as far as stream dependencies allow.

    What it is not
        Not the duration of the NCCL kernels: while a rank waits for a slower one, its kernel spins.
        That wait is caused by the straggler (BN802), not by the network.

    What to do
        DDP: static_graph, gradient_as_bucket_view, another bucket size. FSDP: smaller units,
        prefetch. With gradient accumulation: no_sync(). Gradients that the script sends itself, one
        by one: as one tensor, or by DDP.

    Source
        Li et al., "PyTorch Distributed", VLDB 2020.
    """

    code = "BN801"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price exposed collectives."""
        exposed = facts.timeline.part_ms(Part.COMMUNICATION)
        answer = facts.ask(WhatIf.COMM_OVERLAPPED)
        if exposed < 0.005 * facts.true_ms and (answer is None or answer.saves_ms <= 0):
            return
        evidence = [
            Evidence(
                text=f"{ms(exposed)} of each step is only communication ({percent(exposed / facts.true_ms)})",
                value=exposed,
                unit="ms/step",
                source="step budget",
            )
        ]
        per_micro = facts.number("comm.collectives_per_micro_step")
        if per_micro is not None:
            evidence.append(
                Evidence(
                    text=f"{per_micro:.1f} collectives per micro-step",
                    value=per_micro,
                    unit="1/micro-step",
                    source="trace",
                )
            )
        named = [line for line in _sending(facts) if line[0] >= HALF * exposed][:1]
        says = f"takes {ms(exposed)} per step"
        for _, node, _ in named:
            assert node.site is not None  # a call has a line
            says += f", mostly `{node.name}` at {node.site.short}"
        found = self.finding(
            facts,
            f"Communication that does not overlap with computation {says}",
            answer=answer,
            time_ms=exposed,
            evidence=evidence,
            # What else is sent are gradients: their fixes stand where the backward is called.
            sites=[*(node.site for _, node, _ in named), *facts.sites("backward")[: 2 - len(named)]],
            not_this="Includes waiting for slower ranks, which BN802 reports separately.",
        )
        for _, node, in_rounds in named:
            # What training does not need has a finding and a price of its own.
            needed = in_rounds and node.role == "communication" and node.callee == ALL_REDUCE
            found = msgspec.structs.replace(
                found, call=f"`{node.name}`", callee=node.callee, in_rounds=needed
            )
        yield found


def _sending(facts: Facts) -> list[tuple[float, CodeNode, bool]]:
    """Return the lines that send, the longest first: ms, the line, whether the rounds of a loop do it.

    On a device a call is over before what it sends, or waits for what is computed: what the device does for
    the line counts. A line of training's that leads to a collective, as of sharded parameters, sends nothing.
    """
    tree = facts.timeline.tree
    host = list(tree.collectives() if tree is not None else ())
    if facts.timeline.kind == "cpu":
        found = [(node.ms, node, in_rounds) for node, in_rounds in host]
    else:
        calls = {node.site: (node, in_rounds) for node, in_rounds in host}
        trains = {
            node.site for node in (tree.walk() if tree is not None else ()) if node.role in _MODEL_AND_UPDATE
        }
        found = [
            (line.ms, *calls.get(line.site, (line, False)))
            for line in facts.timeline.device_lines
            if line.site in calls or (line.callee.startswith(_SENDING_OPERATORS) and line.site not in trains)
        ]
    return sorted(found, key=lambda each: -each[0])


class SearchInVain(Analyzer):
    """DDP looks for unused parameters in every step, and none is unused.

    What it means
        With find_unused_parameters=True, DDP walks the graph of the loss after each forward, to learn
        which gradients will not come. Then all ranks exchange what they found. A model that uses all
        its parameters in every step needs neither.

    How it is measured
        DDP's own map of the parameters that the last backward used, when the trace had ended.

    What it costs you
        The walk and one more collective for each backward. It is not replayed: DDP's messages may
        also start later for it.

    What it is not
        Not a proof for all steps: a branch of the model that is rarely taken leaves parameters out
        only then.

    What to do
        Leave find_unused_parameters at False. If DDP then complains in some step, that step has
        unused parameters. static_graph=True looks once, in the first step.

    Source
        PyTorch documentation, DistributedDataParallel, find_unused_parameters.
    """

    code = "BN803"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name the line that asks for it."""
        if not facts.is_on("distributed.searches_in_vain"):
            return
        yield self.finding(
            facts,
            "DDP looks for unused parameters in each step, and none is unused",
            evidence=[
                Evidence(
                    text="find_unused_parameters=True; every parameter was used in the backward",
                    source="DDP's map of used parameters",
                )
            ],
            sites=facts.sites("model wrapped"),
            not_this="Other steps may leave parameters out.",
        )


class BuffersSent(Analyzer):
    """DDP sends the model's buffers from rank 0 to all other ranks before each forward.

    What it means
        Buffers are tensors that are not trained: statistics of normalisation layers, tables of
        positions, masks. DDP keeps them equal on all ranks by sending all of them, each time.

    How it is measured
        The broadcasts that the step stands waiting for. Without a GPU: what the training thread waits
        for in the forward.

    What it costs you
        The step is replayed without these broadcasts.

    What it is not
        Not the gradients, which are sent during the backward.

    What to do
        broadcast_buffers=False. Buffers that never change are the same anyway. Statistics of
        normalisation layers are then each rank's own; SyncBatchNorm shares them.

    Source
        PyTorch documentation, DistributedDataParallel, broadcast_buffers.
    """

    code = "BN804"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the broadcasts, and name the line that asks for them."""
        answer = facts.ask(WhatIf.BUFFERS_KEPT)
        if answer is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        yield self.finding(
            facts,
            f"DDP sends the model's buffers to all ranks before each forward: {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=[
                Evidence(
                    text="broadcast_buffers is on, and the model has buffers",
                    source="settings of DistributedDataParallel",
                )
            ],
            sites=facts.sites("model wrapped"),
            not_this="Where other ranks come late, waiting for them is part of it.",
        )


class Straggler(Analyzer):
    """One rank is late, and the others wait for it in their collectives.

    What it means
        A collective ends when the last rank arrives. What looks like communication on the others is
        the late rank's input, host work or slower device.

    How it is measured
        The start of the same collective on every rank, and its shortest duration over the ranks.
        The shortest duration is the transfer itself; anything longer is waiting, as far as the rank's
        own host and device would have been done by then. On the CPU: what a rank spends in
        communication, less the least that any rank spends.

    What it costs you
        What the late rank's own cause costs. The late rank is the one diagnosed here, and removing
        its cause would speed up all ranks. The wait itself has no price.

    What it is not
        Not a slow network: that would lengthen the shortest duration too.

    What to do
        Fix the late rank's own cause, which is listed here. Give all ranks batches of similar size.

    Source
        TraceLens (NcclAnalyser): latency is the minimum over ranks, skew the difference of starts.
    """

    code = "BN802"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report how long others wait for this rank."""
        skew = facts.number("comm.rank_skew_ms")
        if (
            skew is None
            or skew < NEGLIGIBLE_SHARE * facts.true_ms
            or facts.ask(WhatIf.WORK_DEALT) is not None
        ):
            return
        yield self.finding(
            facts,
            f"Other ranks wait for rank {facts.rank}: {ms(skew)} per step",
            time_ms=skew,
            evidence=[
                Evidence(
                    text=f"{ms(skew)} per step on the rank that waits longest, beyond its own work",
                    value=skew,
                    unit="ms/step",
                    source="traces of all ranks",
                )
            ],
            not_this="Not a matter of bandwidth. The cost is that of the late rank's own cause.",
            note=True,
        )


class RanksUneven(Analyzer):
    """Now one rank has most work, now another, and the others wait for it.

    What it means
        All ranks leave a collective together. Where each draws its batch by chance, and samples differ
        in length, a step takes as long as the largest batch in it.

    How it is measured
        The own work of each rank in each step, without its waiting: the most of any rank, less the
        mean of them all. With devices, of the traced steps; else by the forward of the timed ones, if
        nothing is sent in it. What a rank has more in all steps is left out.

    What it costs you
        The step if the same work was dealt out evenly; samples that cannot be cut leave some of it. It
        is told where it is sure to be more than 5 % of the step.

    What it is not
        Not one rank that is always late, which is told by itself with its cause. Ranks that share the
        cores of a busy machine differ by chance, too.

    What to do
        Deal the samples of each global batch out by their size, so that all ranks get about the same
        number of tokens, points or pixels.

    Source
        Hugging Face Transformers, pull request 47340: batches dealt out evenly, 1.58 times.
    """

    code = "BN805"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price it, and name what hands out the batches."""
        answer = facts.ask(WhatIf.WORK_DEALT)
        if answer is None:
            return
        loader = facts.training_loader()
        made = [loader.site] if loader is not None and loader.site is not None else []
        yield self.finding(
            facts,
            f"Ranks wait for whichever has most work in a step: {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=[
                Evidence(
                    text=f"{ms(answer.saves_ms)} of each step: {answer.basis}",
                    value=answer.saves_ms,
                    unit="ms/step",
                    source="traces of all ranks",
                )
            ],
            sites=[*made, *facts.sites("backward")[:1]],
            not_this="No rank is late in all steps.",
        )


class ExtraCollectives(ExtraWork):
    """A line of the training loop waits for other ranks for what no part of training needs.

    What it means
        It gathers objects, as metrics by name, collects whole weights out of shards, or has ranks wait
        for each other at a barrier, in every step.

    How it is measured
        As other extra work (BN904), by samples of the training thread's stack; most of it is inside of
        collectives.

    What it costs you
        The step without that line and all that it calls, by replay.

    What it is not
        Not the sending of gradients or parameters, which training needs (BN801).

    What to do
        Do it every so many steps. Send what is left as one tensor of numbers, not as objects.

    Source
        Stack samples of this tool.
    """

    code = "BN806"
    sends = True
