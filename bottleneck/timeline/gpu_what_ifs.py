"""The questions put to the replay of a GPU run: the step without a cause, or with a thing changed.

In: a `Program`, its `Replay`, the calibration, what is known of loaders, optimizers and the device.
Out: `WhatIfResult`s in ms of the true step, and the edits behind them, so that the second cause can
be asked with the first already removed.

Each answer is the ratio of two replays, with and without the edit, applied to the true step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ..model.codes import Part, WhatIf
from ..model.diagnosis import WhatIfResult
from .device_masks import DeviceWork
from .gpu_edits import TENSORS_PER_LAUNCH, few_launches, seams_gone
from .hostwork import Work
from .math_rates import FIXED_NS, math_speed_up
from .program import PARTS, EventKind
from .recompute import without_recomputation
from .replay import Edit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..model.run import OptimizerFacts
    from .calibrate import Calibration
    from .cpu_what_ifs import InputSupply
    from .program import Program
    from .replay import Replay

__all__ = ["Answers", "Circumstances", "ask_gpu", "workers_needed"]

_EAGER = (Work.DISPATCH, Work.OPTIMIZER, Work.ZERO_GRAD)
_GRAPH_LEFT = 0.03
"""Share of dispatch left when a CUDA graph is launched instead: one launch of 20 to 60 us and the
copies of its inputs (12-layer GPT on an H200: 0.35 of 11.9 ms)."""


_GRAPH_SPACING_NS = 420.0
"""Pause between two kernels of one CUDA graph: the median in two compiled GPTs on an H200 (torch 2.11).
Kernels launched one by one and queued lie 1 us apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Results by question, and the edits that produced them."""

    results: dict[WhatIf, WhatIfResult]
    edits: dict[WhatIf, Edit] = field(default_factory=dict)
    after: dict[tuple[WhatIf, WhatIf], float] = field(default_factory=dict)


_COMPILED_LEFT = 0.85
"""Dispatch left by compiled code without CUDA graphs; GPTs on an H200 gave 0.8 to 1.0."""

_FUSED_PRODUCTS = 0.4
"""Time of attention's products when fused, over that of the batched matmuls, which move the score
matrix: 0.3 on an H200 (2048 tokens, head of 64, bf16, causal); without a causal mask it is more."""

_NOTHING = 1e-4
"""Savings below this share of the step are rounding."""

CLASS_QUESTIONS = (
    WhatIf.INPUT_READY,
    WhatIf.SYNCS_GONE,
    WhatIf.ALLOCATOR_FREE,
    WhatIf.COPIES_ASYNC,
    WhatIf.SEAMS_GONE,
    WhatIf.NO_COMPILE,
    WhatIf.HOST_WORK_GONE,
    WhatIf.COMM_OVERLAPPED,
    WhatIf.DISPATCH_FREE,
)
"""One per class: these are asked in pairs too."""

_FIX_QUESTIONS = (
    WhatIf.INPUT_READY,
    WhatIf.SYNCS_GONE,
    WhatIf.ALLOCATOR_FREE,
    WhatIf.COPIES_ASYNC,
    WhatIf.SEAMS_GONE,
    WhatIf.ONE_LAUNCH,
    WhatIf.COMPILED,
    WhatIf.OPTIMIZER_FUSED,
    WhatIf.TF32,
    WhatIf.BF16,
    WhatIf.FUSED_ATTENTION,
)
"""What a fix of the catalogue can bring about, as opposed to a bound."""
_SAME_THING = frozenset(
    {
        frozenset({WhatIf.ONE_LAUNCH, WhatIf.COMPILED}),
        frozenset({WhatIf.TF32, WhatIf.BF16}),
        frozenset({WhatIf.ONE_LAUNCH, WhatIf.FUSED_ATTENTION}),
        frozenset({WhatIf.COMPILED, WhatIf.FUSED_ATTENTION}),
    }
)
"""Pairs that change the same kernels: asked together they would count twice."""

_FUSED_TRAFFIC = {
    # Share of device time left when the optimizer is one kernel per group, by what it is now.
    # Adam as a for-loop makes some 20 tensor passes, foreach about 16, the fused kernel 7; measured
    # on an H200: for-loop 1.52 -> 0.38 ms, foreach 0.57 -> 0.38 ms for 10 M parameters.
    "for-loop": 0.30,
    "foreach": 0.60,
}


def _dispatch(factor: float, works: Sequence[Work]) -> dict[Work, float]:
    return dict.fromkeys(works, factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known beside the program: the questions depend on it."""

    true_ms: float
    supply: InputSupply | None = None
    """Production cost of the input, when measured."""
    cores: int | None = None
    """Cores that loader workers may use."""
    pinned_gbps: float | None = None
    """Measured pinned host-to-device bandwidth, GB/s."""
    copy_bytes: NDArray[np.int64] | None = None
    """Bytes of each activity that is a copy, -1 elsewhere, (m,)."""
    optimizers: Sequence[OptimizerFacts] = ()
    optimizer_flavour: str = "unknown"
    """What ran: "for-loop", "foreach", "fused", "unknown"."""
    optimizer_parameters: int = 0
    """Parameter tensors, counted in the trace."""
    matmul_tflops: dict[str, float] = field(default_factory=dict)
    """Measured dense matmul rates by dtype."""
    capability: str | None = None
    """Compute capability, like "9.0"."""
    compiled: bool = False
    """torch.compile is in use."""
    gc_ms: float | None = None
    """Collector time per step in the baseline."""


@dataclass(frozen=True, slots=True)
class _Question:
    name: WhatIf
    edit: Edit
    basis: str
    bound: bool = False


def _fused_optimizer(program: Program, work: DeviceWork, known: Circumstances) -> _Question | None:
    flavour = known.optimizer_flavour
    if flavour not in _FUSED_TRAFFIC:
        return None
    own = float(program.work[:, Work.OPTIMIZER].sum()) / max(program.steps, 1)
    if own <= 0:
        return None
    count = sum(o.parameters for o in known.optimizers) or known.optimizer_parameters
    launches = max(1, -(-count // TENSORS_PER_LAUNCH))
    # Collecting parameters, gradients and states in Python stays: about 4.5 us each, profiled.
    left = min(1.0, (100_000.0 + 4_500.0 * count) / own)
    return _Question(
        WhatIf.OPTIMIZER_FUSED,
        Edit(
            work={Work.OPTIMIZER: left},
            duration=few_launches(program, work.optimizer, launches, _FUSED_TRAFFIC[flavour]),
        ),
        f"{flavour} optimizer of {count} parameter tensors replaced by {launches} fused launches: "
        f"{left:.0%} of its host time and {_FUSED_TRAFFIC[flavour]:.0%} of its memory traffic stay",
    )


def _host_questions(program: Program, work: DeviceWork) -> Iterator[_Question]:
    """Causes on the host that labels or calls tell."""
    has = program.work.sum(axis=0) > 0
    kinds = program.kind
    if has[Work.INPUT]:
        yield _Question(
            WhatIf.INPUT_READY,
            Edit(work={Work.INPUT: 0.0}),
            "replay with every batch ready when it is asked for",
        )
    if (kinds == EventKind.SYNC).any():
        yield _Question(
            WhatIf.SYNCS_GONE,
            Edit(work={Work.SYNC: 0.0}, drop_waits=frozenset([EventKind.SYNC])),
            "replay with no synchronising call; the host runs ahead",
        )
    if (kinds == EventKind.ALLOCATOR).any():
        yield _Question(
            WhatIf.ALLOCATOR_FREE,
            Edit(work={Work.ALLOCATOR: 0.0}, drop_waits=frozenset([EventKind.ALLOCATOR])),
            "replay with cudaMalloc, cudaFree and their waits free of charge",
        )
    if has[Work.SEAM]:
        yield _Question(
            WhatIf.SEAMS_GONE,
            seams_gone(program, work),
            "replay without cache lookups, prologues and eager work between compiled regions, kernels on "
            "either side of a seam joined where no product lies between them",
        )
    if has[Work.COMPILE]:
        yield _Question(
            WhatIf.NO_COMPILE,
            # The compiler times its candidates on the device.
            Edit(work={Work.COMPILE: 0.0}, duration=np.where(program.launch_work == Work.COMPILE, 0.0, 1.0)),
            "replay without compilation in the step, nor the kernels that it tries",
        )
    if has[Work.HOST]:
        yield _Question(
            WhatIf.HOST_WORK_GONE,
            Edit(work={Work.HOST: 0.0}),
            "replay without the Python that neither dispatches nor loads",
        )


def _copy_questions(program: Program, known: Circumstances) -> Iterator[_Question]:
    blocking = program.kind == EventKind.COPY
    waits = frozenset([EventKind.COPY])
    if blocking.any():
        gbps = known.pinned_gbps or 25.0
        source = "measured" if known.pinned_gbps else "assumed, PCIe 4 x16"
        factor = np.ones(len(program.event))
        if known.copy_bytes is not None:
            mine = blocking[program.event] & (known.copy_bytes > 0)
            pinned_ns = known.copy_bytes[mine] / gbps
            factor[mine] = np.minimum(1.0, pinned_ns / np.maximum(program.duration[mine], 1.0))
        yield _Question(
            WhatIf.COPIES_ASYNC,
            Edit(work={Work.COPY: 0.0}, drop_waits=waits, duration=factor),
            f"replay with the copies at pinned bandwidth ({gbps:.0f} GB/s, {source}), the host not waiting",
        )
    copies = program.part == PARTS.index(Part.COPIES)
    if copies.any():
        yield _Question(
            WhatIf.COPIES_GONE,
            Edit(work={Work.COPY: 0.0}, drop_waits=waits, duration=np.where(copies, 0.0, 1.0)),
            "replay with every copy overlapped or avoided",
            bound=True,
        )


def _dispatch_questions(
    program: Program, calibration: Calibration, work: DeviceWork, known: Circumstances
) -> Iterator[_Question]:
    """Everything that makes the host launch less, or faster."""
    yield _Question(
        WhatIf.DISPATCH_FREE,
        Edit(work=_dispatch(0.0, _EAGER)),
        "replay with the host launching everything at once",
        bound=True,
    )
    yield _Question(
        WhatIf.ONE_LAUNCH,
        Edit(
            work=_dispatch(_GRAPH_LEFT, (Work.DISPATCH, Work.SEAM)),
            duration=work.chains,
            spacing=np.where(
                np.isin(program.launch_work, (Work.DISPATCH, Work.SEAM)),
                min(1.0, _GRAPH_SPACING_NS / max(program.spacing, 1.0)),
                1.0,
            ),
        ),
        "replay with forward and backward as one graph launch and neighbouring element-wise kernels "
        "fused to the longest of them; the optimizer's launches stay",
    )
    if not known.compiled:
        yield _Question(
            WhatIf.COMPILED,
            Edit(work={Work.DISPATCH: _COMPILED_LEFT}, duration=work.chains),
            "replay with neighbouring element-wise kernels of forward and backward fused to the longest "
            "of them; compiled code without CUDA graphs dispatches little faster",
        )
    fused = _fused_optimizer(program, work, known)
    if fused is not None:
        yield fused
    if program.work[:, Work.ZERO_GRAD].any() or work.zero_grad.any():
        yield _Question(
            WhatIf.ZERO_GRAD_FREE,
            Edit(work={Work.ZERO_GRAD: 0.0}, duration=np.where(work.zero_grad, 0.0, 1.0)),
            "replay without the fills and launches of zero_grad",
        )
    if known.gc_ms:
        traced = float(program.work[:, list(_EAGER)].sum()) / max(program.steps, 1) / 1e6
        dispatch = traced * calibration.dispatch_scale
        if dispatch > known.gc_ms:
            yield _Question(
                WhatIf.GC_FREE,
                Edit(work=_dispatch(1.0 - known.gc_ms / dispatch, _EAGER)),
                "replay without the collector's pauses (gc.callbacks, baseline window)",
            )


def _device_questions(program: Program, work: DeviceWork, known: Circumstances) -> Iterator[_Question]:
    """Kernels that could be faster, hidden, or not there."""

    def only(mask: NDArray[np.bool_], factor: float) -> Edit:
        return Edit(duration=np.where(mask, factor, 1.0))

    collective = program.part == PARTS.index(Part.COMMUNICATION)
    if collective.any():
        yield _Question(
            WhatIf.COMM_OVERLAPPED,
            only(collective, 0.0),
            "replay with all communication hidden behind other work",
            bound=True,
        )
    for question, target in ((WhatIf.TF32, "tf32"), (WhatIf.BF16, "bf16")):
        mask = work.fp32_math
        if target == "bf16":
            mask = mask | work.tf32_math | work.fp32_attention
        ratio = math_speed_up(target, known.matmul_tflops, known.capability)
        if mask.any() and ratio is not None and ratio[0] > 1.0:
            length = np.maximum(program.duration, 1.0)
            factor = np.where(mask, np.minimum(1.0, 1.0 / ratio[0] + FIXED_NS / length), 1.0)
            told = f"replay with fp32 matmul and convolution kernels sped up ({ratio[1]}, and "
            told += f"{FIXED_NS / 1e3:.0f} us each that stay)"
            if target == "bf16" and work.low_traffic.any():
                # Half the bytes, but no kernel is shorter than the shortest of the trace.
                floor = float(np.percentile(program.duration, 1))
                half = np.clip(np.maximum(0.5, floor / length), 0.5, 1.0)
                factor = np.where(work.low_traffic, half, factor)
                told += ", element-wise ones on their results with half the bytes; casts not counted"
            yield _Question(question, Edit(duration=factor), told)
    if work.scores.any():
        yield _Question(
            WhatIf.FUSED_ATTENTION,
            Edit(duration=np.where(work.scores, 0.0, np.where(work.score_products, _FUSED_PRODUCTS, 1.0))),
            "replay without the kernels between the products of attention, and the products no longer "
            f"writing and reading scores ({_FUSED_PRODUCTS:.0%} of their time)",
        )
    if work.recomputed.any():
        yield _Question(
            WhatIf.RECOMPUTE_GONE,
            without_recomputation(program, work.recomputed),
            "replay without the forward work that backward repeats",
        )
    if work.layout.any():
        yield _Question(
            WhatIf.CHANNELS_LAST,
            only(work.layout, 0.0),
            "replay without layout-change kernels",
        )


def ask_gpu(replay: Replay, calibration: Calibration, work: DeviceWork, known: Circumstances) -> Answers:
    """Ask everything that the program can answer.

    Args:
        replay: the program, ready to run.
        calibration: its calibration.
        work: masks over the activities.
        known: what is known beside the program.

    Returns:
        The answers; only questions that change something.
    """
    program, base, true_ms = replay.program, calibration.base, known.true_ms
    reference = replay.run(base).step_ns
    results: dict[WhatIf, WhatIfResult] = {}
    edits: dict[WhatIf, Edit] = {}

    def ms(edit: Edit) -> float:
        return min(true_ms, true_ms * replay.run(base.and_also(edit)).step_ns / reference)

    for question in (
        *_host_questions(program, work),
        *_copy_questions(program, known),
        *_dispatch_questions(program, calibration, work, known),
        *_device_questions(program, work, known),
    ):
        step = ms(question.edit)
        edits[question.name] = question.edit
        if true_ms - step > _NOTHING * true_ms:
            results[question.name] = WhatIfResult(
                question=question.name,
                step_ms=step,
                saves_ms=true_ms - step,
                basis=question.basis,
                bound=question.bound,
            )
    workers = _workers(results.get(WhatIf.INPUT_READY), known)
    if workers is not None:
        results[WhatIf.INPUT_WORKERS] = workers
    return Answers(results=results, edits=edits, after=_pairs(results, edits, ms))


def workers_needed(supply: InputSupply, ready: WhatIfResult) -> int:
    """Return the workers whose supply keeps up with the step that never waits for input."""
    return max(1, int(np.ceil(supply.production_ms / max(ready.step_ms, 1e-6))))


def _workers(ready: WhatIfResult | None, known: Circumstances) -> WhatIfResult | None:
    """Ask for enough workers, from what producing a batch costs."""
    supply, true_ms = known.supply, known.true_ms
    if ready is None or supply is None or supply.production_ms <= 0:
        return None
    needed = workers_needed(supply, ready)
    workers = min(needed, known.cores) if known.cores else needed
    step = max(ready.step_ms, supply.production_ms / workers)
    if workers <= supply.workers or step >= true_ms:
        return None
    return WhatIfResult(
        question=WhatIf.INPUT_WORKERS,
        step_ms=step,
        saves_ms=true_ms - step,
        basis=f"{supply.production_ms:.1f} ms to produce the input of a step, spread over {workers} "
        f"workers, against {ready.step_ms:.1f} ms for the rest of the step",
    )


def _pairs(
    results: dict[WhatIf, WhatIfResult],
    edits: dict[WhatIf, Edit],
    ms: Callable[[Edit], float],
) -> dict[tuple[WhatIf, WhatIf], float]:
    """Ask the costly classes, and the fixes that gain most, two at a time."""
    out: dict[tuple[WhatIf, WhatIf], float] = {}
    for questions, most in ((CLASS_QUESTIONS, 5), (_FIX_QUESTIONS, 4)):
        asked = [q for q in questions if q in results and q in edits]
        ranked = sorted(asked, key=lambda q: -results[q].saves_ms)[:most]
        for first, then in combinations(ranked, 2):
            if frozenset((first, then)) not in _SAME_THING and (first, then) not in out:
                # Removing two causes has no order; readers ask in either.
                out[first, then] = out[then, first] = ms(edits[first].and_also(edits[then]))
    return out
