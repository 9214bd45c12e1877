"""Compute-bound in detail: what would make the kernels themselves cheaper.

In: facts. Out: findings BN302 to BN305 and BN307 to BN309.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from ...model.codes import Part, WhatIf
from ...model.finding import NEGLIGIBLE_SHARE, Evidence, Finding
from ...model.flops import PRODUCTS
from ...model.run import SourceSite
from ...model.words import ms, percent
from ..base import Analyzer, Facts, kernel_evidence, priced, share_evidence
from .launch import mostly_launching


def _lines_of(facts: Facts, is_meant: Callable[[str], bool]) -> list[SourceSite]:
    """Return the lines that the device works for, the longest first, by what most of that is called."""
    lines = [node for node in facts.timeline.device_lines if is_meant(node.callee)]
    return [node.site for node in lines if node.site is not None]


_MOST_TOLD = 4
"""Sizes of products."""


class MatmulWithoutTf32(Analyzer):
    """Matrix products run in full fp32 on a device that has TF32 units.

    What it means
        float32 matmuls (or convolutions) run on the ordinary cores because TF32 is switched off.
        The tensor cores, which are several times faster, are not used.

    How it is measured
        Names of the matmul and convolution kernels in the trace, the flags in force, and the
        device's compute capability (8.0 and up).

    What it costs you
        Those kernels are replayed faster by the ratio of the TF32 rate to the fp32 rate. The rates
        are measured on the device where possible; otherwise the published peaks are used.

    What it is not
        A float32 model is not the problem by itself: with TF32 on, float32 products use tensor
        cores.

    What to do
        torch.set_float32_matmul_precision("high"), torch.backends.cudnn.allow_tf32 = True. This
        rounds the inputs of products to 10 bits of mantissa: check the loss.

    Source
        PyTorch documentation, "TensorFloat-32 (TF32) on Ampere (and later) devices".
    """

    code = "BN302"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price TF32 where fp32 products run without it."""
        if facts.timeline.kind != "gpu":
            return
        share = facts.number("kernels.matmul_fp32_share") or 0.0
        precision = facts.context.get("matmul.precision")
        answer = priced(facts, WhatIf.TF32)
        if answer is None or share < NEGLIGIBLE_SHARE or (precision in ("high", "medium")):
            return
        yield self.finding(
            facts,
            f"fp32 products outside the tensor cores take {percent(share)} of the step",
            answer=answer,
            time_ms=share * facts.true_ms,
            evidence=[
                share_evidence(share, "fp32 matmul kernels"),
                Evidence(
                    text=f"float32 matmul precision is {precision or 'unknown'}",
                    source="settings in force",
                ),
                *kernel_evidence(facts, Part.OTHER_MATH, most=2),
            ],
            not_this="Not about the dtype of the parameters.",
        )


class Fp32WithoutAutocast(Analyzer):
    """The training, or a part of it, runs in fp32 without mixed precision.

    What it means
        Products, convolutions and activations are in float32: half the rate of bf16 on tensor cores
        even with TF32, and twice the bytes for every memory-bound kernel. It may be only a part of
        a step in 16 bits: one factor in float32, like a table of rotary angles, makes all that is
        computed from it float32, and attention several times slower.

    How it is measured
        The autocast dtype seen in the model's forwards, and the share of products that ran in bf16
        or fp16. In one step, the line at which tensors of both kinds meet and give float32. Attention
        in float32 is timed in its own sizes after the capture.

    What it costs you
        Product kernels are replayed at the bf16 rate. The result is a bound where the rates are
        published ones.

    What it is not
        Not free of effects on the result: losses change in the third digit. fp16 needs a
        GradScaler, bf16 does not.

    What to do
        with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss. Where the rest runs
        in 16 bits, cast what has become float32 back before it is used: q.to(v.dtype).

    Source
        PyTorch documentation, "Automatic Mixed Precision"; Micikevicius et al., ICLR 2018.
        facebookresearch/xformers issue 742 (rotary embeddings).
    """

    code = "BN303"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price bf16 where no autocast was seen, or where a part of the step is left out."""
        dtype = facts.context.get("autocast.dtype")
        low = facts.number("kernels.bf16_share") or 0.0
        answer = priced(facts, WhatIf.BF16)
        if facts.timeline.kind != "gpu" or answer is None:
            return
        in_part = low > (facts.number("kernels.matmul_fp32_share") or 0.0)
        if in_part and answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        if not in_part and (dtype not in (None, "none") or low > 0.05):
            return
        what = (
            "Attention or some products run in fp32, the others in 16 bits"
            if in_part
            else "Products run in fp32"
        )
        promoted = facts.run.promotions[:1] if in_part and facts.run is not None else []
        yield self.finding(
            facts,
            f"{what}; in bf16 the step would take {ms(answer.step_ms)}",
            answer=answer,
            sites=[*promoted, facts.timeline.full_precision] if in_part else [],
            evidence=[
                *(
                    Evidence(
                        text="16 bits and float32 meet there, and give float32",
                        source="the functions that a step calls",
                        site=site,
                    )
                    for site in promoted
                ),
                Evidence(
                    text=f"autocast seen in forwards: {dtype or 'not measured'}",
                    source="settings in force",
                ),
                Evidence(text=answer.basis, source="replay"),
            ],
            not_this="bf16 changes the numerics: compare losses before keeping it.",
        )


class AttentionMaterialises(Analyzer):
    """Attention writes the whole score matrix to memory.

    What it means
        Scores of size L x L are computed by one batched product, masked and softmaxed by
        element-wise kernels, and multiplied by a second product. The matrix goes through memory
        several times; fused attention keeps it on chip.

    How it is measured
        The trace has batched products and softmax on the same shapes, and no kernel of a fused
        attention backend.

    What it costs you
        The step is replayed with these kernels replaced by the products alone, at the tensor-core
        rate.

    What it is not
        Not a matter of sequence length alone: what counts is the share of the step, which is small
        for short sequences.

    What to do
        Use torch.nn.functional.scaled_dot_product_attention, with is_causal=True instead of a
        causal mask tensor. Check which backend it chose.

    Source
        Dao et al., "FlashAttention", NeurIPS 2022; PyTorch documentation of
        scaled_dot_product_attention.
    """

    code = "BN304"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report unfused attention by its share, priced where the replay could."""
        share = facts.number("kernels.attention_unfused_share") or 0.0
        if share < NEGLIGIBLE_SHARE:
            return
        answer = priced(facts, WhatIf.FUSED_ATTENTION)
        yield self.finding(
            facts,
            f"Attention that writes its scores takes {percent(share)} of the step",
            answer=answer,
            time_ms=share * facts.true_ms,
            evidence=[share_evidence(share, "score products, softmax and mask")],
            sites=facts.forward_sites(),
            not_this="The projections' products are not counted.",
        )


class MaskWithoutEffect(Analyzer):
    """Attention gets a mask that masks nothing.

    What it means
        A mask that is True everywhere, or is added and 0 everywhere, changes no score, but is read
        for each of them. On a GPU it also keeps flash attention from being used.

    How it is measured
        The masks of all calls of scaled_dot_product_attention, looked at in the steps in which
        FLOPs are counted. Not in compiled code.

    What it costs you
        The calls are timed after the capture, with such a mask and without, in the shapes and the
        type of the step, with their backward. Attention is replayed shorter by that ratio. Making
        the mask is not counted. A trial runs the step without these masks.

    What it is not
        Not a mask that hides padding in some of the batches: pass one for those only.

    What to do
        Pass attn_mask=None where no position is masked, as with one sequence per batch, or sequences
        of one length. Use is_causal=True instead of a causal mask.

    Source
        PyTorch documentation of scaled_dot_product_attention; Nerogar/OneTrainer pull request 1109.
    """

    code = "BN314"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report masks that masked nothing in most of the calls."""
        masks = facts.run.masks if facts.run is not None else None
        if masks is None or (facts.number("attention.idle_masks") or 0.0) <= 0.5:
            return
        yield self.finding(
            facts,
            f"{masks.idle} of {masks.masked} attention masks mask nothing",
            answer=priced(facts, WhatIf.MASKS_GONE),
            evidence=[Evidence(text=f"{masks.calls} calls with {masks.masked} masks", source="attention")],
            sites=[item.site for item in masks.sites],
            not_this="A mask that hides padding is needed.",
        )


class IndexSummedSerially(Analyzer):
    """The gradients of indexed rows are summed one after the other.

    What it means
        In the backward of x[index], CUDA sorts the index, and one thread group adds all gradients
        that belong to the same row of x. Where many entries name the same row (padding, a node with
        many neighbours, a frequent token) all of the device waits for that one.

    How it is measured
        Device time of the kernels named indexing_backward in the trace.

    What it costs you
        The step is replayed without them: a bound, since the gradients must be summed in some way.
        A trial takes rows with index_select, whose gradients are added in any order.

    What it is not
        Not masks of booleans: these wait for the device, which is BN601.

    What to do
        x.index_select(0, index), torch.nn.functional.embedding, or torch.gather. Their sums come in
        any order, so that two runs differ in the last bits.

    Source
        PyTorch issue 41162; dmlc/dgl issue 3729.
    """

    code = "BN317"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report these kernels by their time."""
        answer = priced(facts, WhatIf.INDEX_SUMS_GONE)
        if answer is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        found = [row for row in facts.timeline.kernels if "indexing_backward" in row.name]
        yield self.finding(
            facts,
            "The gradients of x[index] are summed one after the other",
            answer=answer,
            time_ms=sum(row.ms for row in found) or None,
            evidence=[share_evidence(sum(row.share for row in found), "these sums")],
            sites=_lines_of(facts, lambda callee: callee == "IndexBackward0"),
            not_this="Where no row is named twice, there is nothing to gain.",
        )


class NarrowKernels(Analyzer):
    """The kernels of one operator keep little of the device at work.

    What it means
        A kernel is divided into warps of 32 threads, and each multiprocessor has four schedulers that
        issue from warps of their own. With fewer warps than schedulers the others stand still until
        the last warp has ended. A running sum over a dimension that is not the last one has one
        thread per column, and takes its rows one after the other.

    How it is measured
        The trace tells the warps of each kernel for each multiprocessor.

    What it costs you
        The step is replayed with the work of these kernels on all schedulers: a bound, since what
        comes one after the other may have to, and memory has a speed, too.

    What it is not
        Not small kernels: work that all of the device would do in less time than a launch takes is
        not counted.

    What to do
        Give the operator work that it can divide: the dimension that it runs along last and
        contiguous, all samples or heads in one call, a larger batch. Or another operator.

    Source
        NVIDIA, CUDA C++ Best Practices Guide, "Thread and block heuristics"; PyTorch issue 122170.
    """

    code = "BN322"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name the operator and its line."""
        answer, call = priced(facts, WhatIf.KERNELS_SPREAD), facts.timeline.narrow
        if answer is None or call is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        found = self.finding(
            facts,
            f"`{call.callee}()` keeps {percent(call.share)} of the GPU at work for {ms(call.ms)} per step",
            answer=answer,
            time_ms=call.ms,
            evidence=[
                Evidence(
                    text=f"{call.count:.0f} kernels per step", value=call.count, unit="1/step", source="trace"
                )
            ],
            sites=[call.site],
            not_this="Work that has to come one after the other cannot be divided.",
        )
        yield msgspec.structs.replace(found, call=f"`{call.callee}()`", callee=f"torch.{call.callee}")


class SizesUnaligned(Analyzer):
    """Matrix products have sizes that keep them from the fast kernels.

    What it means
        Tensor cores read 16 bytes at once: 8 numbers of 16 bits. Where a matrix has rows of a
        length that is no multiple of that (a vocabulary of 50257), most rows begin between, and an
        older kernel runs, which reads number by number.

    How it is measured
        Kernels in the trace whose names say that they read fewer numbers at once, and products of
        such sizes among those with most FLOPs in one step.

    What it costs you
        The step is replayed with these products at the rate that was measured on this device: a
        bound, since few products reach it.

    What it is not
        Not products in fp32: these do not run on tensor cores (BN302, BN303).

    What to do
        Round the size up to a multiple of 64: the vocabulary, a hidden size, a number of classes.

    Source
        NVIDIA, "Matrix Multiplication Background", tensor core requirements; LAION-AI/Open-Assistant
        pull request 1979.
    """

    code = "BN319"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Name the largest of these products."""
        answer = priced(facts, WhatIf.SIZES_ALIGNED)
        flops = facts.run.flops if facts.run is not None else None
        if answer is None or flops is None:
            return
        told = ["{} x {} x {}, {} per step".format(*each) for each in flops.odd_products()[:_MOST_TOLD]]
        yield self.finding(
            facts,
            f"Matrix products of sizes that are no multiple of 8 ({told[0].partition(',')[0]}) miss the fast "
            "kernels",
            answer=answer,
            evidence=[Evidence(text=text, source="shapes of one step") for text in told],
            sites=_lines_of(facts, lambda callee: callee.startswith(PRODUCTS)),
            not_this="The rounded size has more numbers to compute, a few in a thousand.",
        )


class NewMemoryFilled(Analyzer):
    """New tensors are filled before they are written.

    What it means
        With torch.use_deterministic_algorithms(True), torch fills the memory of each new tensor, so
        that code which reads what nobody has written gives the same numbers in each run. The
        operators of torch write all of their outputs, and do not need it.

    How it is measured
        Kernels (CPU: operators) that fill, inside the operators that make a tensor.

    What it costs you
        The step is replayed without them.

    What it is not
        Not determinism itself: algorithms and results stay as they are.

    What to do
        torch.utils.deterministic.fill_uninitialized_memory = False.

    Source
        PyTorch documentation, torch.utils.deterministic; ultralytics pull request 26180.
    """

    code = "BN318"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Report the fills."""
        answer = priced(facts, WhatIf.FILLS_GONE)
        if answer is None:
            return
        yield self.finding(
            facts,
            f"Filling new tensors before they are written takes {ms(answer.saves_ms)} per step",
            answer=answer,
            not_this="Nothing reads these values, unless a program reads memory that it has not written.",
        )


class OptimizerUnfused(Analyzer):
    """The optimizer updates parameters with many small kernels.

    What it means
        The update of each parameter is a chain of element-wise kernels. With foreach, each kernel
        of the chain handles a group of parameters. A fused optimizer reads every tensor once.

    How it is measured
        Device time and launches inside Optimizer.step; the implementation that actually ran.

    What it costs you
        The step is replayed with one launch per group and the memory traffic of the fused kernel.

    What it is not
        Not the choice of optimizer: the result is the same except for rounding (2e-7 measured). If
        launches make up most of the saving, the finding is BN502.

    What to do
        fused=True in the constructor of Adam, AdamW, SGD or Adagrad.

    Source
        PyTorch documentation, torch.optim, "Algorithms": for-loop, foreach, fused.
    """

    code = "BN305"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the fused optimizer."""
        answer = priced(facts, WhatIf.OPTIMIZER_FUSED)
        flavour = facts.context.get("optimizer.flavour")
        if answer is None or flavour == "fused" or mostly_launching(facts, answer):
            return  # mostly launching: BN502
        share = facts.number("optimizer.share")
        launches = facts.number("optimizer.launches")
        name = facts.context.get("optimizer.cls", "it")
        evidence = []
        if share is not None:
            evidence.append(share_evidence(share, "the optimizer", source="step budget"))
        if launches is not None:
            what = "kernel launches" if facts.timeline.kind == "gpu" else "operators"
            evidence.append(
                Evidence(
                    text=f"{launches:.0f} {what} per step in {name} ({flavour or 'implementation unknown'})",
                    value=launches,
                    unit="1/step",
                    source="trace",
                )
            )
        sites = [facts.timeline.update_loop]
        sites += [item.site for item in facts.run.optimizers] if facts.run is not None else []
        yield self.finding(
            facts,
            f"An unfused optimizer costs {ms(answer.saves_ms)} per step",
            answer=answer,
            time_ms=share * facts.true_ms if share is not None else None,
            evidence=evidence,
            sites=sites,
            not_this="The update stays the same, with fewer passes over memory.",
        )


class LayoutConversions(Analyzer):
    """Convolutions convert between NCHW and NHWC.

    What it means
        cuDNN's tensor-core convolutions work on channels-last (NHWC) tensors. NCHW tensors are
        converted before and after each convolution. cuDNN's batch norm for NCHW uses one block of
        threads per channel, so with few channels most of the device is idle.

    How it is measured
        Layout kernels (nchwToNhwc, nhwcToNchw and the like) around convolutions in the trace.

    What it costs you
        The step is replayed without those kernels, and with batch norms that take only as long as
        their memory traffic.

    What it is not
        Not every transpose: only conversions that the convolution library inserted count.

    What to do
        Use model.to(memory_format=torch.channels_last), and the same for the images.

    Source
        PyTorch tutorial, "Channels Last Memory Format in PyTorch".
    """

    code = "BN307"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the conversions."""
        share = facts.number("kernels.layout_share") or 0.0
        if share < 0.01:
            return
        answer = priced(facts, WhatIf.CHANNELS_LAST)
        evidence = [share_evidence(share, "layout kernels")]
        if answer is not None:
            evidence.append(Evidence(text=answer.basis, source="replay"))
        yield self.finding(
            facts,
            f"Convolutions run on NCHW: conversions around them take {percent(share)} of the step",
            answer=answer,
            time_ms=share * facts.true_ms,
            evidence=evidence,
            not_this="Transposes written in the model are not counted.",
        )


class CudnnBenchmarkOff(Analyzer):
    """cuDNN chooses convolution algorithms by a heuristic, not by measurement.

    What it means
        With torch.backends.cudnn.benchmark off, cuDNN's heuristic picks the algorithm. With fixed
        shapes, one measurement per shape can find a faster one.

    How it is measured
        The flag, the share of convolutions in the step, and whether shapes stay the same.

    What it costs you
        Unknown until tried, so this is a note without a price.

    What it is not
        Not useful when shapes vary, because every new shape is measured. Not compatible with
        deterministic algorithms.

    What to do
        Set torch.backends.cudnn.benchmark = True, and measure the effect.

    Source
        PyTorch performance tuning guide, "Enable cuDNN auto-tuner".
    """

    code = "BN308"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Note the switch where convolutions matter and shapes are constant."""
        share = facts.number("kernels.conv_share") or 0.0
        off = facts.is_on("cudnn.benchmark") is False
        if facts.timeline.kind != "gpu" or share < 0.2 or not off or facts.is_on("step.varying_shapes"):
            return
        yield self.finding(
            facts,
            f"Convolutions take {percent(share)} of the step and cudnn.benchmark is off",
            time_ms=share * facts.true_ms,
            evidence=[Evidence(text="torch.backends.cudnn.benchmark is False", source="settings in force")],
            not_this="The gain is unknown until it is measured.",
            note=True,
        )


class CudnnOff(Analyzer):
    """cuDNN is switched off, and convolutions run torch's own kernels.

    What it means
        torch.backends.cudnn.enabled is False, often left from a search for an error. Convolutions
        then unfold each sample and multiply it, one after the other; recurrent layers launch each
        time step.

    How it is measured
        The switch as it stands while training; the time of what convolutions launch.

    What it costs you
        The step is replayed with the FLOPs of the convolutions at the rate of a large product on
        this device: a bound. A trial switches cuDNN on in the run.

    What it is not
        Not cudnn.benchmark, which chooses among cuDNN's own algorithms.

    What to do
        Take torch.backends.cudnn.enabled = False out of the script.

    Source
        PyTorch documentation, torch.backends.cudnn; speedinghzl/Pytorch-Deeplab issue 1.
    """

    code = "BN325"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price it where it is off."""
        answer = priced(facts, WhatIf.CUDNN_ON)
        if answer is None or answer.saves_ms < NEGLIGIBLE_SHARE * facts.true_ms:
            return
        yield self.finding(
            facts,
            f"cuDNN is switched off: convolutions cost up to {ms(answer.saves_ms)} more per step",
            answer=answer,
            evidence=[Evidence(text="torch.backends.cudnn.enabled is False", source="settings in force")],
            sites=_lines_of(facts, lambda callee: "Convolution" in callee),
            not_this="The convolutions themselves stay.",
        )


class ZeroGradFills(Analyzer):
    """Gradients are filled with zeros instead of being released.

    What it means
        zero_grad(set_to_none=False) fills every gradient with zeros. The backward then reads and
        adds to them instead of only writing.

    How it is measured
        Fill kernels (CPU: operators) inside zero_grad, per step.

    What it costs you
        The step is replayed without them.

    What it is not
        Not gradient accumulation: gradients must be kept between micro-steps.

    What to do
        optimizer.zero_grad(set_to_none=True), the default since torch 2.0.

    Source
        PyTorch documentation, torch.optim.Optimizer.zero_grad.
    """

    code = "BN309"

    def find(self, facts: Facts) -> Iterator[Finding]:
        """Price the fills."""
        share = facts.number("kernels.zero_grad_share") or 0.0
        if facts.is_on("zero_grad.set_to_none") is not False or share < 0.002:
            return
        yield self.finding(
            facts,
            f"Filling gradients with zeros takes {percent(share)} of the step",
            answer=priced(facts, WhatIf.ZERO_GRAD_FREE),
            time_ms=share * facts.true_ms,
            evidence=[Evidence(text="zero_grad(set_to_none=False) was called", source="hooks")],
            sites=facts.sites("zero_grad"),
            not_this="Zeros are needed only if something reads the gradients before backward.",
        )
