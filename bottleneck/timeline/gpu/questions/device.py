"""Questions about the device's own work: kernels that could be faster, or not there.

In: a `Program`, masks over its activities, the circumstances. Out: `Question`s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ....model.codes import Part, WhatIf
from ....model.words import percent
from ...lanes.costly import without_calls
from ...lanes.labels import Work
from ...lanes.program import PARTS, Program
from ...lanes.questions import (
    CONVERTED_BASIS,
    DROPPED_BASIS,
    IDLE_ROWS_BASIS,
    Question,
    copied_basis,
    masks_basis,
    repeats_basis,
    without_waits,
)
from ...lanes.replay import Edit, not_called, not_launched
from ..device_masks import DeviceWork
from ..math_rates import FIXED_NS, SpeedUp, attention_speed_up, math_speed_up
from .circumstances import Circumstances

_FUSED_PRODUCTS = 0.4
"""Time of attention's products when fused, over that of the batched matmuls, which move the score
matrix: 0.3 on an H200 (2048 tokens, head of 64, bf16, causal); without a causal mask it is more."""

_ON_BATCH = tuple(PARTS.index(part) for part in (Part.TENSOR_CORE, Part.OTHER_MATH, Part.MEMORY_BOUND))


def device_questions(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    """Kernels that could be faster, or not there."""

    def only(mask: NDArray[np.bool_], factor: float) -> Edit:
        return Edit(duration=np.where(mask, factor, 1.0))

    facts = known.facts
    yield from _precision_questions(program, work, known)
    yield from _attention_questions(work, known)
    batch = np.isin(program.part, _ON_BATCH) & ~(work.optimizer | work.zero_grad)
    again = facts.repeats
    if again is not None and (again.graded_share > 0 or again.ungraded_share > 0):
        share = again.graded_share
        goes = batch if known.later is None else batch & ~known.later
        once = Edit(work={Work.DISPATCH: 1.0 - share}, duration=np.where(goes, 1.0 - share, 1.0))
        if known.bare is not None and again.ungraded_share > 0:
            once = once.and_also(not_launched(program, known.bare, again.ungraded_share))
        told = repeats_basis(again.share + again.steady_share, share)
        yield Question(WhatIf.FORWARD_ONCE, once, told, bound=True)
    carried = again.carried_ungraded_share if again is not None and known.bare is not None else 0.0
    if carried > 0 or known.joined is not None:
        kept = not_launched(program, known.bare, carried) if known.bare is not None else Edit()
        kept = kept if known.joined is None else kept.and_also(known.joined)
        told = copied_basis(carried, joined=known.joined is not None)
        yield Question(WhatIf.COPIED_ONCE, kept, told, bound=carried > 0)
    if facts.padding_share > 0:
        # Attention, fused or not, grows with the square of the length.
        squares = work.attention | work.scores | work.score_products
        left = np.where(squares, (1.0 - facts.padding_share) ** 2, 1.0 - facts.padding_share)
        left = np.minimum(1.0, left + FIXED_NS / np.maximum(program.duration, 1.0))
        yield Question(
            WhatIf.PADDING_GONE,
            Edit(duration=np.where(batch, left, 1.0)),
            f"replay with kernels of forward, loss and backward {percent(facts.padding_share)} shorter: as "
            "much of the batch is padding; of attention the square of what is left stays; some padding stays",
            bound=True,
        )
    if known.dropped is not None:
        yield Question(
            WhatIf.DROPPED_GONE,
            not_launched(program, known.dropped == 1.0).and_also(Edit(duration=1.0 - known.dropped)),
            DROPPED_BASIS,
        )
    if known.idle is not None:
        yield Question(WhatIf.IDLE_ROWS_GONE, Edit(duration=1.0 - known.idle), IDLE_ROWS_BASIS)
    if known.again is not None:
        yield Question(WhatIf.CONVERTED_ONCE, known.again, CONVERTED_BASIS)
    yield from _done_another_way(program, work, known)
    yield from _not_done(program, work)
    yield from _by_cudnn(program, work, known)
    yield from _aligned_questions(program, work, known)
    if facts.table_share > 0 and work.optimizer.any():
        yield Question(
            WhatIf.SPARSE_ROWS,
            only(work.optimizer, 1.0 - facts.table_share),
            f"replay without the embedding tables' {percent(facts.table_share)} of the update; few rows stay",
        )
    if known.ungraded is not None and known.ungraded.any():
        yield Question(
            WhatIf.FORWARD_STORED,
            not_launched(program, known.ungraded),
            "replay without the model that runs without gradients in every step",
            bound=True,
        )
    if work.layout.any():
        norms, stays = bool((work.nhwc[~work.layout] < 1.0).any()), float(work.nhwc[work.layout].max())
        yield Question(
            WhatIf.CHANNELS_LAST,
            Edit(duration=work.nhwc),
            "replay without layout-change kernels"
            + (", and with batch norms for NCHW at the speed of memory" if norms else "")
            + (f"; {percent(stays)} of them stay, beside norms that work on NCHW only" if stays else ""),
        )


def _done_another_way(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    """Calls for which there is a cheaper one, which takes time, too."""
    for call, events in known.costly:
        on_host = None if call.left_on_host is None else 1.0 - call.left_on_host
        yield without_calls(call, not_called(program, events, 1.0 - (call.left or 0.0), on_host=on_host))
    if known.narrow is not None:
        yield Question(
            WhatIf.KERNELS_SPREAD,
            Edit(duration=known.narrow.left),
            f"replay with the kernels of `{known.narrow.call.callee}()` on all of the device; memory may keep"
            " them waiting then",
            bound=True,
        )
    if work.picked.any():
        waits, told = without_waits(program)
        yield Question(
            WhatIf.PICKS_GONE,
            waits.and_also(not_launched(program, work.picked)),
            f"{told}, and without picking by masks; weighing all by them takes time, too",
            bound=True,
        )
    if work.index_sums.any():
        yield Question(
            WhatIf.INDEX_SUMS_GONE,
            Edit(duration=np.where(work.index_sums, 0.0, 1.0)),
            "replay without the kernels that sum the gradients of indexed rows; another sum takes time, too",
            bound=True,
        )


def _not_done(program: Program, work: DeviceWork) -> Iterator[Question]:
    """Work that is neither launched nor dispatched."""
    for question, mask, told in (
        (WhatIf.FILLS_GONE, work.fills, "the fills of new memory"),
        (WhatIf.RECOMPUTE_GONE, work.recomputed, "the forward work that backward repeats"),
    ):
        if mask.any():
            yield Question(question, not_launched(program, mask), f"replay without {told}")


def _by_cudnn(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    """Convolutions, where cuDNN is switched off: what computes them then goes sample by sample."""
    run = known.facts.run
    counted = run.flops if run is not None else None
    if run is None or counted is None or run.settings.get("cudnn.enabled") is not False:
        return
    flops = sum(count for name, count in counted.by_operator.items() if name.startswith("convolution"))
    kind = max(counted.by_dtype, key=lambda name: counted.by_dtype[name], default="")
    single = "tf32" if run.settings.get("cudnn.allow_tf32") else "fp32"
    rate = run.matmul_tflops.get({"bfloat16": "bf16", "float16": "fp16"}.get(kind, single))
    launches = int(work.convolutions.sum())
    if rate and launches > work.convolution_calls:
        took_ns = float(program.duration[work.convolutions].sum()) / program.steps
        launched = work.convolution_calls / launches
        left = min(1.0, flops / (1e3 * rate) / took_ns) / launched
        yield Question(
            WhatIf.CUDNN_ON,
            not_launched(program, work.convolutions, 1.0 - launched).and_also(
                Edit(duration=np.where(work.convolutions, left, 1.0))
            ),
            f"replay with one launch for each convolution, and at the {rate:.0f} TFLOP/s that a large product"
            " reaches on this device",
            bound=True,
        )


def _aligned_questions(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    """Products whose sizes keep them from the fast kernels, at the rate that others reach here."""
    run = known.facts.run
    if run is None or run.flops is None:
        return
    odd = run.flops.odd_products()
    # The type that most of these kernels' time is in.
    dtype, mask = max(work.unaligned.items(), key=lambda item: float(program.duration[item[1]].sum()))
    rate = run.matmul_tflops.get(dtype)
    # As many of these kernels as there are such products, the longest: the sizes of others are not known.
    longest = np.flatnonzero(mask)
    longest = longest[np.argsort(-program.duration[longest], kind="stable")]
    longest = longest[: sum(count for *_, count in odd) * program.steps]
    if not rate or not len(longest):
        return
    flops = sum(2.0 * rows * inner * columns * count for rows, inner, columns, count in odd)
    factor = np.ones(len(program.duration))
    factor[longest] = min(1.0, program.steps * flops / (1e3 * rate) / program.duration[longest].sum())
    yield Question(
        WhatIf.SIZES_ALIGNED,
        Edit(duration=factor),
        f"replay with these products at {rate:.0f} TFLOP/s, the rate of {dtype} measured on this device",
        bound=True,
    )


def _precision_questions(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    run = known.facts.run
    length = np.maximum(program.duration, 1.0)

    def sped_up(mask: NDArray[np.bool_], by: SpeedUp | None) -> NDArray[np.float64]:
        if by is None:
            return np.ones(len(length))
        return np.where(mask, np.minimum(1.0, 1.0 / by.ratio + by.fixed_ns / length), 1.0)

    for question, target in ((WhatIf.TF32, "tf32"), (WhatIf.BF16, "bf16")):
        by = math_speed_up(run, known.capability, of="fp32", to=target)
        factor = sped_up(work.fp32_math, by)
        if target == "tf32" and not (run is not None and run.settings.get("cudnn.allow_tf32") is False):
            # cuDNN may compute in TF32 already, and took fp32 for these.
            factor[work.convolutions] = 1.0
        if target == "bf16":
            of_tf32 = math_speed_up(run, known.capability, of="tf32", to=target)
            factor *= sped_up(work.tf32_math, of_tf32)
            factor *= sped_up(work.fp32_attention, attention_speed_up(run, by))
            factor[~work.autocast] = 1.0
        if by is not None and (factor < 1.0).any():
            told = f"replay with fp32 matmul and convolution kernels sped up ({by.told}, and "
            told += f"{by.fixed_ns / 1e3:.0f} us of each kept)"
            # Convolutions that are fed NCHW pay for bf16 with more copies, casts and slower batch norms
            # than they save: 0.94x measured where the replay saw 1.10x.
            misfed = target == "bf16" and bool(work.layout.any())
            less = work.low_traffic | (work.nhwc < 1.0) if misfed else work.low_traffic
            if target == "bf16" and less.any():
                # Half the bytes, but no kernel is shorter than the shortest of the trace.
                half = np.clip(np.maximum(0.5, program.shortest_ns / length), 0.5, 1.0)
                factor = np.where(less, half, factor)
                told += ", element-wise kernels on their results moving half the bytes; casts not counted"
            if misfed:
                told += "; at best, since convolutions run on NCHW here (try channels_last first)"
            yield Question(question, Edit(duration=factor), told, bound=misfed)


def _attention_questions(work: DeviceWork, known: Circumstances) -> Iterator[Question]:
    if work.scores.any():
        yield Question(
            WhatIf.FUSED_ATTENTION,
            Edit(duration=np.where(work.scores, 0.0, np.where(work.score_products, _FUSED_PRODUCTS, 1.0))),
            "replay without the kernels between the products of attention, and with products that no longer "
            f"write and read scores ({percent(_FUSED_PRODUCTS)} of their time)",
        )
    idle = known.facts.idle_masks
    if idle is not None and work.attention.any():
        share, without = idle
        yield Question(
            WhatIf.MASKS_GONE,
            Edit(duration=np.where(work.attention, 1.0 - share * (1.0 - without), 1.0)),
            masks_basis(share, without),
        )
