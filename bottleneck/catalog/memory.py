"""Fixes of device memory that is held without need, or spent on the wrong thing.

In: nothing. Out: `FIXES`, data. They change bytes; what they cost or save in time is said in words.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Fix, Risk, Shortens
from .build import ON_GPU, docs, given, paper, seen, source

_BYTES = "not predicted in time: the gain is memory"
_UNDERSTAND = docs("torch_cuda_memory.html", "Understanding CUDA memory usage")
_CHECKPOINT = docs("checkpoint.html", "torch.utils.checkpoint")
_SHORT = given("memory.peak_share", ">=", 0.5, "memory is short: half of it or more is taken at the peak")
_LOWER_PEAK = "torch.cuda.max_memory_allocated() falls by the bytes named."

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX209",
        title="Checkpoint selectively: recompute cheap operations",
        addresses=("BN208",),
        what_to_change="Save the outputs of matrix products, attention and convolutions, and recompute"
        " norms, activations and casts. This saves much of the memory for little time. Compiled models"
        " do the same with torch._functorch.config.activation_memory_budget.",
        when=(
            _SHORT,
            *seen("memory.activations_share", ">=", 0.5, "activations are half of the peak or more"),
        ),
        risk=Risk.NEEDS_REVIEW,
        may_break="Operations with side effects or random numbers run twice (their random state is restored).",
        basis=_BYTES + "; its cost in time is replayed as if the whole forward were repeated",
        adds="work.checkpoint_ms",
        code="""\
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

KEEP = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
}


def policy(ctx, op, *args, **kwargs):
    if op in KEEP:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def contexts():
    return create_selective_checkpoint_contexts(policy)


for block in model.blocks:
    inputs = checkpoint(
        block, inputs, use_reentrant=False, context_fn=contexts
    )""",
        undo="Call the blocks directly.",
        verify=_LOWER_PEAK,
        sources=(
            _CHECKPOINT,
            source(
                "https://pytorch.org/blog/activation-checkpointing-techniques/",
                "Current and new activation checkpointing techniques in PyTorch",
            ),
        ),
    ),
    Fix(
        id="FX210",
        title="Drop gradients before the forward pass",
        addresses=("BN204",),
        what_to_change="Call zero_grad(set_to_none=True) right after the optimizer's step (or before the"
        " forward), not between forward and backward. Their memory is then free when activations need"
        " it.",
        when=seen(
            "memory.gradients_in_forward_share",
            ">",
            0.0,
            "gradients of the last step live through the forward",
        ),
        basis=_BYTES,
        code="""\
for inputs, targets in loader:
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)""",
        may_break="Code that reads p.grad between the optimizer's step and the next backward finds None.",
        undo="Move the call back.",
        verify=_LOWER_PEAK,
        can_try=True,
        sources=(docs("generated/torch.optim.Optimizer.zero_grad.html", "Optimizer.zero_grad"),),
    ),
    Fix(
        id="FX211",
        title="Keep numbers, not tensors, from each step",
        addresses=("BN205", "BN214"),
        what_to_change="A tensor in a list keeps its memory and, if it has a graph, everything that the"
        " graph saved. Keep a detached running sum on the device and read it every N steps. Limit what"
        " must be kept.",
        basis=_BYTES,
        code="""\
import torch

total = torch.zeros((), device=device)
for number, (inputs, targets) in enumerate(loader):
    loss = loss_fn(model(inputs), targets)
    total += loss.detach()  # not losses.append(loss)
    if number % 100 == 99:
        print(f"mean loss {total.item() / 100:.4f}")
        total.zero_()""",
        undo="Keep the tensors.",
        verify="torch.cuda.memory_allocated() between steps stays level.",
        shortens=(
            Shortens(
                part="training steps",
                change="with numbers kept, not tensors",
                of="growth",
                kinds=("tensors",),
            ),
        ),
        sources=(
            docs("notes/faq.html", "PyTorch FAQ: don't accumulate history across your training loop"),
            _UNDERSTAND,
        ),
    ),
    Fix(
        id="FX212",
        title="Compute the spike in pieces",
        addresses=("BN206",),
        what_to_change="Where one operation makes the peak, compute it for some of the rows at a time, in"
        " place, in a smaller type or under no_grad.",
        when=(_SHORT,),
        risk=Risk.NEEDS_REVIEW,
        may_break="Sums are taken in another order; there are more, smaller kernels.",
        basis=_BYTES,
        code="""\
import torch


def mean_distance(points, rows=1024):
    parts = [torch.cdist(some, points).sum() for some in points.split(rows)]
    return torch.stack(parts).sum() / len(points) ** 2""",
        undo="Compute it at once.",
        verify=_LOWER_PEAK,
        sources=(
            source(
                "https://pytorch.org/blog/understanding-gpu-memory-1/",
                "Understanding GPU memory 1: visualizing all allocations over time",
            ),
        ),
    ),
    Fix(
        id="FX213",
        title="Recompute activations in backward (checkpointing)",
        addresses=("BN208", "BN213"),
        what_to_change="Wrap each block in checkpoint: only its input is kept, and the rest is computed"
        " again in backward. This costs up to one more forward per step.",
        when=(
            _SHORT,
            *seen("memory.activations_share", ">=", 0.3, "activations are a good part of the peak"),
        ),
        unless=(given("memory.checkpointed", "==", True, "checkpointing is in use"),),
        risk=Risk.NEEDS_REVIEW,
        may_break="Takes a quarter to a third more time if every block is wrapped; side effects run twice.",
        basis=_BYTES + "; its cost in time is replayed as if the whole forward were repeated",
        adds="work.checkpoint_ms",
        code="""\
from torch.utils.checkpoint import checkpoint

for block in model.blocks:
    inputs = checkpoint(block, inputs, use_reentrant=False)""",
        undo="Call the blocks directly.",
        verify=_LOWER_PEAK,
        sources=(
            _CHECKPOINT,
            paper("1604.06174", "Training deep nets with sublinear memory cost", "one more forward"),
        ),
    ),
    Fix(
        id="FX214",
        title="Turn checkpointing off where memory is plentiful",
        addresses=("BN211",),
        what_to_change="Recomputation saves memory and costs time. With most of the device's memory free, it"
        " is not worth its cost. Call the blocks directly, or checkpoint fewer of them.",
        when=(given("memory.headroom", ">=", 1.5, "memory would hold half as much again"),),
        what_if=WhatIf.RECOMPUTE_GONE,
        only_answered=True,  # otherwise nothing is computed twice
        basis="forward work is not done twice",
        may_break="Peak memory rises.",
        code="""\
for block in model.blocks:
    inputs = block(inputs)  # was: checkpoint(block, inputs)""",
        undo="Checkpoint again.",
        verify="The step is shorter, and the peak still fits.",
        can_try=True,
        sources=(_CHECKPOINT,),
    ),
    Fix(
        id="FX341",
        title="Keep activations on the device",
        addresses=("BN702", "BN701", "BN601"),
        what_to_change="Hooks of saved tensors (save_on_cpu, activation_offloading=True of a trainer) move what"
        " backward needs to the host and bring it back, and the step waits for these copies. The device's"
        " memory would hold it: leave them out, or offload the largest activations only.",
        when=(ON_GPU, given("copies.offloaded_fits", "==", True, "the device has room for what is moved")),
        what_if=WhatIf.OFFLOADS_GONE,
        only_answered=True,  # otherwise nothing is moved
        basis="no activation is moved to the host and back",
        may_break="Peak memory rises. A saved tensor that is then changed in place raises an error: its copy was"
        " not.",
        code="""\
# was: with torch.autograd.graph.save_on_cpu(): outputs = model(inputs)
outputs = model(inputs)""",
        undo="Offload again.",
        verify="The step is shorter, the copies are gone, and the peak still fits.",
        can_try=True,
        sources=(
            docs(
                "autograd.html#torch.autograd.graph.save_on_cpu",
                "save_on_cpu",
                "trades compute for GPU memory usage",
            ),
            source(
                "https://github.com/pytorch/pytorch/pull/174436",
                "Activations offloaded in pipeline stages",
                "44.2 samples per second without, 29.2 with",
            ),
        ),
    ),
    Fix(
        id="FX217",
        title="Compute the loss of a large vocabulary in chunks",
        addresses=("BN209",),
        what_to_change="Apply the output layer and the cross-entropy to a few rows at a time, and recompute"
        " them in backward. The full logits then never exist. Kernels such as Liger's fused linear"
        " cross-entropy do this without recomputing.",
        when=(_SHORT,),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Sums are taken in another order; the logits cannot be inspected.",
        basis=_BYTES,
        code="""\
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def chunked_loss(head, hidden, targets, rows=1024):
    def part(some, wanted):
        return F.cross_entropy(head(some).float(), wanted, reduction="sum")

    pairs = zip(hidden.split(rows), targets.split(rows))
    parts = [
        checkpoint(part, some, wanted, use_reentrant=False)
        for some, wanted in pairs
    ]
    return sum(parts) / len(targets)""",
        undo="Compute the logits at once.",
        verify=_LOWER_PEAK,
        sources=(
            paper("2411.09009", "Cut your losses in large-vocabulary language models"),
            paper("2410.10989", "Liger Kernel", "60 % less memory"),
        ),
    ),
    Fix(
        id="FX220",
        title="Accumulate smaller micro-batches",
        addresses=("BN213", "BN208"),
        what_to_change="Split the batch and run forward and backward for each part, with its loss divided by"
        " the number of parts. Then step once. Activations shrink, and the gradient stays the same.",
        when=(_SHORT,),
        risk=Risk.NEEDS_REVIEW,
        may_break="Batch norm sees smaller batches; more launches per sample.",
        basis=_BYTES + ": activations divided by the number of parts",
        code="""\
parts = 4
for inputs, targets in loader:
    for some, wanted in zip(inputs.chunk(parts), targets.chunk(parts)):
        (loss_fn(model(some), wanted) / parts).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)""",
        undo="Run one backward per batch again.",
        verify=_LOWER_PEAK,
        sources=(
            docs("notes/amp_examples.html#gradient-accumulation", "Gradient accumulation"),
            _UNDERSTAND,
        ),
    ),
    Fix(
        id="FX221",
        title="Use a batch that fills the device",
        general="always",
        addresses=("BN210",),
        what_to_change="Double the batch as long as memory holds it and samples per second rise. Scale the"
        " learning rate with it, with warm-up. Stop when the step time grows as fast as the batch: the"
        " device is then busy.",
        when=seen("memory.headroom", ">=", 2.0, "memory would hold twice the batch"),
        conflicts=("FX316",),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Optimization changes: compare at equal samples seen.",
        basis="not predicted: samples per second rise until the device is busy",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(dataset, batch_size=2 * batch_size, shuffle=True)
for group in optimizer.param_groups:
    group["lr"] *= 2  # linear scaling, with warm-up""",
        undo="Restore both.",
        verify="Samples per second rise; loss at the same number of samples is no worse.",
        sources=(paper("1706.02677", "Accurate, large minibatch SGD"),),
    ),
    Fix(
        id="FX222",
        title="Distinguish allocated from reserved memory",
        addresses=("BN212",),
        what_to_change="memory_allocated is what tensors hold; memory_reserved is what the process took from"
        " the device. nvidia-smi shows the second plus the CUDA context. Judge a fix by the peak of the"
        " first, and by fragmentation.",
        basis=_BYTES,
        note=True,
        code="""\
import torch

if torch.cuda.is_available():
    stats = torch.cuda.memory_stats()
    print(
        torch.cuda.max_memory_allocated(),
        torch.cuda.max_memory_reserved(),
        stats["inactive_split_bytes.all.peak"],
    )""",
        undo="Nothing to undo.",
        verify="Nothing changes.",
        sources=(docs("notes/cuda.html#cuda-memory-management", "CUDA memory management"),),
    ),
    Fix(
        id="FX223",
        title="Load data as arrays, not as lists of objects",
        addresses=("BN214", "BN105"),
        what_if=WhatIf.DATASET_LIGHT,
        what_to_change="Keep samples in one array instead of a list of objects, and limit caches. Host memory"
        " that grows without a leak is usually malloc's fragmentation, or Python lists that forked workers"
        " touch. Of an array in a file, which each worker opens at its first sample, nothing is pickled.",
        risk=Risk.NEEDS_REVIEW,
        may_break="A dataset that returned Python objects then returns array rows.",
        basis="otherwise the gain is memory",
        code="""\
import numpy as np

rows = np.stack([np.asarray(row, dtype=np.float32) for row in inputs])
# a dataset that indexes `rows` touches no reference counts""",
        undo="Use the list again.",
        verify="Resident memory stays level over the steps.",
        sources=(
            source(
                "https://github.com/pytorch/pytorch/issues/13246",
                "DataLoader workers and growing memory",
            ),
        ),
    ),
    Fix(
        id="FX224",
        title="Work in place where autograd allows; copy less",
        addresses=("BN208", "BN206"),
        what_to_change="Look at the lines that hold most memory. Let activation functions and dropout"
        " overwrite their input (inplace=True), and add into existing tensors. Use views instead of"
        " contiguous() copies, and write slices into one buffer instead of calling cat().",
        when=(_SHORT,),
        risk=Risk.NEEDS_REVIEW,
        may_break="Overwriting what backward needs raises an error; tensors that share memory change too.",
        basis=_BYTES + ": one activation per in-place operation",
        code="""\
import torch

hidden = torch.nn.functional.relu(inputs @ inputs.T, inplace=True)
hidden += 1.0  # not hidden = hidden + 1.0""",
        undo="Use the out-of-place forms.",
        verify=_LOWER_PEAK,
        sources=(
            docs(
                "notes/autograd.html#in-place-operations-with-autograd", "In-place operations with autograd"
            ),
            _UNDERSTAND,
        ),
    ),
)
