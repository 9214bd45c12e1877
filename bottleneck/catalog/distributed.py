"""Fixes of training on several devices: communication that the step waits for, ranks that wait.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Fix, KeywordEdit, Option, PassesEdit, Risk
from .build import docs, given, recipe, seen, source

_RANKS = given("distributed.world_size", ">", 1, "several ranks train together")
_DDP = given("distributed.module", "==", "ddp", "the model is in DistributedDataParallel")
_FSDP = given("distributed.module", "==", "fsdp", "the model is sharded by FSDP")
_DDP_DOCS = docs("generated/torch.nn.parallel.DistributedDataParallel.html", "DistributedDataParallel")
_FSDP_DOCS = docs("distributed.fsdp.fully_shard.html", "torch.distributed.fsdp.fully_shard")
_OVERLAPPED = "exposed communication overlapped with computing"
_LESS_EXPOSED = "The line 'exposed communication' falls."

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX601",
        title="Overlap DDP's all-reduce with backward",
        addresses=("BN803", "BN801"),
        what_to_change="Gradients are sent in buckets while backward still runs. A last bucket that is too"
        " large is not hidden, and each bucket has its latency: where another bucket_cap_mb makes the step"
        " shorter, the replay says which. Avoid a copy with gradient_as_bucket_view, and set static_graph if"
        " every step uses the same parameters. Leave find_unused_parameters off where none is unused.",
        when=(_RANKS, _DDP),
        what_if=WhatIf.GRADIENTS_OVERLAPPED,
        what_if_bound=True,
        narrower=WhatIf.BUCKET_SIZE,
        only_answered=True,  # otherwise nothing waits for gradients
        basis="all gradients sent while other work is done",
        may_break="gradient_as_bucket_view: gradients must not be detached in place. static_graph: the graph"
        " must really be the same in every step.",
        code="""\
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(
    model,
    bucket_cap_mb=None,
    gradient_as_bucket_view=True,
    static_graph=True,
)""",
        undo="Remove the arguments.",
        verify=_LESS_EXPOSED,
        can_try=True,
        fills={"None": "{distributed.bucket_cap_mb}"},
        options={
            "bucket_cap_mb": Option(kind="int", of_run="{distributed.bucket_cap_mb}"),
            "static_graph": Option(kind="bool"),
        },
        edits=(
            KeywordEdit(
                calls=("DistributedDataParallel", "DDP"),
                keywords=("bucket_cap_mb", "gradient_as_bucket_view", "static_graph"),
            ),
        ),
        arithmetic=Arithmetic.REORDERED,
        sources=(_DDP_DOCS, docs("notes/ddp.html", "DDP notes")),
    ),
    Fix(
        id="FX602",
        title="Synchronise gradients once a step (no_sync)",
        addresses=("BN801",),
        what_to_change="With gradient accumulation, every backward pass sends all gradients. Only the last"
        " one before the optimizer step needs to.",
        when=(
            _RANKS,
            given("step.micro_steps", ">", 1, "gradients are accumulated over several backward passes"),
            *seen("comm.collectives_per_micro_step", ">=", 1, "each of them communicates"),
        ),
        what_if=WhatIf.COMM_ONCE,
        basis="the exposed communication of all backward passes but one removed",
        may_break="The sum is rounded differently; with FSDP, unsharded gradients need memory.",
        code="""\
from contextlib import nullcontext

for micro, (inputs, targets) in enumerate(micro_batches):
    last = micro == len(micro_batches) - 1
    with nullcontext() if last else ddp_model.no_sync():
        loss = loss_fn(ddp_model(inputs), targets)
        (loss / len(micro_batches)).backward()
optimizer.step()""",
        undo="Remove no_sync.",
        verify="Collectives per optimizer step fall by the number of micro-steps.",
        can_try=True,
        edits=(PassesEdit(),),
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs(
                "generated/torch.nn.parallel.DistributedDataParallel.html"
                "#torch.nn.parallel.DistributedDataParallel.no_sync",
                "DistributedDataParallel.no_sync",
            ),
        ),
    ),
    Fix(
        id="FX611",
        title="Send many tensors with one collective",
        named="Send with one collective what {call} sends in many",
        addresses=("BN801", "BN806"),
        for_rounds=True,
        what_to_change="Each collective has its latency, however little it sends. Gradients that a loop sends one"
        " by one fit into one tensor: copy them into it, send that, and copy them back."
        " DistributedDataParallel does so in buckets, while the backward still runs. Sums for the log are"
        " one small tensor. What is sent takes its time in one collective, too: the price is without any.",
        when=(_RANKS,),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.COMM_OVERLAPPED,
        what_if_bound=True,
        basis="the step without these collectives",
        may_break="All ranks must put the same tensors into it, in the same order, also where a gradient is None.",
        code="""\
import torch
import torch.distributed as dist

# was: for p in parameters: dist.all_reduce(p.grad); p.grad /= world_size
flat = torch.cat([p.grad.flatten() for p in parameters])
dist.all_reduce(flat)
flat /= dist.get_world_size()
for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
    p.grad.copy_(part.view_as(p))""",
        undo="Send them one by one again.",
        verify="Collectives per step fall to one; the loss is the same.",
        arithmetic=Arithmetic.REORDERED,
        sources=(_DDP_DOCS, docs("distributed.html", "torch.distributed")),
    ),
    Fix(
        id="FX603",
        title="Send gradients in bf16",
        addresses=("BN801",),
        what_to_change="A communication hook compresses each bucket to 16 bits before the all-reduce, which"
        " halves the bytes.",
        when=(_RANKS, _DDP),
        risk=Risk.CHANGES_NUMERICS,
        what_if=WhatIf.GRADIENTS_HALVED,
        only_answered=True,  # otherwise nothing waits for gradients
        what_if_bound=True,
        basis="half the bytes of all gradients",
        may_break="Gradients lose mantissa bits before they are summed. Needs NCCL 2.9.6 or newer.",
        code="""\
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

ddp_model.register_comm_hook(None, default_hooks.bf16_compress_hook)""",
        undo="Do not register the hook.",
        verify="Bytes per all-reduce halve; loss follows the old curve.",
        sources=(docs("ddp_comm_hooks.html", "DDP communication hooks"),),
    ),
    Fix(
        id="FX610",
        title="Give each rank the whole model: it fits (DDP)",
        addresses=("BN801",),
        what_to_change="FSDP gathers each block's parameters before it computes, twice a step, and scatters the"
        " gradients. A model that fits on one device with its gradients and states needs none of that:"
        " DistributedDataParallel only adds up the gradients.",
        when=(
            _RANKS,
            _FSDP,
            *seen("memory.replica_share", "<", 0.8, "the whole model fits on each rank"),
        ),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.COMM_OVERLAPPED,
        what_if_bound=True,
        # The copies and the Python of gathering go as well: two ranks on a CPU saved 1.4 times the bound.
        bound_weight=1.0,
        basis=_OVERLAPPED,
        may_break="Parameters, gradients and optimizer states are on each rank as a whole. Checkpoints of"
        " shards must be loaded with torch.distributed.checkpoint.",
        code="""\
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model)  # in place of fully_shard""",
        undo="Shard it again.",
        verify="No all-gather in the trace; peak memory stays below the device's.",
        sources=(_DDP_DOCS, _FSDP_DOCS),
    ),
    Fix(
        id="FX604",
        title="Let FSDP gather the next block ahead of time",
        addresses=("BN801",),
        what_to_change="Prefetch: request the parameters of the next blocks before they are needed, in"
        " forward and in backward.",
        when=(_RANKS, _FSDP),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.COMM_OVERLAPPED,
        what_if_bound=True,
        basis=_OVERLAPPED,
        may_break="Needs memory for one or two more gathered blocks.",
        code="""\
blocks = list(model.blocks)
for block, following in zip(blocks, blocks[1:]):
    block.set_modules_to_forward_prefetch([following])
for block, preceding in zip(blocks[1:], blocks):
    block.set_modules_to_backward_prefetch([preceding])""",
        undo="Remove the calls.",
        verify=_LESS_EXPOSED,
        sources=(_FSDP_DOCS,),
    ),
    Fix(
        id="FX605",
        title="Wrap each block in its own FSDP unit",
        addresses=("BN801",),
        what_to_change="A single unit for the whole model gathers all parameters before the first layer"
        " runs: nothing overlaps and nothing is saved. Shard each block, then the root.",
        when=(
            _RANKS,
            _FSDP,
            given("distributed.units", "<=", 1, "FSDP gathers the whole model as one unit"),
        ),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.COMM_OVERLAPPED,
        what_if_bound=True,
        basis=_OVERLAPPED,
        may_break="Checkpoints keep their names; the optimizer must be built after sharding.",
        code="""\
from torch.distributed.fsdp import fully_shard

for block in model.blocks:
    fully_shard(block)
fully_shard(model)""",
        undo="Shard the root only.",
        verify="Many smaller all-gathers, hidden behind computing.",
        sources=(_FSDP_DOCS, recipe("intermediate/FSDP_tutorial.html", "Getting started with fully_shard")),
    ),
    Fix(
        id="FX606",
        title="Give every rank the same work",
        addresses=("BN805", "BN802"),
        what_to_change="All ranks wait for the slowest at every collective. Divide the work by tokens rather"
        " than by samples: sort each global batch by length and give each rank every n-th of it. Use"
        " DistributedSampler, give each rank its own cores, and read the diagnosis of the slowest rank.",
        when=(_RANKS,),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.WORK_DEALT,
        may_break="Batches are drawn differently.",
        basis="the same work dealt out evenly",
        code="""\
from torch.utils.data import DataLoader, DistributedSampler

sampler = DistributedSampler(dataset, world_size, rank, shuffle=True)
loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)""",
        undo="Use the old sampler.",
        verify="Each collective starts at nearly the same time on all ranks.",
        sources=(docs("data.html#torch.utils.data.distributed.DistributedSampler", "DistributedSampler"),),
    ),
    Fix(
        id="FX607",
        title="Replace DataParallel with DistributedDataParallel",
        addresses=("BN501", "BN801", "BN702"),
        what_to_change="DataParallel drives all devices from one process. In every forward pass it copies"
        " the model to them and gathers the outputs on one. One process per device (torchrun) avoids"
        " both.",
        when=seen("distributed.module", "==", "dp", "the model is in DataParallel"),
        risk=Risk.NEEDS_REVIEW,
        may_break="The script runs once per device: let one rank print and save. The batch size is per"
        " device.",
        basis="not predicted: the replay does not move work between processes",
        code="""\
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()  # torchrun --nproc-per-node=gpu train.py
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = model.to(local_rank)
model = DistributedDataParallel(model, device_ids=[local_rank])""",
        undo="Use DataParallel again.",
        verify="Samples per second rise with the number of devices.",
        sources=(
            docs("generated/torch.nn.DataParallel.html", "DataParallel: use DistributedDataParallel instead"),
        ),
    ),
    Fix(
        id="FX608",
        title="Tune NCCL",
        addresses=("BN801",),
        note=True,
        what_to_change="See what NCCL chose (NCCL_DEBUG=INFO: transport, rings, channels) before setting"
        " anything. The usual problems are a wrong interface and missing GPUDirect.",
        when=(_RANKS,),
        risk=Risk.NEEDS_REVIEW,
        may_break="Settings are specific to a cluster; a wrong one can hang.",
        code="""\
import os

os.environ["NCCL_DEBUG"] = "INFO"  # before init_process_group""",
        undo="Remove the variable.",
        verify="Bus bandwidth in nccl-tests is close to the link's.",
        sources=(
            source(
                "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
                "NCCL environment variables",
            ),
        ),
    ),
    Fix(
        id="FX609",
        title="Leave buffers where they are (broadcast_buffers)",
        addresses=("BN804",),
        what_to_change="DDP sends all buffers of the model from rank 0 to the other ranks before each forward."
        " Constants are equal without that. Turn it off (torch 2.13 and newer also: forward_sync_buffers=False).",
        when=(
            _RANKS,
            given("distributed.sends_buffers", "==", True, "DDP sends buffers before each forward"),
        ),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.BUFFERS_KEPT,
        basis="the broadcasts in the forward",
        only_answered=True,
        may_break="BatchNorm's running statistics become each rank's own: save those of one rank, or use"
        " SyncBatchNorm. Buffers that the script itself changes must change alike on all ranks.",
        code="""\
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(model, broadcast_buffers=False)""",
        undo="Remove the argument.",
        verify="No broadcast in the trace.",
        can_try=True,
        edits=(KeywordEdit(calls=("DistributedDataParallel", "DDP"), keywords=("broadcast_buffers",)),),
        sources=(_DDP_DOCS,),
    ),
)
