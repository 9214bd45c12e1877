"""Fixes of the device's (or the CPU's) own work: kernels, layout, optimizer, batch.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, Fix, KeywordEdit, ModelEdit, Risk, StatementEdit
from .build import ON_CUDA, ON_GPU, arguments, docs, given, if_known, paper, recipe, seen, source

_SDPA = docs(
    "generated/torch.nn.functional.scaled_dot_product_attention.html", "scaled_dot_product_attention"
)
_TUNING = recipe("recipes/recipes/tuning_guide.html", "PyTorch performance tuning guide")
_OPTIM = docs("optim.html", "torch.optim: foreach and fused implementations")
_OPTIMIZERS = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam"),
    *("RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
)
_NOT_PREDICTED = "not predicted: the replay does not model these kernels"

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX306",
        title="Use scaled_dot_product_attention",
        addresses=("BN304",),
        what_to_change="Replace matmul, softmax, matmul with one call. The fused kernels never write the L x"
        " L scores to memory.",
        when=(given("kernels.attention_unfused_share", ">", 0.0, "attention runs as separate kernels"),),
        unless=seen("attention.backend", "==", "math", "scaled_dot_product_attention is called already")[1:],
        risk=Risk.CHANGES_NUMERICS,
        may_break="Sums are taken in another order; attention weights are not returned; dropout draws"
        " differ. On an H100 torch may take cuDNN's attention, which plans anew for each length: where lengths"
        " change, call torch.backends.cuda.enable_cudnn_sdp(False).",
        what_if=WhatIf.FUSED_ATTENTION,
        basis="the kernels that read and write the score matrix removed",
        code="""\
import torch.nn.functional as F

# was: softmax(q @ k.transpose(-2, -1) / sqrt(d) + causal mask) @ v
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
        undo="Write the three operations out again.",
        verify="No softmax kernel over L x L scores remains; outputs agree to rounding.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            _SDPA,
            paper("2307.08691", "FlashAttention-2", "around 2x speedup compared to FlashAttention"),
        ),
    ),
    Fix(
        id="FX323",
        title="Pass no attention mask where none is needed",
        addresses=("BN314",),
        what_to_change="A mask that masks nothing costs as much as one that does, and on a GPU keeps flash"
        " attention from being used. Pass None where all positions are kept. Look at the mask where the batch"
        " is made, not in every layer: on a GPU each look waits for the device.",
        when=seen("attention.idle_masks", ">", 0.5, "most masks given to attention mask nothing"),
        risk=Risk.SAFE,
        code="""\
import torch.nn.functional as F

# `mask` hides what is behind the `lengths`, which the collate_fn knows.
mask = None if lengths.min() == k.shape[-2] else mask
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)""",
        what_if=WhatIf.MASKS_GONE,
        basis="attention without these masks",
        undo="Pass the mask again.",
        verify="The outputs are the same; on a GPU flash kernels appear.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs(
                "generated/torch.nn.functional.scaled_dot_product_attention.html",
                "scaled_dot_product_attention",
            ),
            source(
                "https://github.com/Nerogar/OneTrainer/pull/1109",
                "Avoid attention masks for Qwen and Chroma",
                "20-25 % faster",
            ),
        ),
    ),
    Fix(
        id="FX307",
        title="Find out why flash or cuDNN attention is not used",
        addresses=("BN304", "BN301"),
        note=True,
        what_to_change="scaled_dot_product_attention uses the memory-efficient kernel, or plain math, where"
        " no faster backend accepts the inputs. Flash needs fp16 or bf16, no arbitrary attn_mask, and a"
        " supported head size. Allow only the fused backends: the warnings then say why each one"
        " refuses. Prefer flash, then cuDNN, then memory-efficient. Outside torch, FlashAttention-3"
        " (Hopper), xFormers (unusual masks) and Transformer Engine have kernels of their own.",
        when=(
            ON_GPU,
            *seen("attention.backend", "in", ["math", "efficient"], "neither flash nor cuDNN's kernels ran"),
        ),
        code="""\
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

backends = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,  # leave it out to see why the others refuse
]
with sdpa_kernel(backends):
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
        undo="Remove the with statement.",
        verify="Kernels named flash, fmha or cudnn attention appear in the trace.",
        sources=(
            docs("generated/torch.nn.attention.sdpa_kernel.html", "torch.nn.attention.sdpa_kernel"),
            _SDPA,
            paper(
                "2407.08608", "FlashAttention-3", "1.5-2.0x faster than FlashAttention-2 with fp16 on H100"
            ),
            source("https://github.com/facebookresearch/xformers", "xFormers"),
        ),
    ),
    Fix(
        id="FX308",
        title="Let cuDNN try its algorithms (cudnn.benchmark)",
        addresses=("BN308",),
        what_to_change="With constant shapes, let cuDNN time its algorithms once and keep the fastest.",
        when=(
            ON_CUDA,
            given("cudnn.benchmark", "==", False, "cudnn.benchmark is off"),
            given("kernels.conv_share", ">", 0.02, "convolutions take a share of the step"),
        ),
        unless=(
            given("step.varying_shapes", "==", True, "shapes change (every new one would be timed again)"),
            given("cudnn.deterministic", "==", True, "deterministic algorithms are asked for"),
        ),
        may_break="The choice can differ from run to run, and with it the last bits; uses more workspace"
        " memory.",
        basis="not predicted: it must be tried",
        code="""\
import torch

torch.backends.cudnn.benchmark = True""",
        undo="torch.backends.cudnn.benchmark = False",
        verify="Convolution time falls after the first steps.",
        can_try=True,
        edits=(StatementEdit(statement="torch.backends.cudnn.benchmark = True", setting="cudnn.benchmark"),),
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("backends.html#torch.backends.cudnn.benchmark", "torch.backends.cudnn.benchmark"),
            _TUNING,
        ),
    ),
    Fix(
        id="FX324",
        title="Turn cudnn.benchmark off where sizes change",
        addresses=("BN906",),
        what_to_change="cuDNN times all its algorithms for each new size, which pays only if the size comes"
        " again. Turn that off, or pad inputs to a few sizes.",
        when=(ON_CUDA, given("cudnn.benchmark", "==", True, "cudnn.benchmark is on")),
        what_if=WhatIf.SEARCHES_GONE,
        basis="the convolutions without the search",
        only_answered=True,
        may_break="The last bits may differ. Sizes that do come again may run a slower algorithm.",
        code="""\
import torch

torch.backends.cudnn.benchmark = False""",
        undo="torch.backends.cudnn.benchmark = True",
        verify="No convolution waits for the device in the trace.",
        can_try=True,
        edits=(StatementEdit(statement="torch.backends.cudnn.benchmark = False", setting="cudnn.benchmark"),),
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("backends.html#torch.backends.cudnn.benchmark", "torch.backends.cudnn.benchmark"),
            source("https://github.com/pytorch/pytorch/issues/2759", "pytorch issue 2759"),
        ),
    ),
    Fix(
        id="FX347",
        title="Turn cuDNN's attention off where sizes change",
        addresses=("BN909",),
        what_to_change="cuDNN's attention makes a plan for each new size, which takes a tenth of a second for"
        " forward and backward together, and pays only if the size comes again. Flash attention needs none. Turn cuDNN's"
        " off, or pad sequences to a few lengths.",
        when=(ON_CUDA,),
        what_if=WhatIf.PLANS_GONE,
        basis="the attention without its plans",
        only_answered=True,
        may_break="The last bits may differ. Lengths that do come again may run a slower kernel."
        " A compiled model may get graphs with cuDNN's attention from torch's cache on disk, which does not look"
        " at this switch: clear that once (/tmp/torchinductor_USER, or TORCHINDUCTOR_CACHE_DIR).",
        code="""\
import torch

torch.backends.cuda.enable_cudnn_sdp(False)""",
        undo="torch.backends.cuda.enable_cudnn_sdp(True)",
        verify="No kernel named cudnn...sdpa runs; no call of attention takes many times what the others do.",
        can_try=True,
        edits=(StatementEdit(statement="torch.backends.cuda.enable_cudnn_sdp(False)", setting="sdp.cudnn"),),
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs(
                "backends.html#torch.backends.cuda.enable_cudnn_sdp", "torch.backends.cuda.enable_cudnn_sdp"
            ),
            source(
                "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/cudnn/MHA.cpp",
                "ATen, native/cudnn/MHA.cpp",
            ),
        ),
    ),
    Fix(
        id="FX349",
        title="Leave cuDNN switched on",
        addresses=("BN325",),
        what_to_change="torch.backends.cudnn.enabled = False is meant for finding an error. Without cuDNN a"
        " convolution goes sample by sample, and a recurrent layer step by step. Take the line out.",
        when=(ON_CUDA, *seen("cudnn.enabled", "==", False, "cuDNN is switched off")),
        what_if=WhatIf.CUDNN_ON,
        what_if_bound=True,
        basis="convolutions by cuDNN",
        only_answered=True,
        may_break="An error that cuDNN raised may come back: its message names the layer.",
        code="""\
import torch

torch.backends.cudnn.enabled = True  # the default""",
        undo="torch.backends.cudnn.enabled = False",
        verify="No aten::_slow_conv2d_forward in the trace.",
        can_try=True,
        edits=(StatementEdit(statement="torch.backends.cudnn.enabled = True", setting="cudnn.enabled"),),
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("backends.html#torch.backends.cudnn.enabled", "torch.backends.cudnn.enabled"),
            source("https://github.com/speedinghzl/Pytorch-Deeplab/issues/1", "Pytorch-Deeplab"),
        ),
    ),
    Fix(
        id="FX329",
        title="Round sizes up to a multiple of 64",
        addresses=("BN319",),
        what_to_change="A matrix whose rows have an odd length keeps its products from the fast kernels. Make"
        " the layer larger, up to the next multiple of 64. Of a vocabulary, the added entries are never named.",
        when=seen("kernels.aligned_ms", ">", 0.0, "products of odd sizes run slow kernels"),
        what_if=WhatIf.SIZES_ALIGNED,
        basis="these products at the rate of the device",
        risk=Risk.NEEDS_REVIEW,
        may_break="Checkpoints have another shape. The model learns to give added classes no probability.",
        code="""\
import torch

classes = 50257
rounded = -(-classes // 64) * 64  # 50304
embedding = torch.nn.Embedding(rounded, 768)
head = torch.nn.Linear(768, rounded)""",
        undo="Take the exact size again.",
        verify="No kernel named align1 in the trace; the loss follows the old curve.",
        sources=(
            source(
                "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html",
                "NVIDIA, Matrix Multiplication Background",
            ),
            source(
                "https://github.com/LAION-AI/Open-Assistant/pull/1979",
                "Open-Assistant #1979",
                "11 to 10 s per iteration",
            ),
        ),
    ),
    Fix(
        id="FX330",
        title="Compute outputs only where they count",
        addresses=("BN320",),
        what_to_change="The loss ignores a part of the outputs, or a layer's rows are padding or multiplied by"
        " zero. Pick the rows that count before the last layer, the dropped branch or the expert, and write what"
        " comes out back with index_add, instead of masking it. Cut a padded batch to its longest sample.",
        when=seen("outputs.counted_ms", ">", 0.0, "some rows have no part in the loss"),
        conflicts=("FX109",),  # padding is such rows
        what_if=WhatIf.IDLE_ROWS_GONE,
        basis="the products and what follows them, without these rows",
        may_break="The outputs of the other positions are gone, also for metrics. Sizes change from step to step.",
        code="""\
counts = labels != -100
loss = loss_fn(head(hidden[counts]), labels[counts])""",
        undo="Give the last layer all positions again.",
        verify="The loss is the same; the last product has fewer rows.",
        arithmetic=Arithmetic.REORDERED,
        sources=(
            source(
                "https://github.com/verl-project/verl/issues/7686",
                "verl #7686",
                "logits of the prompts: 54.4 to 50.7 s",
            ),
            source(
                "https://github.com/google-research/bert/blob/master/run_pretraining.py",
                "BERT: gather_indexes before the output layer",
            ),
        ),
    ),
    Fix(
        id="FX328",
        title="Leave new memory unfilled, deterministic or not",
        addresses=("BN318",),
        what_to_change="Deterministic algorithms are on, and torch then fills each new tensor before it is"
        " written. Turn the fills off: all results stay as they are.",
        when=seen("kernels.unfilled_ms", ">", 0.0, "new tensors are filled"),
        what_if=WhatIf.FILLS_GONE,
        basis="the fills removed",
        risk=Risk.SAFE,
        may_break="Code that reads memory before it writes to it is no longer repeatable.",
        code="""\
import torch

torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False""",
        undo="Set it to True again.",
        verify="No fill inside aten::empty in the trace; the loss is the same to the last bit.",
        can_try=True,
        edits=(
            StatementEdit(
                statement="torch.utils.deterministic.fill_uninitialized_memory = False",
                setting="torch.utils.deterministic.fill_uninitialized_memory",
            ),
        ),
        sources=(
            docs("deterministic.html", "torch.utils.deterministic.fill_uninitialized_memory"),
            source(
                "https://github.com/ultralytics/ultralytics/pull/26180",
                "Deterministic mode fills every new tensor",
                "206 to 181 ms a step without the fills",
            ),
            source(
                "https://github.com/NVIDIA/Megatron-LM/pull/7093",
                "Stop filling uninitialized memory under --deterministic-mode",
                "roughly 15 %",
            ),
        ),
    ),
    Fix(
        id="FX327",
        title="Take rows with index_select, not x[index]",
        addresses=("BN317",),
        what_to_change="The backward of x[index] adds the gradients of one row one after the other. That of"
        " index_select, embedding or gather adds them in any order, at the speed of memory.",
        when=seen("kernels.index_sums_share", ">", 0.0, "gradients of indexed rows are summed"),
        what_if=WhatIf.INDEX_SUMS_GONE,
        basis="the kernels that sum them removed",
        risk=Risk.SAFE,
        may_break="Sums in another order differ in the last bits, from run to run as well.",
        code="""\
def rows_of(x, index):  # in place of x[index]; negative numbers are refused
    return x.index_select(0, index.flatten()).unflatten(0, index.shape)""",
        undo="Index with brackets again.",
        verify="No indexing_backward kernel in the trace; the step is shorter.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            docs("generated/torch.index_select.html", "torch.index_select"),
            source(
                "https://github.com/pytorch/pytorch/issues/41162",
                "pytorch #41162",
                "index_select 10 to 100 times faster in backward",
            ),
            source("https://github.com/dmlc/dgl/issues/3729", "dgl #3729"),
        ),
    ),
    Fix(
        id="FX325",
        title="Give no gradients to what is not updated",
        addresses=("BN315",),
        what_to_change="A backward makes gradients that nobody reads. Leave it out where all of them are"
        " cleared unread. Name the parameters that it is for, or detach() what comes from another model. Turn"
        " gradients off for what is never updated: the beginning of a model then needs no backward at all. In"
        " the backward of a function of your own, return None where ctx.needs_input_grad is False, and compute"
        " nothing for it.",
        when=seen("gradients.wasted", "==", True, "gradients are computed that nobody uses"),
        what_if=WhatIf.DROPPED_GONE,
        may_break="Nothing, where their gradients are not read: a norm over all gradients becomes smaller."
        " DistributedDataParallel does not allow inputs=.",
        basis="the nodes of the backward that lead to nothing but gradients nobody reads",
        code="""\
# Where zero_grad() clears all that a backward has made: leave it out.
loss.backward(inputs=list(model.parameters()))  # else only what it trains
# For what is never updated:
for parameter in encoder.parameters():
    parameter.requires_grad_(False)
# In backward() of a function of your own:
#     by_weight = given.t() @ x if ctx.needs_input_grad[1] else None""",
        undo="loss.backward(); parameter.requires_grad_(True)",
        verify="The backward is shorter; the loss is the same.",
        can_try=True,
        sources=(
            docs("notes/autograd.html#setting-requires-grad", "Autograd mechanics: setting requires_grad"),
            docs("generated/torch.Tensor.backward.html", "torch.Tensor.backward: inputs"),
            source("https://github.com/pytorch/examples/issues/116", "pytorch/examples #116"),
            source("https://github.com/awslabs/fortuna/pull/90", "awslabs/fortuna #90"),
        ),
    ),
    Fix(
        id="FX326",
        title="Compute once what comes out the same",
        addresses=("BN316",),
        what_to_change="A module is called again with the same input and unchanged parameters, or functions are"
        " given the same values. Keep the output of the first call until the next batch or update. Metrics take"
        " the outputs of the forward that trains, detached. What does not change from step to step (masks,"
        " tables, the norms of a graph) is computed before the loop.",
        when=seen("forward.repeated_share", ">", 0.0, "the same is computed again"),
        risk=Risk.NEEDS_REVIEW,
        what_if=WhatIf.FORWARD_ONCE,
        basis="the calls that repeat others",
        may_break="What is kept too long is out of date after an update. Statistics of BatchNorm are updated"
        " once, not twice. Outputs in training have dropout in them.",
        code="""\
import torch

mask = torch.ones(64, 64).tril()  # before the loop: no step changes it
outputs = model(inputs)  # once
loss = loss_fn(outputs, targets)
guesses = outputs.detach().argmax(-1)  # was: model(inputs).argmax(-1)""",
        undo="Compute it where it is needed.",
        verify="The loss is the same; forward and backward are shorter.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(
            source("https://github.com/Toni-SM/skrl/pull/156", "skrl: one forward pass of shared models"),
            source("https://github.com/dmlc/dgl/issues/307", "dgl #307: norms of a graph, computed once"),
        ),
    ),
    Fix(
        id="FX346",
        title="Write what is new; do not copy the rest",
        addresses=("BN323",),
        what_to_change="Each step copies a whole window or record to add a little: torch.cat((window[1:], new)),"
        " torch.roll, a tensor that grows. Keep a list or a deque, and join it where all of it is read. Or write"
        " into a tensor that is made once, at a position that goes around.",
        what_if=WhatIf.COPIED_ONCE,
        risk=Risk.NEEDS_REVIEW,
        may_break="The order of rows in a ring is not that of time: index with (position + range) % length.",
        basis="the calls that copy again what they have copied",
        code="""\
import torch

# was: window = torch.cat((window[1:], new[None])), in each step
window[step % len(window)] = new
# Only where the order counts:
in_order = window.roll(-(step + 1) % len(window), 0)""",
        other_code=(
            (
                if_known("copies.grown"),
                """\
parts = list(whole.split(1, 1))  # before the loop
# was: whole = torch.cat((whole, part), 1), in each round
parts.append(part)  # parts[-1][:, 0] is whole[:, -1]
whole = torch.cat(parts, 1)  # once, behind the loop""",
            ),
        ),
        undo="Join anew in each step.",
        verify="No aten::cat or aten::roll of that size in the trace; the same numbers are read.",
        sources=(
            source("https://github.com/isaac-sim/IsaacLab/issues/5849", "IsaacLab #5849: frames in a ring"),
            source("https://github.com/BindsNET/bindsnet/pull/310", "bindsnet #310: monitors keep lists"),
        ),
    ),
    Fix(
        id="FX309",
        title="Turn determinism off where it is not needed",
        addresses=("BN308", "BN301"),
        note=True,
        what_to_change="Deterministic algorithms are requested, so cuDNN may not use its fastest ones. Keep"
        " them for debugging, not for every run.",
        when=seen("cudnn.deterministic", "==", True, "deterministic algorithms are asked for"),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Runs are no longer bitwise repeatable.",
        code="""\
import torch

torch.backends.cudnn.deterministic = False
torch.use_deterministic_algorithms(False)""",
        undo="Turn them on again.",
        verify="Step time falls; two runs differ in the last bits.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        sources=(docs("notes/randomness.html", "Reproducibility"),),
    ),
    Fix(
        id="FX310",
        title="Use the channels_last memory format",
        addresses=("BN307",),
        what_to_change="Convolutions on tensor cores use the NHWC layout. In NCHW each of them is wrapped in"
        " layout conversions. Convert model and inputs once instead.",
        when=(
            given("kernels.conv_share", ">", 0.02, "convolutions take a share of the step"),
            given("memory_format", "==", "contiguous", "convolutions over images are not in channels_last"),
        ),
        may_break="Operators without an NHWC kernel convert back; view() on images must become reshape().",
        what_if=WhatIf.CHANNELS_LAST,
        basis="the cost of NCHW around the convolutions removed",
        code="""\
import torch

model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)
# Volumes, with five dimensions, take torch.channels_last_3d.""",
        undo="Remove both conversions.",
        verify="Kernels such as nchwToNhwc disappear.",
        can_try=True,
        edits=(
            ModelEdit(
                method="to(memory_format={memory_format})",
                inputs=".to(memory_format={memory_format})",
                unless="parts",
            ),
        ),
        arithmetic=Arithmetic.REORDERED,
        sources=(
            recipe(
                "intermediate/memory_format_tutorial.html",
                "Channels last memory format in PyTorch",
                "over 22% gains with AMP on cuDNN convolutions",
            ),
        ),
    ),
    Fix(
        id="FX321",
        title="Keep the gradient of large embedding tables sparse",
        addresses=("BN305", "BN203", "BN502"),
        what_to_change="A batch looks up few rows of the table, but its gradient, the optimizer's state and"
        " the update cover all rows. With sparse=True only the rows that were looked up are touched."
        " torch.optim.SparseAdam, SGD and Adagrad accept such gradients.",
        when=seen("embedding.dense_share", ">=", 0.3, "large embedding tables hold much of the parameters"),
        what_if=WhatIf.SPARSE_ROWS,
        basis="the tables' share of the update removed",
        risk=Risk.CHANGES_NUMERICS,
        may_break="SparseAdam leaves the moments of untouched rows unchanged. Weight decay and clipping do"
        " not support sparse gradients.",
        code="""\
import torch

table = torch.nn.Embedding(400_000, 32, sparse=True)
# Beside the optimizer of the other parameters.
tables = torch.optim.SparseAdam(table.parameters(), lr=1e-3)""",
        undo="Remove sparse=True.",
        verify="The optimizer's share of the step falls; loss follows the old curve.",
        sources=(
            docs("generated/torch.nn.Embedding.html", "torch.nn.Embedding, sparse"),
            docs("generated/torch.optim.SparseAdam.html", "torch.optim.SparseAdam"),
        ),
    ),
    Fix(
        id="FX311",
        title="Use the fused optimizer",
        addresses=("BN305", "BN502"),
        what_to_change="Pass fused=True: one kernel updates many parameters at once, instead of several"
        " kernels per parameter or operation.",
        when=(
            given("optimizer.can_fuse", "==", True, "the optimizer has a fused implementation"),
            given("optimizer.flavour", "!=", "fused", "that is not in use"),
        ),
        conflicts=("FX312",),
        what_if=WhatIf.OPTIMIZER_FUSED,
        basis="the optimizer with one launch per group",
        may_break="Last bits may differ; parameters must be floating point and on one kind of device.",
        code="""\
import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)""",
        fills={"optim.AdamW": "optim.{optimizer.of_torch}"},
        other_code=(arguments('optim="adamw_torch_fused"'),),
        undo="Remove fused=True.",
        verify="The optimizer's launches per step fall to a few.",
        can_try=True,
        edits=(KeywordEdit(calls=_OPTIMIZERS, keywords=("fused",), drop=("foreach",)),),
        arithmetic=Arithmetic.REORDERED,
        sources=(_OPTIM, source("", "Field report", "10-15 % of the optimizer step")),
    ),
    Fix(
        id="FX312",
        title="Update all parameters at once (foreach)",
        addresses=("BN305", "BN502"),
        what_to_change="Pass foreach=True: each operation runs once over the whole list of parameters instead of"
        " once per parameter. It is the default for CUDA parameters only. A step() of your own can call"
        " torch._foreach_ operators on lists, or give way to the class of torch that does the same,"
        " with fused=True.",
        when=(
            given("optimizer.flavour", "==", "for-loop", "parameters are updated one by one"),
            given("optimizer.can_foreach", "==", True, "it takes foreach, or is the script's own"),
        ),
        unless=(given("optimizer.can_fuse", "==", True, "there is a fused implementation"),),
        conflicts=("FX311",),
        what_if=WhatIf.OPTIMIZER_FUSED,
        what_if_bound=True,
        basis="the optimizer with one launch per group, which foreach comes close to",
        may_break="Peak memory grows by about the size of the parameters.",
        code="""\
import torch

optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4, foreach=True)

# In a step() of your own, with lists of all parameters and states:
#     torch._foreach_lerp_(means, gradients, 1 - beta)
#     torch._foreach_add_(parameters, means, alpha=-lr)""",
        fills={"optim.RMSprop": "optim.{optimizer.of_torch}"},
        undo="Remove foreach=True.",
        verify="The optimizer's launches per step fall.",
        can_try=True,
        edits=(KeywordEdit(calls=_OPTIMIZERS, keywords=("foreach",), drop=("fused",)),),
        arithmetic=Arithmetic.REORDERED,
        sources=(_OPTIM,),
    ),
    Fix(
        id="FX313",
        title="Set gradients to None instead of zero",
        addresses=("BN309",),
        what_to_change="zero_grad(set_to_none=False) fills every gradient with zeros, and backward adds to"
        " them. With None, backward writes them directly, and their memory is free during the forward"
        " pass.",
        when=(given("zero_grad.set_to_none", "==", False, "gradients are filled with zeros"),),
        what_if=WhatIf.ZERO_GRAD_FREE,
        basis="the fill kernels removed",
        may_break="Code that reads p.grad between zero_grad and backward finds None.",
        code="optimizer.zero_grad(set_to_none=True)",
        undo="optimizer.zero_grad(set_to_none=False)",
        verify="No fill or memset kernels inside zero_grad.",
        can_try=True,
        edits=(KeywordEdit(calls=("zero_grad",), keywords=("set_to_none",)),),
        sources=(docs("generated/torch.optim.Optimizer.zero_grad.html", "Optimizer.zero_grad"), _TUNING),
    ),
    Fix(
        id="FX314",
        title="Use fused norm, rotary and loss kernels",
        addresses=("BN306",),
        what_to_change="RMSNorm, RoPE, SwiGLU and the cross-entropy of a large vocabulary are chains of"
        " memory-bound kernels. Fused kernels (Liger, torch.compile, or your own in Triton) read and"
        " write once. The fused linear cross-entropy never stores the logits. Keep the residual sum in"
        " fp32.",
        when=(
            ON_GPU,
            *seen("kernels.norm_share", ">=", 0.05, "norm, rotary and loss kernels take 5 % or more"),
        ),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Sums are taken in another order; the package must support your model.",
        basis=_NOT_PREDICTED,
        code="""\
from liger_kernel.transformers import (
    LigerFusedLinearCrossEntropyLoss,
    LigerRMSNorm,
)

norm = LigerRMSNorm(hidden_size=1024)
loss = LigerFusedLinearCrossEntropyLoss()(lm_head.weight, hidden, targets)""",
        undo="Use torch.nn.RMSNorm and F.cross_entropy again.",
        verify="The share of memory-bound kernels falls; loss follows the old curve.",
        sources=(
            source(
                "https://github.com/linkedin/Liger-Kernel",
                "Liger-Kernel",
                "20 % throughput, 60 % less memory",
            ),
            paper("2410.10989", "Liger Kernel: efficient Triton kernels for LLM training"),
        ),
    ),
    Fix(
        id="FX316",
        title="Use a larger batch",
        general="always",
        addresses=("BN501",),
        what_to_change="Host time per step hardly depends on the batch size. If memory allows, a larger"
        " batch (with a matching learning rate) makes each launch do more work.",
        when=(
            ON_GPU,
            *seen("allocator.headroom_share", ">=", 0.3, "a third of device memory is free at the peak"),
        ),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Optimization changes: scale the learning rate, warm up, compare at equal samples seen.",
        basis="not predicted: work per launch grows with the batch; time per sample falls until the device"
        " is busy",
        code="""\
from torch.utils.data import DataLoader

loader = DataLoader(dataset, batch_size=128, shuffle=True)
for group in optimizer.param_groups:
    group["lr"] *= 2  # linear scaling, with warm-up""",
        undo="Restore both.",
        verify="Samples per second rise; loss at the same number of samples is no worse.",
        sources=(paper("1706.02677", "Accurate, large minibatch SGD"),),
    ),
    Fix(
        id="FX317",
        title="Reach the same loss in fewer steps",
        addresses=("BN301",),
        note=True,
        what_to_change="When the device is busy with necessary work, only the training schedule is left to"
        " change. A better optimizer, warm-up and decay, or a smaller model can reach the same quality"
        " in less time.",
        risk=Risk.CHANGES_NUMERICS,
        may_break="Convergence changes: judge by the time to the same loss.",
        code="""\
import torch

scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=1e-3, total_steps=1000
)""",
        undo="Use the old schedule.",
        verify="Time to the same validation loss falls.",
        sources=(docs("optim.html#how-to-adjust-learning-rate", "How to adjust the learning rate"),),
    ),
    Fix(
        id="FX318",
        title="Extend the context after pre-training",
        addresses=("BN301",),
        note=True,
        when=seen("kernels.attention_share", ">=", 0.3, "attention kernels take 30 % of the step or more"),
        what_to_change="Long sequences are the most expensive part of pre-training. Train on short ones and"
        " extend the rotary embedding (YaRN) with a short fine-tuning.",
        risk=Risk.CHANGES_NUMERICS,
        may_break="Quality at long range must be measured.",
        code="""\
rope_scaling = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 4096,
}""",
        undo="Train at full length.",
        verify="Perplexity by position on long documents.",
        sources=(paper("2309.00071", "YaRN: efficient context window extension of large language models"),),
    ),
    Fix(
        id="FX319",
        title="Compile your own kernels with --use_fast_math",
        addresses=("BN306", "BN301"),
        note=True,
        what_to_change="Kernels of your own extension take a large share of the step. Fast division, square"
        " root and transcendental functions may be accurate enough.",
        when=(ON_CUDA, *seen("kernels.custom_share", ">=", 0.2, "kernels of your own take a fifth or more")),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Denormals become zero and functions lose accuracy.",
        code="""\
from torch.utils.cpp_extension import CUDAExtension

extension = CUDAExtension(
    "kernels",
    ["kernels.cu"],
    extra_compile_args={"nvcc": ["-O3", "--use_fast_math"]},
)""",
        undo="Remove the flag.",
        verify="The kernels' own tests pass within their tolerances.",
        sources=(source("https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc/", "nvcc --use_fast_math"),),
    ),
)
