"""What the peak is made of, where that says what to change.

In: facts. Out: findings BN207 to BN212. They are notes while memory is plentiful: a share is no
problem by itself. BN211 has a price: it is the time that memory was bought with.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...model.codes import WhatIf
from ...model.finding import Evidence, Finding
from ...model.memory import MemoryCategory, MemorySummary
from ...model.words import byte_size, ms, percent
from ..base import Analyzer, Facts
from ..sections.memory_context import category_share
from .memory import holder_evidence, is_fragmented, is_tight, unused_bytes

__all__ = [
    "ActivationsDominate",
    "BatchHeadroom",
    "FragmentedMemory",
    "LargeLogits",
    "Recomputation",
    "StateDominates",
]

_HISTORY = "memory history"
_STATE = (MemoryCategory.PARAMETERS, MemoryCategory.GRADIENTS, MemoryCategory.OPTIMIZER)
_DOMINATES = 0.5
_PLENTIFUL = 0.5
"""Share of the device taken at the peak below which recomputation buys nothing that is needed."""
_WORTH_BATCH = 2.0
"""A batch that fits fewer times than this is not worth the search."""


def _told(summary: MemorySummary) -> bool:
    """Enough of the peak is known to speak of shares."""
    return summary.unknown_share is not None and summary.unknown_share < 0.3 and summary.peak_bytes > 0


def _rows(summary: MemorySummary, *categories: MemoryCategory) -> list[Evidence]:
    return [
        Evidence(
            text=f"{row.category.value}: {byte_size(row.bytes)} "
            f"({percent(row.share)} of the peak, {row.how})",
            value=float(row.bytes),
            unit="bytes",
            source=_HISTORY,
        )
        for row in summary.composition
        if not categories or row.category in categories
    ]


class StateDominates(Analyzer):
    """Parameters, gradients and optimizer state fill the memory, whatever the batch.

    What it means
        AdamW in float32 holds 16 bytes per parameter: weight, gradient and two moments. A smaller
        batch or checkpointing does not help with these.

    How it is measured
        The blocks alive at the peak of the memory history, told by the addresses that the harness saw
        as parameters, .grad and optimizer state; what has no address is inferred and says so.

    What it costs you
        Bytes that activations, and with them a larger batch, could have.

    What it is not
        Not a fault while there is memory to spare: then it is only told as a note.

    What to do
        Shard it over the ranks (ZeRO, FSDP), keep it in fewer bits (8-bit or factored optimizer,
        bf16), train fewer parameters (LoRA), or let it live on the host (offload).

    Source
        ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, arXiv 1910.02054.
    """

    code = "BN207"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report where the states are more than half of the peak."""
        found = []
        for summary in facts.memory:
            share = category_share(summary, *_STATE)
            if not _told(summary) or share < _DOMINATES:
                continue
            found.append(
                self.finding(
                    facts,
                    f"Parameters, gradients and optimizer state are {percent(share)} of the peak of "
                    f"{byte_size(summary.peak_bytes)}",
                    evidence=_rows(summary, *_STATE),
                    not_this="Not activations: a smaller batch frees little.",
                    note=not is_tight(summary),
                )
            )
        return found


class ActivationsDominate(Analyzer):
    """What forward keeps for backward fills the memory.

    What it means
        Every operation saves what its derivative needs until backward has used it. These bytes grow
        with the batch and the length of the sequences.

    How it is measured
        Blocks alive at the peak that were asked for in forward and given back in backward or later,
        by the line that asked for them.

    What it costs you
        The batch, or the length, that does not fit.

    What it is not
        Not parameters or optimizer state: sharding those frees little here.

    What to do
        Activation checkpointing, selective where recomputing is cheap; fused attention instead of
        stored scores; a smaller micro-batch with accumulation.

    Source
        Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174; PyTorch blog, "Current and New
        Activation Checkpointing Techniques in PyTorch".
    """

    code = "BN208"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report where activations are more than half of the peak."""
        found = []
        for summary in facts.memory:
            share = category_share(summary, MemoryCategory.ACTIVATIONS)
            if not _told(summary) or share < _DOMINATES:
                continue
            mine = [h for h in summary.holders if h.category is MemoryCategory.ACTIVATIONS]
            evidence = holder_evidence(mine, source=_HISTORY)
            longer_ms = facts.number("work.checkpoint_ms")
            if longer_ms is not None and not summary.checkpointed:
                evidence.append(
                    Evidence(
                        text=f"checkpointing every block makes the step at most {ms(longer_ms)} longer",
                        value=longer_ms,
                        unit="ms/step",
                        source="replay",
                    )
                )
            found.append(
                self.finding(
                    facts,
                    f"Activations are {percent(share)} of the peak of {byte_size(summary.peak_bytes)}",
                    evidence=evidence,
                    sites=[holder.site for holder in mine],
                    not_this="Not parameters or optimizer state: sharding those frees little.",
                    note=not is_tight(summary),
                )
            )
        return found


class LargeLogits(Analyzer):
    """The logits of a large vocabulary make the peak.

    What it means
        Tokens times vocabulary: 8 192 tokens and 128 000 words are 2 GB in bf16, and the
        cross-entropy makes float32 copies, probabilities and gradients of the same size.

    How it is measured
        Blocks of 16 MB and more at the peak that were asked for inside a cross-entropy or
        log-softmax, and blocks of the same size or half of it: logits and their gradients.

    What it costs you
        Bytes at the peak, and the memory traffic of writing and reading each copy.

    What it is not
        Not the weight of the output layer: that is a parameter.

    What to do
        Compute the loss in chunks, or with a kernel that never stores the logits.

    Source
        Cut Your Losses in Large-Vocabulary Language Models, arXiv 2411.09009.
    """

    code = "BN209"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report where logits are more than a quarter of the peak."""
        found = []
        for summary in facts.memory:
            held = summary.loss_bytes
            if not held or held < 0.25 * summary.peak_bytes:
                continue
            large = [h for h in summary.holders if h.largest_bytes >= held / 8]
            found.append(
                self.finding(
                    facts,
                    f"Logits and what the loss makes of them are {byte_size(held)} of the peak of "
                    f"{byte_size(summary.peak_bytes)}",
                    evidence=[
                        Evidence(
                            text=f"{byte_size(held)} ({percent(held / summary.peak_bytes)}) in blocks of the "
                            "loss and of its size",
                            value=float(held),
                            unit="bytes",
                            source=_HISTORY,
                        ),
                        *holder_evidence(large, source=_HISTORY),
                    ],
                    sites=[holder.site for holder in large],
                    not_this="Not the output layer's weight.",
                    note=not is_tight(summary),
                )
            )
        return found


class BatchHeadroom(Analyzer):
    """The device would hold a batch several times as large.

    What it means
        At the fullest moment most of the memory is free. A larger batch does more work per launch
        and per update of the parameters; it pays where the device is not already busy.

    How it is measured
        At every moment of the history: bytes that stay against bytes that grow with the batch
        (activations, inputs, temporaries); the factor at which the fullest of these moments fills
        nine tenths of what the process may use.

    What it costs you
        Nothing by itself. Samples per second rise only where the step does not already compute at
        full tilt.

    What it is not
        Not a promise of speed, and not free for the optimization: learning rate and schedule go with
        the batch.

    What to do
        Double the batch, adapt the learning rate, compare the loss at equal samples seen. Or turn
        checkpointing off.

    Source
        Accurate, Large Minibatch SGD, arXiv 1706.02677.
    """

    code = "BN210"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report a factor of two and more."""
        found = []
        for summary in facts.memory:
            room = summary.headroom
            if room is None or room.factor < _WORTH_BATCH or summary.out_of_memory is not None:
                continue
            if (summary.unknown_share or 0.0) > 0.3 or summary.leaks:
                continue
            fits = f"{room.factor:.0f}" if room.factor >= 10 else f"{room.factor:.1f}"
            found.append(
                self.finding(
                    facts,
                    f"Memory would hold {fits} times the batch",
                    evidence=[
                        Evidence(
                            text=f"{byte_size(room.per_batch_bytes)} grow with the batch, "
                            f"{byte_size(room.fixed_bytes)} stay, of "
                            f"{byte_size(summary.capacity_bytes or 0)}; {room.basis}",
                            value=room.factor,
                            unit="ratio",
                            source=_HISTORY,
                        )
                    ],
                    not_this="Not a promise of speed: a busy device takes twice as long for twice the batch.",
                    note=True,
                )
            )
        return found


class Recomputation(Analyzer):
    """Backward computes activations again though memory would hold them.

    What it means
        Activation checkpointing keeps the input of a block and runs its forward a second time in
        backward. It buys memory with time; with memory to spare there is nothing to buy.

    How it is measured
        Operators of the forward inside nodes of backward, and the kernels launched with them; how full
        the device is at the peak, from the memory history or the allocator's counters. Without a
        device: the largest resident set over the machine's memory.

    What it costs you
        The step is replayed without the repeated forward work.

    What it is not
        Not waste where memory is short: then it is what makes the batch fit, and is told as a note.
        What compiled code recomputes within its own kernels is not seen.

    What to do
        Call the blocks directly, or checkpoint only as many as the memory asks for.

    Source
        PyTorch documentation, torch.utils.checkpoint; arXiv 1604.06174.
    """

    code = "BN211"

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Price recomputation; a note where memory is short, or not known."""
        answer = facts.ask(WhatIf.RECOMPUTE_GONE)
        if answer is None or answer.saves_ms <= 0:
            return ()
        full = facts.number("memory.peak_share")
        if full is None:
            free = facts.number("allocator.headroom_share")
            full = 1.0 - free if free is not None else _resident_share(facts)
        whose = "machine" if facts.timeline.kind == "cpu" else "device"
        evidence = [
            Evidence(
                text=f"forward work inside backward takes {ms(answer.saves_ms)} of the step",
                value=answer.saves_ms,
                unit="ms/step",
                source="trace",
            )
        ]
        if full is not None:
            evidence.append(
                Evidence(
                    text=f"{percent(full)} of the {whose}'s memory is taken at the peak",
                    value=full,
                    unit="share",
                    source=_HISTORY,
                )
            )
        return (
            self.finding(
                facts,
                f"Recomputing activations in backward costs {ms(answer.saves_ms)} per step",
                answer=answer,
                evidence=evidence,
                not_this="Not waste where memory is short.",
                note=full is None or full >= _PLENTIFUL,
            ),
        )


def _resident_share(facts: Facts) -> float | None:
    """Return the largest resident set so far over the machine's memory; None where either is not known."""
    window = facts.run.window("baseline") if facts.run is not None else None
    if facts.run is None or window is None or window.after is None or not facts.run.host.memory_bytes:
        return None
    peak = window.after.rusage.get("ru_maxrss")
    return peak * 1024 / facts.run.host.memory_bytes if peak is not None else None


class FragmentedMemory(Analyzer):
    """Reserved memory lies in pieces that nobody can use.

    What it means
        Free blocks inside segments that are partly in use: too small for what is asked for, and not
        to be given back. A request may fail, or go to the driver, with gigabytes reserved and free.

    How it is measured
        Free bytes inside segments that also hold a live block, at the moment of the history when most
        was live; after a failure, all that was reserved and free then. From the state at the end:
        segments that are partly in use, and the largest free block.

    What it costs you
        Memory. In time: the allocator's calls to the driver, priced as BN201.

    What it is not
        Not reserved memory as such: whole free segments are a cache that can be given back.
        torch.cuda.memory_reserved is what other processes cannot have, memory_allocated what tensors
        hold; the difference is not lost.

    What to do
        expandable_segments:True; few distinct shapes; no max_split_size_mb unless measured.

    Source
        PyTorch documentation, "Memory management" and PYTORCH_CUDA_ALLOC_CONF.
    """

    code = "BN212"
    needs_step = False

    def find(self, facts: Facts) -> Sequence[Finding]:
        """Report where more than 15 % of what is reserved could not be used."""
        found = []
        for summary in facts.memory:
            pieces = summary.fragmentation
            if pieces is None or not is_fragmented(summary):
                continue
            when = "at the peak" if summary.out_of_memory is None else "when memory ran out"
            found.append(
                self.finding(
                    facts,
                    f"{byte_size(unused_bytes(summary))} lay free {when}, in pieces that could not be used",
                    evidence=[
                        Evidence(
                            text=f"{pieces.unfreeable_segments} of {pieces.segments} segments are partly in "
                            f"use; the largest free block has {byte_size(pieces.largest_free_bytes)}",
                            value=float(pieces.inactive_split_bytes),
                            unit="bytes",
                            source="snapshot",
                        )
                    ],
                    sites=[site for site, _ in summary.churn.sites] if summary.churn is not None else (),
                    not_this="Not the cache of whole free segments, which can be given back.",
                    note=not is_tight(summary),
                )
            )
        return found
