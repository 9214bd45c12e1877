"""What the memory at the peak consists of, where that shows what to change.

In: facts. Out: findings BN207 to BN212. They are notes while there is enough memory: a share is not
a problem by itself. Only BN211 has a price: the time that recomputation takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.codes import WhatIf
from ...model.finding import Evidence, Finding
from ...model.memory import MemoryCategory, MemorySummary
from ...model.run import SourceSite
from ...model.words import byte_size, ms, percent
from ..base import Analyzer, Facts
from ..sections.memory_context import category_share, resident_share
from .memory import holder_evidence, is_fragmented, is_tight, unused_bytes

_HISTORY = "memory history"
_STATE = (MemoryCategory.PARAMETERS, MemoryCategory.GRADIENTS, MemoryCategory.OPTIMIZER)
_CHECKPOINT = "torch.utils.checkpoint."
_DOMINATES = 0.5
_PLENTIFUL = 0.5
"""Share of the device in use at the peak below which recomputation is not needed."""
_WORTH_BATCH = 2.0
"""Least factor by which the batch could grow to be reported."""


def _told(summary: MemorySummary) -> bool:
    """Whether enough of the peak is known to report shares."""
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
    """Parameters, gradients and optimizer state fill the memory, whatever the batch size.

    What it means
        AdamW in float32 needs 16 bytes per parameter: weight, gradient and two moments. A smaller
        batch or checkpointing does not reduce these.

    How it is measured
        The blocks alive at the peak of the memory history. The harness recorded the addresses of
        parameters, .grad and optimizer state. Blocks that cannot be identified by address are
        inferred and marked as such.

    What it costs you
        Memory that activations could use, and so a larger batch.

    What it is not
        Not a problem while there is memory to spare: then it is only a note.

    What to do
        Shard it over the ranks (ZeRO, FSDP), keep it in fewer bits (8-bit or factored optimizer,
        bf16), train fewer parameters (LoRA), or keep it on the host (offload).

    Source
        ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, arXiv 1910.02054.
    """

    code = "BN207"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report where the states are more than half of the peak."""
        for summary in facts.memory:
            share = category_share(summary, *_STATE)
            if not _told(summary) or share < _DOMINATES:
                continue
            yield self.finding(
                facts,
                f"Parameters, gradients and optimizer state are {percent(share)} of the peak of "
                f"{byte_size(summary.peak_bytes)}",
                evidence=_rows(summary, *_STATE),
                not_this="Not activations: a smaller batch frees little.",
                note=not is_tight(summary),
            )


class ActivationsDominate(Analyzer):
    """Activations that forward keeps for backward fill the memory.

    What it means
        Every operation saves what its derivative needs until backward has used it. These bytes grow
        with the batch size and the sequence length.

    How it is measured
        Blocks alive at the peak that were allocated in forward and freed in backward or later, by
        the line that allocated them.

    What it costs you
        The batch size or sequence length that does not fit.

    What it is not
        Not parameters or optimizer state: sharding those frees little here.

    What to do
        Activation checkpointing, selective where recomputing is cheap. Fused attention, which does
        not store scores. A smaller micro-batch with accumulation.

    Source
        Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174; PyTorch blog, "Current and New
        Activation Checkpointing Techniques in PyTorch".
    """

    code = "BN208"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report where activations are more than half of the peak."""
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
            yield self.finding(
                facts,
                f"Activations are {percent(share)} of the peak of {byte_size(summary.peak_bytes)}",
                evidence=evidence,
                sites=[holder.site for holder in mine],
                not_this="Not parameters or optimizer state: sharding those frees little.",
                note=not is_tight(summary),
            )


class LargeLogits(Analyzer):
    """The logits of a large vocabulary cause the peak.

    What it means
        Logits have one number per token and vocabulary entry: 8 192 tokens and 128 000 entries are
        2 GB in bf16. The cross-entropy adds float32 copies, probabilities and gradients of the same
        shape.

    How it is measured
        Blocks of 16 MB and more at the peak that were allocated inside a cross-entropy or
        log-softmax, and blocks of the same size or half of it: the logits and their gradients.

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

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report where logits are more than a quarter of the peak."""
        for summary in facts.memory:
            held = summary.loss_bytes
            if not held or held < 0.25 * summary.peak_bytes:
                continue
            large = [h for h in summary.holders if h.largest_bytes >= held / 8]
            yield self.finding(
                facts,
                f"Logits and the loss computed from them take {byte_size(held)} of the peak of "
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


class BatchHeadroom(Analyzer):
    """The device has memory for a batch several times as large.

    What it means
        Even at the peak most of the memory is free. A larger batch does more work per launch and
        per update of the parameters. This helps if the device is not already busy.

    How it is measured
        At every moment of the memory history, fixed bytes and bytes that grow with the batch
        (activations, inputs, temporaries) are counted. The result is the factor at which the
        fullest moment takes nine tenths of the memory that the process may use.

    What it costs you
        Nothing by itself. Samples per second rise only if the device is not already fully used.

    What it is not
        Not a promise of speed. A larger batch also needs another learning rate and schedule.

    What to do
        Double the batch, adapt the learning rate, and compare the loss after the same number of
        samples. Or turn checkpointing off.

    Source
        Accurate, Large Minibatch SGD, arXiv 1706.02677.
    """

    code = "BN210"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report a factor of two and more."""
        for summary in facts.memory:
            room = summary.headroom
            if room is None or room.factor < _WORTH_BATCH or summary.out_of_memory is not None:
                continue
            if (summary.unknown_share or 0.0) > 0.3 or summary.leaks:
                continue
            fits = f"{room.factor:.0f}" if room.factor >= 10 else f"{room.factor:.1f}"
            yield self.finding(
                facts,
                f"There is memory for {fits} times the batch",
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


class Recomputation(Analyzer):
    """Backward recomputes activations although they would fit into memory.

    What it means
        Activation checkpointing keeps only the input of a block and runs its forward a second time
        in backward. It trades time for memory, which is of no use when memory is plentiful.

    How it is measured
        Forward operators that run inside backward, and the kernels that they launch. How full the
        device is at the peak comes from the memory history or the allocator's counters; without a
        device, from the largest resident set and the machine's memory.

    What it costs you
        The step is replayed without the repeated forward work.

    What it is not
        Not a waste where memory is short: then it makes the batch fit, and the finding is a note.
        What compiled code recomputes inside its own kernels is not visible here.

    What to do
        Call the blocks directly, or checkpoint only as many as necessary.

    Source
        PyTorch documentation, torch.utils.checkpoint; arXiv 1604.06174.
    """

    code = "BN211"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price recomputation; a note where memory is short, or not known."""
        answer = facts.ask(WhatIf.RECOMPUTE_GONE)
        if answer is None or answer.saves_ms <= 0:
            return
        full = facts.number("memory.peak_share")
        if full is None:
            free = facts.number("allocator.headroom_share")
            full = 1.0 - free if free is not None else resident_share(facts.run)
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
                    text=f"{percent(full)} of the {whose}'s memory is in use at the peak",
                    value=full,
                    unit="share",
                    source=_HISTORY,
                )
            )
        yield self.finding(
            facts,
            f"Recomputing activations in backward costs {ms(answer.saves_ms)} per step",
            answer=answer,
            evidence=evidence,
            sites=_checkpoints(facts) or facts.lines_of("backward"),
            not_this="Not a waste where memory is short.",
            note=full is None or full >= _PLENTIFUL,
        )


def _checkpoints(facts: Facts) -> list[SourceSite | None]:
    """Return the lines that call torch.utils.checkpoint, those with most of the forward below them first."""
    tree = facts.timeline.tree
    called = [node for node in tree.walk() if node.callee.startswith(_CHECKPOINT)] if tree is not None else []
    return [node.site for node in sorted(called, key=lambda node: -node.ms)]


class FragmentedMemory(Analyzer):
    """Free memory is split into pieces that are too small to use.

    What it means
        Some segments are partly in use. The free blocks inside them are too small for new requests,
        and cannot be returned to the driver. A request may fail, or go to the driver, although
        gigabytes are reserved and free.

    How it is measured
        Free bytes inside segments that also hold a live block, at the peak of the memory history;
        after a failure, all bytes reserved and free at that moment. The state at the end gives the
        number of segments that are partly in use, and the largest free block.

    What it costs you
        Memory. The time of the allocator's calls to the driver is priced in BN201.

    What it is not
        Not reserved memory in general: segments that are entirely free are a cache and can be
        returned. memory_reserved (torch.cuda) is what other processes cannot use, memory_allocated
        what tensors use; the difference is not lost.

    What to do
        Set expandable_segments:True and use few distinct shapes. Set max_split_size_mb only if a
        measurement shows that it helps.

    Source
        PyTorch documentation, "Memory management" and PYTORCH_CUDA_ALLOC_CONF.
    """

    code = "BN212"
    needs_step = False

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report where more than 15 % of what is reserved could not be used."""
        for summary in facts.memory:
            pieces = summary.fragmentation
            if pieces is None or not is_fragmented(summary):
                continue
            when = "at the peak" if summary.out_of_memory is None else "when memory ran out"
            yield self.finding(
                facts,
                f"{byte_size(unused_bytes(summary))} were free {when}, in pieces too small to use",
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
                not_this="Not the cache of entirely free segments, which can be returned to the driver.",
                note=not is_tight(summary),
            )
