"""Questions for every program: the step without a cause that labels or calls identify.

In: a `Program`, what is known of the run. Out: `Question`s, each an edit and what is said of its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part, QuestionKey, WhatIf
from ...model.run import SourceSite
from ...model.words import ms, percent
from ..steps.facts import Facts
from ..steps.traced import Steps
from ..trace.dialect import Kind
from ..trace.operators import NODE
from ..trace.table import NONE, Trace
from .labels import Work
from .program import PARTS, Program
from .replay import Edit
from .waits import EventKind

EAGER = (Work.DISPATCH, Work.OPTIMIZER, Work.ZERO_GRAD)
"""What the host launches operator by operator."""
DISTRIBUTIONS = "torch.distributions."


@dataclass(frozen=True, slots=True)
class Question:
    """One change to the program, and what is said of its answer."""

    name: WhatIf
    edit: Edit
    basis: str
    bound: bool = False
    may_lose: bool = False
    """The answer is kept where the change would cost time: whoever suggests it should know."""
    about: str = ""
    """The call that it is about, where it is asked for each of several."""
    site: SourceSite | None = None
    """The line that it is about."""

    @property
    def key(self) -> QuestionKey:
        """What its answer is found by."""
        return (self.name, self.about) if self.about else self.name


def amount_gone(program: Program, ms: float, works: Sequence[Work]) -> NDArray[np.float64]:
    """Return host work to be left out, (n, len(Work)): `ms` per step of these categories, in proportion."""
    room = np.zeros_like(program.work)
    room[:, list(works)] = program.work[:, list(works)]
    total = program.per_step_ns(room)
    return room * min(1.0, ms * 1e6 / total) if total > 0 else room


IDLE_ROWS_BASIS = (
    "replay with matrix products and what follows them, both ways, shorter by the rows that have no part in "
    "the loss; picking the others takes time, too"
)
CONVERTED_BASIS = "replay without what converts a tensor that the step has converted before, both ways"
DROPPED_BASIS = "replay with the backward shorter by what makes gradients that nobody uses"


def masks_basis(share: float, left: float) -> str:
    """Say what the price of masks that mask nothing is made of; see `Facts.idle_masks`."""
    return (
        f"{percent(share)} of the calls of fused attention take {percent(left)} of their time without the "
        "mask, timed in these shapes after the capture; making the mask is not counted"
    )


def repeats_basis(share: float, of_backward: float) -> str:
    """Say what the price of calls that repeat others is made of."""
    basis = f"without the {percent(share)} of the time in modules that such calls took"
    return basis + (f", and {percent(of_backward)} of the backward" if of_backward > 0 else "")


def copied_basis(share: float, *, joined: bool) -> str:
    """Say what the price of copies of what was copied before is made of.

    `joined`: with gradients, too, in the graph of a step. `share` is of those without.
    """
    parts = ["the joins of what is joined again, both ways"] if joined else []
    parts += [f"{percent(share)} of what runs without gradients"] if share > 0 else []
    left = "what is new has to be written" if share > 0 else "the last one stays"
    return f"without {' and '.join(parts)}; {left}"


def joined_basis(share: float) -> str:
    """Say what the price of a model that is called several times is made of."""
    return (
        f"without {percent(share)} of what forward and backward dispatch, which are the model's calls but "
        "the first; the work of their operators stays"
    )


def modes_gone(
    program: Program, trace: Trace | None, steps: Steps | None, facts: Facts
) -> Iterator[Question]:
    """Ask for calls that go through no mode of functions, where they do.

    Each operator of the training thread that no other one calls, nor a node of the backward, is a call from
    Python.
    """
    each_ns = facts.run.mode_ns if facts.run is not None else None
    if not each_ns or trace is None or steps is None:
        return
    inside = steps.which(trace.ts_ns) != NONE
    calls = trace.outermost(trace.rows(Kind.OP, tid=steps.thread[1], among=inside))
    count = len(calls[~trace.named(NODE, calls)]) / len(steps)
    yield Question(
        WhatIf.MODES_GONE,
        Edit(gone=amount_gone(program, count * each_ns / 1e6, (*EAGER, Work.HOST, Work.INPUT))),
        f"without the {each_ns / 1e3:.1f} us that modes add to a call, as measured on this machine, in "
        f"{count:.0f} calls per step; looks at shapes and types go through them, too",
    )


def without_fetching(program: Program) -> Edit:
    """Return the edit in which no batch is waited for; what is still done to it afterwards stays."""
    gone = np.zeros_like(program.work)
    fetches = [not program.phases or program.phases[k] == "data" for k in range(len(program.kind))]
    gone[fetches, Work.INPUT] = program.work[fetches, Work.INPUT]
    return Edit(gone=gone)


def collectives_left(program: Program, share: float) -> Edit | None:
    """Return the edit in which collectives take this share of their time; None without collectives."""
    collective = program.part == PARTS.index(Part.COMMUNICATION)
    if not collective.any() and not program.work[:, Work.COMMUNICATION].any():
        return None
    return Edit(work={Work.COMMUNICATION: share}, duration=np.where(collective, share, 1.0))


def _sending(program: Program, *, buffers: bool, left: float = 0.0, own_ns: float = 0.0) -> Edit | None:
    """Return the edit in which DDP's buffers, or all but them, are sent in this share of the time.

    `own_ns`: for how long each step waits there for what the script's own lines send, which stays.

    Returns:
        None where no time goes into that.
    """
    collective = program.part == PARTS.index(Part.COMMUNICATION)
    sent = collective & (program.broadcast == buffers)
    # Without a device the host stands waiting for it: for the buffers in the forward, else in the backward.
    phase = "forward" if buffers else "backward"
    waits = np.asarray([each == phase for each in program.phases] or [not buffers] * len(program.kind))
    gone = np.zeros_like(program.work)
    waiting = program.work[:, Work.COMMUNICATION] * waits
    own = min(1.0, own_ns * max(program.steps, 1) / max(float(waiting.sum()), 1.0))
    gone[:, Work.COMMUNICATION] = (1.0 - left) * (1.0 - own) * waiting
    if not sent.any() and not gone.any():
        return None
    return Edit(gone=gone, duration=np.where(sent, left, 1.0))


def reads_again(program: Program) -> NDArray[np.bool_]:
    """Return the events (n,) of reads behind another one, with nothing launched in between.

    One copy could have brought all of their values: what picks each of them goes, too.
    """
    waits = program.kind == EventKind.SYNC
    copies = np.zeros(len(waits), dtype=bool)
    copies[program.event[program.part == PARTS.index(Part.COPIES)]] = True
    is_read = copies & (waits | ((program.kind == EventKind.LAUNCH) & np.append(waits[1:], False)))
    in_row = is_read | waits
    reads = np.cumsum(is_read)
    before = np.maximum.accumulate(np.where(in_row, 0, reads))
    return np.asarray(in_row & (reads - before > 1))


def without_waits(program: Program) -> tuple[Edit, str]:
    """Return the edit in which the host waits for no value, and what it stands for."""
    edit = Edit(work={Work.SYNC: 0.0}, drop_waits=frozenset([EventKind.SYNC]))
    basis, again = "replay without synchronising calls, so the host runs ahead", reads_again(program)
    if again.any():
        gone = np.zeros_like(program.work)
        gone[again, Work.DISPATCH] = program.work[again, Work.DISPATCH]
        edit = replace(edit, duration=np.where(again[program.event], 0.0, 1.0), gone=gone)
        count = float((again & (program.kind == EventKind.SYNC)).sum()) / max(1, program.steps)
        basis += f"; {count:.0f} of them read one value more where nothing is launched in between"
    return edit, basis


def shared_questions(program: Program, facts: Facts) -> Iterator[Question]:
    """Ask for the step without each host-side cause, and without communication between ranks."""
    has = program.work.sum(axis=0) > 0
    kinds = program.kind
    if has[[Work.INPUT, Work.BATCH_OPERATORS]].any():
        yield Question(
            WhatIf.INPUT_READY,
            Edit(work={Work.INPUT: 0.0, Work.BATCH_OPERATORS: 0.0}),
            "replay with every batch ready when it is needed",
        )
    if (kinds == EventKind.SYNC).any():
        yield Question(WhatIf.SYNCS_GONE, *without_waits(program))
    if has[Work.ALLOCATOR] or (kinds == EventKind.ALLOCATOR).any():
        yield Question(
            WhatIf.ALLOCATOR_FREE,
            Edit(work={Work.ALLOCATOR: 0.0}, drop_waits=frozenset([EventKind.ALLOCATOR])),
            "replay with cudaMalloc, cudaFree and their waits taking no time"
            if program.lanes
            else "replay without the baseline's system time per step, as far as page faults explain it; "
            "warmer caches would save more",
        )
    if has[Work.COMPILE]:
        yield Question(
            WhatIf.NO_COMPILE,
            # The compiler times its candidates on the device.
            Edit(work={Work.COMPILE: 0.0}, duration=np.where(program.launch_work == Work.COMPILE, 0.0, 1.0)),
            "replay without compilation in the step and without the kernels that it tries",
        )
    if has[[Work.HOST, Work.ASIDE, Work.OPERATORS]].any():
        # What an evaluation launches goes with it where the stacks show that no training needs it.
        extra = facts.tree is not None and facts.tree.evaluation_is_extra
        aside = np.isin(program.launch_work, (Work.ASIDE, Work.HOST) if extra else (Work.ASIDE,))
        yield Question(
            WhatIf.HOST_WORK_GONE,
            Edit(
                work=dict.fromkeys((Work.HOST, Work.ASIDE, Work.OPERATORS), 0.0),
                duration=np.where(aside, 0.0, 1.0),
            ),
            "replay without the Python that neither dispatches nor loads, without operators that compute on "
            "the host, and without what is launched after the update",
        )
    if has[Work.HOST]:
        yield Question(
            WhatIf.PYTHON_GONE,
            Edit(work={Work.HOST: 0.0}),
            "replay without the Python that neither dispatches nor loads; operators that compute on the host,"
            " and what is launched after the update, stay",
            bound=True,
        )
    checked_ms = facts.tree.calls_ms(DISTRIBUTIONS) if facts.tree is not None else 0.0
    if checked_ms > 0 and facts.run is not None and facts.run.settings.get("distributions.checked") is True:
        host_ms = float(program.work.sum()) / max(1, program.steps) / 1e6
        share = min(1.0, checked_ms / facts.true_ms)
        yield Question(
            WhatIf.DISTRIBUTIONS_UNCHECKED,
            Edit(gone=amount_gone(program, share * host_ms, (*EAGER, Work.HOST))),
            f"without the {ms(checked_ms)} in calls of torch.distributions; what they compute stays",
            bound=True,
        )
    yield Question(
        WhatIf.DISPATCH_FREE,
        Edit(work=dict.fromkeys(EAGER, 0.0)),
        "replay without operators' fixed cost and the Python between them",
        bound=True,
    )
    overlapped = collectives_left(program, 0.0)
    if overlapped is not None:
        yield Question(
            WhatIf.COMM_OVERLAPPED,
            overlapped,
            "replay with all communication overlapped with other work",
            bound=True,
        )
        yield from _ddp_questions(program, facts)


def _ddp_questions(program: Program, facts: Facts) -> Iterator[Question]:
    settings = facts.run.settings if facts.run is not None else {}
    sends_buffers = settings.get("distributed.sends_buffers") is True
    buffers = _sending(program, buffers=True) if sends_buffers else None
    own_ns = facts.tree.sent_ms("backward") * 1e6 if facts.tree is not None else 0.0
    if buffers is not None:
        yield Question(
            WhatIf.BUFFERS_KEPT, buffers, "replay without sending the model's buffers before each forward"
        )

    def gradients_left(share: float) -> Edit | None:
        apart = _sending(program, buffers=False, left=share, own_ns=own_ns)
        labelled = "backward" in program.phases and program.work[program.phases.index("backward")].any()
        return apart if buffers is not None or labelled else collectives_left(program, share)

    if settings.get("distributed.module", "ddp") == "ddp":
        for question, left, says in (
            (WhatIf.GRADIENTS_OVERLAPPED, 0.0, "all gradients sent while other work is done"),
            (WhatIf.GRADIENTS_HALVED, 0.5, "gradients sent in half the time"),
        ):
            if (edit := gradients_left(left)) is not None:
                yield Question(question, edit, f"replay with {says}", bound=True)
    once = gradients_left(1.0 / max(facts.micro_steps, 1.0))
    if facts.micro_steps > 1 and once is not None:
        yield Question(
            WhatIf.COMM_ONCE,
            once,
            f"replay with the collectives of one of {facts.micro_steps:.0f} backward passes",
        )


def not_in_force_questions(questions: Sequence[Question], facts: Facts) -> Iterator[Question]:
    """Ask for the step in which what was to be compiled runs so: not given up at a limit, nor broken up."""
    asked = {question.name for question in questions}
    fails = {WhatIf.NO_COMPILE: facts.given_up, WhatIf.SEAMS_GONE: facts.compiled and facts.broken}
    for question in questions:
        if question.name is WhatIf.COMPILED:
            for name, does in fails.items():
                if does and name not in asked:
                    # What else the script runs may be compiled by nobody.
                    yield replace(question, name=name, bound=question.bound or name is WhatIf.SEAMS_GONE)
