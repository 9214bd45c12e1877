"""Fixes of memory that is full of parameters, gradients and optimizer state: shard, shrink, freeze, offload.

In: nothing. Out: `FIXES`, data. They change bytes; what they cost in time is said in words.
"""

from __future__ import annotations

from ..model.fix import Fix, Risk
from .build import docs, given, paper, recipe, seen, source

_BYTES = "not predicted in time: the gain is memory"
_RANKS = given("distributed.world_size", ">", 1, "several ranks train together")
_SHORT = given("memory.peak_share", ">=", 0.5, "memory is short: half of it or more is taken at the peak")
_LOWER_PEAK = "torch.cuda.max_memory_allocated() falls by the bytes named."

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX215",
        title="Shard the states across the ranks (ZeRO 1-3, FSDP)",
        addresses=("BN207", "BN213"),
        what_to_change="ZeRO 1 shards optimizer state, ZeRO 2 also gradients, ZeRO 3 (FSDP) also parameters."
        " Each rank holds a part and gathers what it needs. Wrap block by block; otherwise the peak does"
        " not fall.",
        when=(
            _RANKS,
            _SHORT,
            *seen("memory.state_share", ">=", 0.3, "the states are a good part of the peak"),
        ),
        unless=(given("distributed.module", "==", "fsdp", "FSDP is in use"),),
        risk=Risk.NEEDS_REVIEW,
        may_break="Adds communication; checkpoints are written sharded.",
        basis=_BYTES + ", divided by the ranks",
        code="""\
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

optimizer = ZeroRedundancyOptimizer(
    model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-4
)""",
        undo="Use the plain optimizer.",
        verify="Memory per rank falls by the share of the states.",
        sources=(
            docs("distributed.optim.html", "ZeroRedundancyOptimizer"),
            paper("1910.02054", "ZeRO: memory optimizations toward training trillion parameter models"),
        ),
    ),
    Fix(
        id="FX216",
        title="Use a smaller optimizer state (8-bit, factored)",
        addresses=("BN207", "BN213"),
        what_to_change="AdamW keeps 8 bytes per parameter. Adafactor keeps one row and one column per"
        " matrix; 8-bit Adam (bitsandbytes, torchao) keeps two bytes per parameter. Paged variants stay"
        " on the host until needed.",
        when=(
            _SHORT,
            *seen("memory.optimizer_share", ">=", 0.2, "optimizer state is a fifth of the peak or more"),
        ),
        risk=Risk.CHANGES_NUMERICS,
        may_break="This is a different optimizer: compare the loss and tune the learning rate.",
        basis=_BYTES + ": most of the optimizer state",
        code="""\
import torch

optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
# or: bitsandbytes.optim.AdamW8bit, bitsandbytes.optim.PagedAdamW8bit,
# torchao.optim.AdamW8bit, each with the arguments of AdamW""",
        undo="Use AdamW again.",
        verify="Optimizer state at the peak falls; the loss follows the old curve.",
        sources=(
            docs("generated/torch.optim.Adafactor.html", "torch.optim.Adafactor"),
            paper("2110.02861", "8-bit optimizers via block-wise quantization"),
        ),
    ),
    Fix(
        id="FX218",
        title="Train low-rank adapters only (LoRA)",
        addresses=("BN207",),
        what_to_change="Freeze the model and train small matrices added to its layers. Only these need"
        " gradients and optimizer state. For fine-tuning.",
        when=(_SHORT, *seen("memory.state_share", ">=", 0.5, "the states are half of the peak or more")),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Training differs: it can change the model less.",
        basis=_BYTES + ": gradients and optimizer state of the frozen part",
        code="""\
import torch


class Adapted(torch.nn.Module):
    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        sizes = layer.in_features, layer.out_features
        self.down = torch.nn.Linear(sizes[0], rank, bias=False)
        self.up = torch.nn.Linear(rank, sizes[1], bias=False)
        torch.nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))""",
        undo="Train all parameters.",
        verify="Gradients and optimizer state at the peak fall to a few percent.",
        sources=(
            paper("2106.09685", "LoRA: low-rank adaptation of large language models"),
            source("https://huggingface.co/docs/peft", "PEFT"),
        ),
    ),
    Fix(
        id="FX219",
        title="Keep states or activations on the host (offload)",
        addresses=("BN207", "BN208", "BN213"),
        what_to_change="Saved activations can stay in pinned host memory between forward and backward."
        " Optimizer state can stay and be updated there (FSDP and DeepSpeed offload, paged optimizers)."
        " Copies over PCIe take time.",
        when=(
            given("device.kind", "in", ["cuda", "rocm"], "training runs on a GPU"),
            *seen("memory.peak_share", ">=", 0.7, "the device is nearly full at the peak"),
        ),
        risk=Risk.NEEDS_REVIEW,
        may_break="Slower where the copies are not hidden; needs that much host memory.",
        basis=_BYTES + ", at the cost of copies",
        code="""\
import torch

with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
    loss = loss_fn(model(inputs), targets)
loss.backward()""",
        undo="Remove the context manager.",
        verify=_LOWER_PEAK,
        sources=(
            recipe("intermediate/autograd_saved_tensors_hooks_tutorial.html", "Hooks for saved tensors"),
            paper("2101.06840", "ZeRO-Offload"),
        ),
    ),
)
