"""Fixes of numerical precision: TF32, mixed precision, FP8.

In: nothing. Out: `FIXES`, data.
"""

from __future__ import annotations

from ..model.codes import WhatIf
from ..model.fix import Arithmetic, AroundEdit, Fix, Option, Risk, StatementEdit
from .build import ON_CUDA, ON_GPU, arguments, docs, given, in_trainer, paper, seen, source

_AMPERE = given("device.capability", ">=", 8.0, "the device is Ampere or newer")
_NO_AUTOCAST = given("autocast.dtype", "==", "none", "nothing runs under autocast")
_AMP = docs("amp.html", "torch.amp")
_AMP_EXAMPLES = docs("notes/amp_examples.html", "Automatic mixed precision examples")

FIXES: tuple[Fix, ...] = (
    Fix(
        id="FX301",
        title="Allow TF32 for matrix multiplication",
        addresses=("BN302",),
        what_to_change="torch computes fp32 matrix products in full fp32 by default. 'high' lets them use"
        " the tensor cores with TF32: inputs are rounded to 10 bits of mantissa, sums stay in fp32. A"
        " script that sets fp32_precision (torch 2.9 or newer) needs"
        " torch.backends.cuda.matmul.fp32_precision = 'tf32' instead: the old and the new settings must"
        " not be mixed.",
        when=(ON_CUDA, _AMPERE, given("matmul.precision", "==", "highest", "fp32 products run in full fp32")),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Products lose mantissa bits (relative error about 1e-3 per element).",
        what_if=WhatIf.TF32,
        basis="fp32 matrix kernels scaled by the ratio of the two rates",
        code="""\
import torch

torch.set_float32_matmul_precision("high")""",
        undo='torch.set_float32_matmul_precision("highest")',
        verify="Loss follows the old curve; kernels named *tf32* or tensorop appear.",
        can_try=True,
        options={"precision": Option(kind="str")},
        edits=(
            StatementEdit(
                statement='torch.set_float32_matmul_precision("high")', setting="set_float32_matmul_precision"
            ),
        ),
        arithmetic=Arithmetic.TF32,
        sources=(
            docs("generated/torch.set_float32_matmul_precision.html", "torch.set_float32_matmul_precision"),
            docs("notes/cuda.html#tf32-on-ampere", "TF32 on Ampere and later"),
        ),
    ),
    Fix(
        id="FX302",
        title="Allow TF32 for convolutions",
        addresses=("BN302",),
        what_to_change="cuDNN's TF32 has been turned off (it is on by default). Turn it on again. If the"
        " script sets fp32_precision (torch 2.9 or newer): torch.backends.cudnn.conv.fp32_precision ="
        " 'tf32'.",
        when=(
            ON_CUDA,
            _AMPERE,
            *seen("cudnn.allow_tf32", "==", False, "cuDNN may not use TF32"),
            given("kernels.conv_share", ">", 0.02, "convolutions take a share of the step"),
        ),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Convolutions lose mantissa bits.",
        what_if=WhatIf.TF32,
        basis="fp32 kernels scaled by the ratio of the two rates",
        code="""\
import torch

torch.backends.cudnn.allow_tf32 = True""",
        undo="torch.backends.cudnn.allow_tf32 = False",
        verify="Loss follows the old curve.",
        can_try=True,
        edits=(
            StatementEdit(statement="torch.backends.cudnn.allow_tf32 = True", setting="cudnn.allow_tf32"),
        ),
        arithmetic=Arithmetic.TF32,
        sources=(docs("backends.html#torch.backends.cudnn.allow_tf32", "torch.backends.cudnn.allow_tf32"),),
    ),
    Fix(
        id="FX303",
        title="Train in mixed precision (bf16 autocast)",
        addresses=("BN303", "BN302", "BN306"),
        what_to_change="Run forward and loss under autocast with bfloat16. Weights, optimizer state,"
        " reductions, softmax and norms stay in fp32. bf16 has fp32's range, so no loss scaling is"
        " needed.",
        when=(ON_GPU, given("device.capability", ">=", 8.0, "the device computes in bf16"), _NO_AUTOCAST),
        unless=(
            given("kernels.bf16_share", ">", 0.2, "the matrix kernels run in 16 bits already"),
            given(
                "kernels.bf16_share", ">", "@kernels.matmul_fp32_share", "most of them run in 16 bits already"
            ),
        ),
        conflicts=("FX304",),
        risk=Risk.CHANGES_NUMERICS,
        may_break="8 bits of mantissa: compare loss curves; keep custom losses and long sums in fp32.",
        what_if=WhatIf.BF16,
        basis="matrix kernels scaled by the ratio of the rates, memory-bound ones by half the bytes",
        code="""\
import torch

with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
    loss = loss_fn(model(inputs), targets)
loss.backward()  # outside autocast""",
        other_code=(
            arguments("bf16=True"),
            in_trainer(
                "lightning",
                """\
from lightning.pytorch import Trainer

trainer = Trainer(precision="bf16-mixed")""",
            ),
        ),
        undo="Remove the with statement.",
        verify="Loss after the same number of steps is within its noise; 16-bit kernels appear.",
        can_try=True,
        edits=(AroundEdit(context="torch.autocast({device!r}, dtype=torch.bfloat16)"),),
        arithmetic=Arithmetic.BF16,
        sources=(_AMP, _AMP_EXAMPLES, paper("1710.03740", "Mixed precision training")),
    ),
    Fix(
        id="FX345",
        title="Give 16 bits to what still computes in 32",
        addresses=("BN303",),
        what_to_change="Most products run in 16 bits, and some work beside them in float32: one factor in"
        " float32 (a table of rotary angles, a mask, a scale) has made queries and keys float32, or autocast is"
        " off there. Flash attention needs 16 bits. Keep the tables as they are, and cast what comes out back to"
        " the type of the model.",
        when=(
            ON_CUDA,
            given("kernels.bf16_share", ">", "@kernels.matmul_fp32_share", "most products run in 16 bits"),
        ),
        conflicts=("FX303", "FX304"),
        risk=Risk.CHANGES_NUMERICS,
        may_break="8 bits of mantissa where there were 24: leave sums over many numbers and losses as they are.",
        what_if=WhatIf.BF16,
        what_if_bound=True,
        basis="attention in float32 as timed in bf16, matrix kernels by the ratio of the rates",
        code="""\
import torch.nn.functional as F

# `rotary` multiplies by float32 tables.
q, k = rotary(q).to(v.dtype), rotary(k).to(v.dtype)
out = F.scaled_dot_product_attention(q, k, v, is_causal=True)""",
        undo="Remove the casts.",
        verify="Flash or cuDNN attention kernels appear; the loss stays within its noise.",
        can_try=True,
        arithmetic=Arithmetic.BF16,
        sources=(
            source(
                "https://github.com/facebookresearch/xformers/issues/742",
                "xformers #742: rotary embeddings make queries and keys float32",
            ),
            source("https://github.com/Dao-AILab/flash-attention/issues/43", "flash-attention #43"),
        ),
    ),
    Fix(
        id="FX304",
        title="Train in mixed precision (fp16, scaled loss)",
        addresses=("BN303",),
        what_to_change="GPUs before Ampere do not compute in bf16. Use fp16 with a GradScaler, which keeps"
        " small gradients from becoming zero and skips a step that overflows.",
        when=(
            ON_CUDA,
            given("device.capability", ">=", 7.0, "the device has tensor cores"),
            given("device.capability", "<", 8.0, "the device does not compute in bf16"),
            _NO_AUTOCAST,
        ),
        conflicts=("FX303",),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Overflow skips steps; unscale before clipping gradients.",
        what_if=WhatIf.BF16,
        basis="matrix kernels scaled by the ratio of the rates, memory-bound ones by half the bytes",
        code="""\
import torch

scaler = torch.amp.GradScaler(device.type)
with torch.autocast(device_type=device.type, dtype=torch.float16):
    loss = loss_fn(model(inputs), targets)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()""",
        undo="Remove autocast and the scaler.",
        verify="The scale settles, few steps are skipped, loss follows the old curve.",
        sources=(_AMP_EXAMPLES, paper("1710.03740", "Mixed precision training")),
    ),
    Fix(
        id="FX305",
        title="Add custom_fwd, custom_bwd to autograd functions",
        addresses=("BN302", "BN303"),
        what_to_change="In an autograd.Function, autocast casts the inputs of forward's operators. What is"
        " saved stays in fp32, and backward runs with autocast off, so it can compute in fp32 in the"
        " middle of a bf16 model. The decorators cast the inputs once and run backward in the same"
        " autocast state.",
        when=(
            *seen("autocast.dtype", "!=", "none", "the model runs under autocast"),
            *seen("kernels.matmul_fp32_share", ">=", 0.05, "matrix kernels compute in fp32 all the same"),
        ),
        risk=Risk.CHANGES_NUMERICS,
        may_break="The function now computes in 16 bits.",
        basis="at best the fp32 kernels scaled by the ratio of the rates",
        code="""\
import torch


class MyMatmul(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.bfloat16)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad @ b.mT, a.mT @ grad""",
        undo="Remove the decorators.",
        verify="No fp32 matrix kernels remain under autocast.",
        sources=(_AMP_EXAMPLES,),
    ),
    Fix(
        id="FX315",
        title="Compute the matrix products in FP8",
        addresses=("BN301",),
        what_to_change="On Ada, Hopper and newer GPUs, convert the large linear layers to float8 (torchao)"
        " or use Transformer Engine's layers.",
        when=(
            ON_CUDA,
            *seen("device.capability", ">=", 8.9, "the device computes in fp8"),
            *seen("kernels.bf16_share", ">=", 0.3, "16-bit matrix kernels take 30 % of the step or more"),
        ),
        risk=Risk.CHANGES_NUMERICS,
        may_break="2 to 3 bits of mantissa with dynamic scaling: judge it by loss and downstream quality.",
        basis="not predicted: it depends on sizes, and for small matrices the scaling costs more than it"
        " saves",
        code="""\
from torchao.float8 import convert_to_float8_training

convert_to_float8_training(
    model, module_filter_fn=lambda module, name: name != "lm_head"
)""",
        undo="Remove the conversion.",
        verify="Step time falls, and loss stays within its noise over a long run.",
        sources=(
            source(
                "https://github.com/pytorch/ao/tree/main/torchao/float8",
                "torchao.float8",
                "up to 1.5x on Llama 3",
            ),
            source(
                "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/index.html",
                "Transformer Engine",
            ),
        ),
    ),
    Fix(
        id="FX320",
        title="Train in float32, not float64",
        addresses=("BN310",),
        what_to_change="NumPy data is float64 by default. Convert it once where it is loaded, and remove"
        " .double() (or set_default_dtype(torch.float64)) from the model.",
        when=seen("optimizer.parameter_dtype", "==", "float64", "the parameters are float64"),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Rounding is 1e-7 instead of 1e-16. Sums of millions of terms and ill-conditioned solves"
        " may still need float64.",
        what_if=WhatIf.SINGLE_PRECISION,
        basis="float64 moves twice the bytes of float32, and a vector register holds half as many numbers",
        code="""\
import torch

model = model.float()
# Best where the data is loaded.
images = torch.as_tensor(images, dtype=torch.float32)""",
        undo="model.double()",
        verify="Loss follows the old curve; step time and memory fall.",
        sources=(docs("generated/torch.set_default_dtype.html", "torch.set_default_dtype"),),
    ),
    Fix(
        id="FX322",
        title="Compute in float32 on the CPU",
        addresses=("BN313",),
        what_to_change="Autocast, .half() and torch_dtype=torch.float16 are for GPUs. On a CPU keep the"
        " parameters in float32 and enter autocast only where the device is a GPU.",
        when=(
            given("device.kind", "==", "cpu", "training runs on the CPU"),
            *seen("math.half", "in", ["float16", "bfloat16"], "it computes in 16 bits"),
        ),
        risk=Risk.CHANGES_NUMERICS,
        may_break="Parameters and activations take twice the memory.",
        what_if=WhatIf.SINGLE_PRECISION,
        basis="the rates of a matrix product in both types, measured on this machine",
        code="""\
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
with torch.autocast(device.type, enabled=device.type == "cuda"):
    loss = loss_fn(model(inputs), targets)""",
        undo="Enter autocast on every device.",
        verify="Loss follows the old curve; step time falls.",
        can_try=True,
        arithmetic=Arithmetic.BF16,
        sources=(
            docs("amp.html#cpu-op-specific-behavior", "torch.amp, CPU op-specific behaviour"),
            source("https://github.com/pytorch/pytorch/issues/118499", "Autocast on cpu dramatically slow"),
            source("https://github.com/huggingface/transformers/issues/34692", "float16 models on the CPU"),
        ),
    ),
    Fix(
        id="FX377",
        title="Convert a tensor once, not for each use",
        addresses=("BN326",),
        what_to_change="Autocast keeps what it has converted of weights if its cache is on and all calls of a step"
        " are in one context. In Lightning's MixedPrecision and in a context of your own, leave cache_enabled at"
        " True; make no context per call. Weights that a call without gradients has used are converted again:"
        " leave the context behind it. Convert the output of a norm once, before the layers that take it.",
        when=seen("math.converted_once_ms", ">", 0.0, "some tensors are converted more than once"),
        what_if=WhatIf.CONVERTED_ONCE,
        what_if_bound=True,
        basis="sums of gradients may take longer",
        risk=Risk.CHANGES_NUMERICS,
        may_break="What was converted does not follow an update: weights must not change inside of the context."
        " Gradients of the calls are added up in 16 bits. A CUDA graph that is captured needs the cache off.",
        code="""\
import torch

with torch.autocast(device.type, torch.bfloat16, cache_enabled=True):
    first, second = model(one), model(other)
    h = norm(x).to(torch.bfloat16)
    q, k, v = to_q(h), to_k(h), to_v(h)""",
        undo="Leave the cache off.",
        verify="Fewer kernels that copy; the loss follows the old curve.",
        arithmetic=Arithmetic.BF16,
        sources=(
            docs("amp.html#torch.autocast", "torch.autocast"),
            source(
                "https://github.com/Lightning-AI/pytorch-lightning/issues/21611",
                "Lightning: autocast without its cache",
            ),
        ),
    ),
    Fix(
        id="FX348",
        title="Take denormal numbers for zeros",
        addresses=("BN324",),
        what_to_change="On a CPU, numbers below 1.2e-38 take many times as long as others. Have the processor take"
        " them for zeros, before the first operator: threads that exist already keep their setting.",
        when=(
            given("device.kind", "==", "cpu", "training runs on the CPU"),
            *seen("denormals.share", ">", 0.0, "numbers of the optimizer are denormal"),
        ),
        unless=(given("denormals.flushed", "==", True, "they are taken for zeros already"),),
        what_if=WhatIf.DENORMALS_GONE,
        what_if_bound=True,
        only_answered=True,
        basis="a product with such numbers at the rate of others",
        risk=Risk.CHANGES_NUMERICS,
        may_break="Numbers below 1.2e-38 become zero: nothing that trains needs them.",
        code="""\
import torch

torch.set_flush_denormal(True)""",
        undo="torch.set_flush_denormal(False)",
        verify="The step time falls; the loss follows the old curve.",
        can_try=True,
        arithmetic=Arithmetic.REORDERED,
        edits=(StatementEdit(statement="torch.set_flush_denormal(True)", setting="set_flush_denormal"),),
        sources=(
            docs("generated/torch.set_flush_denormal.html", "torch.set_flush_denormal"),
            source("https://github.com/pytorch/pytorch/issues/51539", "Denormal numbers on the CPU"),
            source(
                "https://github.com/chainer/chainer/issues/2554", "Weights that decay to denormal numbers"
            ),
        ),
    ),
)
