"""Questions that only a run without a GPU is asked: its operators' work is host work, too.

In: the `Program`, what is known of the run, what single causes take. Out: `Question`s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.codes import WhatIf
from ...model.run import RepeatFacts
from ...model.words import ms, percent
from ..lanes.by_code import without
from ..lanes.costly import without_calls
from ..lanes.labels import Work
from ..lanes.program import Program
from ..lanes.questions import (
    CONVERTED_BASIS,
    DROPPED_BASIS,
    EAGER,
    IDLE_ROWS_BASIS,
    Question,
    amount_gone,
    copied_basis,
    joined_basis,
    masks_basis,
    repeats_basis,
)
from ..lanes.replay import Edit
from ..result import CostlyCall
from ..steps.facts import Facts
from ..steps.loop_price import LoopPrice
from .division import TENSOR_WORK

_FUSED_WORK_LEFT = {
    # Processor time of the fused update over that of the for-loop, 8 tensors of a million elements,
    # one thread, torch 2.13. Counted in tensor passes one expects 7 of 20 for Adam; its temporaries
    # make the loop slower still.
    "Adam": 0.2,
    "AdamW": 0.2,
    "Adagrad": 0.35,
    "SGD": 0.82,
}
_FUSED_DISPATCH_LEFT = 0.25
"""The same for 100 tensors of 4096 elements, where dispatch is nearly all: 0.28 for AdamW, of which
some is work; what stays is collecting parameters, state and gradients."""
_OWN_LEFT = 0.2
"""Of an update that the script writes itself, one tensor after the other: processor time of torch's fused
AdamW over that of AdamW as its paper has it. 0.11 for 300 tensors of 48 elements, 0.20 for 300 of 2304, 0.21
for 100 of 4096, 0.15 for 8 of a million. foreach operators leave 0.45 to 0.77."""
_DOUBLE_OVER_SINGLE = 0.5
"""Share of the work that goes with float32 for float64: both the vector width and the bytes halve."""
_WITHOUT_BATCH = ("data", "h2d", "optimizer", "zero_grad")
"""Phases whose operators work on parameters, or make the batch."""
_OPERATORS = (Work.MATH, Work.MEMORY, Work.DISPATCH)
"""What operators outside the optimizer are spent on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What single causes take of the step, where the trace shows it, ms per step."""

    recomputed: float = 0.0
    """Forward work that backward repeats."""
    unrecorded: float = 0.0
    """Share of the forward that no backward visits, where a part of the model is frozen."""
    tables: float = 0.0
    """Making the gradients of embedding tables."""
    anomalies: float = 0.0
    """Anomaly detection."""
    seams_per_step: float = 0.0
    attention: float = 0.0
    """Attention's operators, which grow with the square of the length."""
    scores: float = 0.0
    """Softmax and mask of attention that is not fused."""
    casts: float = 0.0
    """Copies into another type, and their backward, where autocast is on."""
    loop: LoopPrice | None = None
    """The Python loop that takes most of the step."""
    in_loss: float | None = None
    """Share of the backward that the loss records; None if not known."""
    fills: float = 0.0
    """Fills of new memory, which determinism asks for."""
    first_pass: float = 1.0
    """Share of the backward that goes with the forward that recorded it; no time."""
    dropped: float = 0.0
    """Share of the backward that makes gradients nobody uses; no time."""
    idle_rows: float = 0.0
    """Rows of outputs that have no part in the loss."""
    converted: float = 0.0
    """What converts a tensor that the step has converted before."""
    joined: float = 0.0
    """What joins tensors that the step joins again with more."""
    costly: tuple[tuple[CostlyCall, float], ...] = ()
    """The operators for which there is a cheaper way, each with what it takes more than that."""
    updates: float = 0.0
    """Operators in the update per step; no time."""


def _of_phases(program: Program, *, model: float, outside: float, backward: float = 0.0) -> Edit:
    """Return the step without these shares of the model's work, of its backward and of what is around it."""
    parts = {"forward": model, "evaluation": model, "backward": backward}
    parts |= dict.fromkeys(("data", "optimizer", "zero_grad"), 0.0)
    shares = np.asarray([parts.get(phase, outside) for phase in program.phases])
    return Edit(gone=shares[:, None] * program.work)


def _of_calls(program: Program, calls: RepeatFacts, *, first_pass: float) -> Iterator[Question]:
    """Ask what the calls of modules and functions have in common: what is computed again."""
    if calls.calls or calls.steady:
        share, backward = calls.share + calls.steady_share, calls.graded_share * first_pass
        once = _of_phases(program, model=share, outside=calls.outside_share, backward=backward)
        yield Question(WhatIf.FORWARD_ONCE, once, repeats_basis(share, backward))
    if calls.apart_share > 0:
        dispatch = np.zeros_like(program.work)
        inside = np.asarray([phase in ("forward", "backward") for phase in program.phases])
        dispatch[:, Work.DISPATCH] = np.where(inside, calls.apart_share * program.work[:, Work.DISPATCH], 0.0)
        yield Question(WhatIf.CALLS_JOINED, Edit(gone=dispatch), joined_basis(calls.apart_share))


def _copied_once(program: Program, calls: RepeatFacts | None, amounts: Amounts) -> Iterator[Question]:
    """Ask for the step without copies of what was copied before, if there are any."""
    share, kept = 0.0, Edit()
    if calls is not None and calls.carried_ungraded_share > 0:
        share = calls.carried_ungraded_share
        kept = _of_phases(program, model=calls.carried_share, outside=calls.carried_outside_share)
    if amounts.joined > 0:
        joins = amount_gone(program, amounts.joined, (*_OPERATORS, Work.ALLOCATOR))
        kept = kept.and_also(Edit(gone=joins), apart=True)
    if kept.gone is not None:
        yield Question(
            WhatIf.COPIED_ONCE, kept, copied_basis(share, joined=amounts.joined > 0), bound=share > 0
        )


def _of_number_types(program: Program, facts: Facts, amounts: Amounts) -> Iterator[Question]:
    """Ask for numbers with which this processor computes faster."""
    if any(o.parameter_dtype == "float64" for o in facts.optimizers):
        yield Question(
            WhatIf.SINGLE_PRECISION,
            Edit(work=dict.fromkeys((Work.MATH, Work.MEMORY, Work.UPDATE), 1.0 - _DOUBLE_OVER_SINGLE)),
            "half of the operators' work: half the bytes, and twice the numbers in each vector register",
        )
    if facts.half is not None:
        kind, share, rate = facts.half
        yield Question(
            WhatIf.SINGLE_PRECISION,
            Edit(
                work={Work.MATH: 1.0 + share * (rate - 1.0)},
                gone=amount_gone(program, amounts.casts, (Work.DISPATCH, Work.MEMORY)),
            ),
            f"matrix products in {kind} ({percent(share)} of their FLOPs) at the rate of float32, "
            f"{1 / rate:.2g} times that of {kind} on this machine"
            + (f"; without {ms(amounts.casts)} of casts" if amounts.casts > 0 else ""),
        )
    if facts.denormal is not None and facts.denormal[0] > 0:
        share, times = facts.denormal
        left = 1.0 / (1.0 + share * (times - 1.0))
        yield Question(
            WhatIf.DENORMALS_GONE,
            Edit(work=dict.fromkeys((Work.MATH, Work.UPDATE), left)),
            f"{percent(share)} of the numbers as fast as the others: {times:.0f} times, measured here",
            bound=True,
        )


def cpu_questions(program: Program, facts: Facts, amounts: Amounts, *, compiled: bool) -> Iterator[Question]:
    """Ask what only a CPU trace can answer."""
    work = program.work
    anomalies = amounts.anomalies
    yield Question(
        WhatIf.ANOMALIES_IGNORED,
        Edit(gone=amount_gone(program, anomalies, _OPERATORS)),
        "without the stack traces recorded in forward and the checks for NaN in backward",
    )
    if amounts.loop is not None:
        yield Question(
            WhatIf.LOOP_GONE,
            Edit(gone=amount_gone(program, amounts.loop.spent_ms, (*EAGER, Work.HOST, *TENSOR_WORK))),
            f"without the loop and its backward ({amounts.loop.samples}), but for the operators' work; one "
            "operator for all iterations takes time too",
            bound=True,
        )
    if not compiled:
        gone = _training_dispatch(program)
        # What anomaly detection costs is none of the dispatch that compiling takes away.
        left = max(0.0, 1.0 - anomalies * 1e6 / max(float(gone.sum()), 1.0))
        yield Question(
            WhatIf.COMPILED,
            Edit(gone=left * gone),
            "without the dispatch of forward and backward; fusion would save more, guards less"
            + ("; the cost of anomaly detection not included" if anomalies > 0 else ""),
            bound=True,
        )
    yield from _of_number_types(program, facts, amounts)
    yield from _for_nobody(program, amounts)
    yield from _copied_once(program, facts.repeats, amounts)
    for call, call_ms in amounts.costly:
        gone = amount_gone(program, call_ms, (*_OPERATORS, Work.ALLOCATOR, Work.HOST))
        yield without_calls(call, Edit(gone=gone))
    yield Question(
        WhatIf.FUSED_ATTENTION,
        Edit(gone=amount_gone(program, amounts.scores, (Work.MEMORY,))),
        "without the operators that write the scores again (softmax and mask, forward and backward); the "
        "products stay",
    )
    if facts.idle_masks is not None and amounts.attention > 0:
        share, left = facts.idle_masks
        yield Question(
            WhatIf.MASKS_GONE,
            Edit(gone=amount_gone(program, share * (1.0 - left) * amounts.attention, (Work.MATH,))),
            masks_basis(share, left),
        )
    yield from _fused_optimizer(facts, program, amounts.updates)
    yield Question(
        WhatIf.RECOMPUTE_GONE,
        Edit(gone=amount_gone(program, amounts.recomputed, _OPERATORS)),
        f"{ms(amounts.recomputed)} of forward operators inside backward gone; what saving them "
        "costs is gone too",
    )
    if facts.table_share > 0:
        # The profiled time of making the gradient holds its page faults, which are counted already.
        gone = amount_gone(program, amounts.tables, (Work.MEMORY,))
        for each in (Work.UPDATE, Work.ALLOCATOR):
            gone[:, each] = facts.table_share * work[:, each]
        yield Question(
            WhatIf.SPARSE_ROWS,
            Edit(gone=gone),
            f"the embedding tables' {percent(facts.table_share)} of the update and of the page faults gone, "
            f"and their gradient ({ms(amounts.tables)}), since few rows are used",
        )
    if work[:, Work.SEAM].any():
        yield Question(
            WhatIf.SEAMS_GONE,
            Edit(work={Work.SEAM: 0.0}),
            "without what passes at each break between one graph and the next, except for the work of "
            "operators; fusion across the breaks would save more",
        )
    shares = {"evaluation": float(facts.evaluates), "forward": amounts.unrecorded}
    if any(shares.values()):
        stored = np.asarray([shares.get(phase, 0.0) for phase in program.phases])
        yield Question(
            WhatIf.FORWARD_STORED,
            Edit(gone=stored[:, None] * work),
            "the step without the model that runs without gradients; reading stored outputs takes extra time",
            bound=True,
        )
    if facts.repeats is not None:
        yield from _of_calls(program, facts.repeats, first_pass=amounts.first_pass)
    if facts.padding_share > 0:
        of_the_batch = np.asarray([phase not in _WITHOUT_BATCH for phase in program.phases])
        gone = np.zeros_like(work)
        for each in (Work.MATH, Work.MEMORY, Work.ALLOCATOR):
            gone[:, each] = np.where(of_the_batch, facts.padding_share * work[:, each], 0.0)
        # Where a share p of the length goes, (1 - p)^2 of attention is left.
        more_ms = facts.padding_share * (1.0 - facts.padding_share) * amounts.attention
        gone += amount_gone(program, more_ms, (Work.MATH,))
        yield Question(
            WhatIf.PADDING_GONE,
            Edit(gone=gone),
            f"without {percent(facts.padding_share)} of the operators' work in forward, loss, backward: as "
            "much of the batch is padding; of attention the square of what is left stays; some padding stays",
            bound=True,
        )
    if facts.tree is not None and facts.tree.extras():
        extra = facts.tree.extras()[0]
        yield Question(
            WhatIf.EXTRA_GONE,
            without(program, facts.tree, extra, in_loss=amounts.in_loss),
            f"the step without that line and what it calls ({extra.samples} of {facts.tree.root.samples} "
            "samples of its stack)",
        )
    yield Question(
        WhatIf.GC_FREE,
        Edit(work={Work.COLLECTOR: 0.0}),
        "collector time measured by gc.callbacks in the baseline",
    )


def _for_nobody(program: Program, amounts: Amounts) -> Iterator[Question]:
    if amounts.fills > 0:
        yield Question(
            WhatIf.FILLS_GONE,
            Edit(gone=amount_gone(program, amounts.fills, _OPERATORS)),
            "without the fills of new memory",
        )
    if amounts.idle_rows > 0:
        yield Question(
            WhatIf.IDLE_ROWS_GONE,
            Edit(gone=amount_gone(program, amounts.idle_rows, (*_OPERATORS, Work.ALLOCATOR))),
            IDLE_ROWS_BASIS,
        )
    if amounts.converted > 0:
        yield Question(
            WhatIf.CONVERTED_ONCE,
            Edit(gone=amount_gone(program, amounts.converted, (*_OPERATORS, Work.ALLOCATOR))),
            CONVERTED_BASIS,
        )
    if amounts.dropped > 0:
        share = np.asarray([amounts.dropped * (phase == "backward") for phase in program.phases])
        gone = np.zeros_like(program.work)
        for each in (*_OPERATORS, Work.ALLOCATOR):
            gone[:, each] = share * program.work[:, each]
        yield Question(WhatIf.DROPPED_GONE, Edit(gone=gone), DROPPED_BASIS)


def _training_dispatch(program: Program) -> NDArray[np.float64]:
    """Return the dispatch in forward and backward; all of it where no forward was labelled."""
    total = program.work.sum(axis=1)
    passes = np.asarray([phase in ("forward", "backward") for phase in program.phases]) & (total > 0)
    if not (passes & np.asarray([phase == "forward" for phase in program.phases])).any():
        passes[:] = True
    gone = np.zeros_like(program.work)
    for each in (Work.DISPATCH, Work.ZERO_GRAD):
        gone[:, each] = np.where(passes, program.work[:, each], 0.0)
    return gone


def _fused_optimizer(facts: Facts, program: Program, updates: float) -> Iterator[Question]:
    if facts.updates_one_by_one(updates):
        yield Question(
            WhatIf.OPTIMIZER_FUSED,
            Edit(work=dict.fromkeys((Work.OPTIMIZER, Work.UPDATE), _OWN_LEFT)),
            f"the update's {updates:.0f} operators become few: it falls to {percent(_OWN_LEFT)}, as a fused "
            "optimizer does (measured on another machine)",
            bound=True,
        )
        return
    able = [o for o in facts.optimizers if o.cls in _FUSED_WORK_LEFT]
    able = [o for o in able if o.flavour != "fused" and not o.compiled]
    if not able or len(able) != len(facts.optimizers):
        return
    left = sum(_FUSED_WORK_LEFT[o.cls] for o in able) / len(able)
    # It makes no temporaries, whose pages would be new at each step.
    fresh = np.zeros_like(program.work)
    updating = np.asarray([phase == "optimizer" for phase in program.phases])
    fresh[updating, Work.ALLOCATOR] = program.work[updating, Work.ALLOCATOR]
    yield Question(
        WhatIf.OPTIMIZER_FUSED,
        Edit(work={Work.UPDATE: left, Work.OPTIMIZER: _FUSED_DISPATCH_LEFT}, gone=fresh),
        f"the optimizer's operators become one: its dispatch falls to {percent(_FUSED_DISPATCH_LEFT)}, "
        f"its work falls to {percent(left)} (measured on another machine); its temporaries are gone",
    )
