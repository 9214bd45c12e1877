"""Questions about launching less, or faster: compiled models, CUDA graphs, fused optimizers.

In: a `Program`, its calibration, masks over its activities, the circumstances. Out: `Question`s.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ....model.codes import Part, WhatIf
from ....model.words import ms, percent
from ...lanes.calibrate import Calibration
from ...lanes.labels import Work
from ...lanes.program import NO_WAIT, PARTS, EventKind, Program
from ...lanes.questions import EAGER, Question, joined_basis
from ...lanes.replay import Edit
from ...steps.loop_lines import LoopShares, loop_shares
from ..compiler_reach import host_left_ns
from ..device_masks import DeviceWork
from ..edits import TENSORS_PER_LAUNCH, few_launches
from .circumstances import Circumstances

_MOSTLY = 0.5
"""Share of the allocator's calls that the model must make for a graph's pool to end them."""

_GATHERS = 2
"""Collectives in forward, per call of a model, from which its parts are taken to wait for them. DDP sends its
buffers around in one."""

_GRAPH_SPACING_NS = 420.0
"""Pause between two kernels of one CUDA graph: the median in two compiled GPTs on an H200 (torch 2.11).
Kernels launched one by one and queued lie 1 us apart."""

_COLLECTING_NS = 100_000.0
"""What stays of a step when the optimizer is fused, profiled, whatever the parameters."""
_COLLECTING_EACH_NS = 4_500.0
"""The same per parameter: collecting it, its gradient and its states in Python."""
_FUSED_TRAFFIC = {
    # Share of device time left when the optimizer is one kernel per group, by what it is now.
    # Adam as a for-loop makes some 20 tensor passes, foreach about 16, the fused kernel 7; measured
    # on an H200: for-loop 1.52 -> 0.38 ms, foreach 0.57 -> 0.38 ms for 10 M parameters.
    "for-loop": 0.30,
    "foreach": 0.60,
}


def _fused_optimizer(program: Program, work: DeviceWork, known: Circumstances) -> Question | None:
    flavour = known.optimizer_flavour
    if flavour not in _FUSED_TRAFFIC:
        return None
    own = float(program.work[:, Work.OPTIMIZER].sum()) / max(program.steps, 1)
    if own <= 0:
        return None
    count = sum(o.parameters for o in known.facts.optimizers) or known.optimizer_parameters
    launches = max(1, -(-count // TENSORS_PER_LAUNCH))
    left = min(1.0, (_COLLECTING_NS + _COLLECTING_EACH_NS * count) / own)
    return Question(
        WhatIf.OPTIMIZER_FUSED,
        Edit(
            work={Work.OPTIMIZER: left},
            duration=few_launches(program, work.optimizer, launches, _FUSED_TRAFFIC[flavour]),
        ),
        f"{flavour} optimizer of {count} parameter tensors replaced by {launches} fused launches: "
        f"{percent(left)} of its host time and {percent(_FUSED_TRAFFIC[flavour])} of its memory traffic stay",
        # One of the script's own has no fused twin that computes the same.
        bound=any(o.flavour == "unknown" for o in known.facts.optimizers),
    )


def _gathers(program: Program, work: DeviceWork) -> bool:
    """Return whether forward launches many collectives, as with sharded parameters."""
    forward = work.reach.events & ~work.reach.backward
    collective = program.part == PARTS.index(Part.COMMUNICATION)
    count = int((collective & forward[program.event]).sum()) / max(1, program.steps)
    return count >= _GATHERS * work.reach.regions


def _compiled(
    program: Program, calibration: Calibration, work: DeviceWork, known: Circumstances
) -> Iterator[Question]:
    """The compiled model, and the model as CUDA graphs: the host work left in forward and backward."""
    reach = work.reach
    # Host work that a compiler takes over: nothing else, and nothing outside the model.
    own = np.zeros_like(program.work)
    for kind in (Work.DISPATCH, Work.SEAM):
        own[:, kind] = np.where(reach.events, program.work[:, kind], 0.0)
    steps = max(1, program.steps)
    true_ns = float((own @ calibration.base.factors()).sum()) / steps
    if true_ns <= 0 or not reach.activities.any():
        return
    kernels = float(work.relaunched[reach.activities].sum()) / steps
    fused = f"{kernels:.0f} kernels, runs of element-wise ones fused into the longest"
    compiled = known.facts.in_force(regions=bool(reach.compiled.any()))
    if not compiled or program.work[:, Work.SEAM].any():
        fused = f"one graph without breaks, {fused}"

    # Where the compiler met a wait and made a graph nevertheless, a CUDA graph cannot hold it; a wait in a
    # model that is not compiled yet may as well break the graph.
    waits = reach.events & (program.wait != NO_WAIT) & (program.kind != EventKind.ALLOCATOR)
    doubtful = bool(waits.any()) and not compiled
    at_best = ""
    if _gathers(program, work):
        # Parameters that are gathered module by module: the hooks that do it break the graph, the copies
        # around the collectives stay, and a graph holds neither.
        doubtful, at_best = True, "; at best, since collectives are launched between the model's parts"

    if reach.recurrent:
        # How much of what is around them it captures is known from a look of dynamo's alone.
        doubtful, at_best = True, f"{at_best}; at best, since dynamo makes no graph of recurrent layers"

    def edit(*, graphs: bool) -> tuple[Edit, float]:
        left = host_left_ns(reach, kernels, graphs=graphs) / true_ns
        return Edit(gone=own * (1.0 - left), duration=work.chains), left * true_ns / 1e6

    replayed, left_ms = edit(graphs=True)
    # What a graph allocates once, from a pool of its own, is neither freed nor asked for again.
    allocates = program.kind == EventKind.ALLOCATOR
    pooled = allocates.any() and bool(reach.events[allocates].mean() >= _MOSTLY)
    yield Question(
        WhatIf.ONE_LAUNCH,
        Edit(
            gone=replayed.gone,
            duration=work.chains,
            spacing=np.where(reach.activities, min(1.0, _GRAPH_SPACING_NS / max(program.spacing, 1.0)), 1.0),
            work={Work.ALLOCATOR: 0.0} if pooled else {},
            drop_waits=frozenset([EventKind.ALLOCATOR]) if pooled else frozenset(),
            drop_at=waits if compiled else None,
        ),
        f"replay with the model's forward and backward as graph launches ({fused}), for which the host "
        f"takes {ms(left_ms)} per step; loss, optimizer and everything else outside the model stay"
        + ("; its memory stays in the graphs' pool" if pooled else "")
        + at_best,
        bound=doubtful,
        may_lose=not compiled,
    )
    if not compiled:
        launched, left_ms = edit(graphs=False)
        yield Question(
            WhatIf.COMPILED,
            launched,
            f"replay with the model's forward and backward launched by generated code ({fused}), for which "
            f"the host takes {ms(left_ms)} per step; everything outside the model stays{at_best}",
            bound=doubtful,
            may_lose=True,
        )


def _of_loop(
    program: Program,
    part: NDArray[np.bool_],
    sampled: float,
    asked: NDArray[np.bool_] | None,
    lined: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of each event of a part of the step that is a loop's, (n,), and of other Python's.

    `asked`: the events that the loop's own lines ask for. `lined`: those of which the lines are known; what
    samples saw of the loop beyond its own lies among the others, and in Python that calls no operator. Where
    only the nodes of a graph have lines, functions that its rounds call stand elsewhere: where samples saw
    the loop for longer, it is their share of all events.
    """
    eager, host = program.work[:, EAGER].sum(axis=1), program.work[:, Work.HOST]
    everywhere = np.full(len(program.kind), sampled)
    if asked is None:
        return everywhere, everywhere
    its = np.where(asked, 1.0, 0.0)
    own = eager[part & asked].sum()
    if lined is None:
        found = its if own >= sampled * eager[part].sum() else everywhere
        return found, found
    rest = eager[part & ~lined].sum() + host[part].sum()
    beyond = max(0.0, sampled * (eager + host)[part].sum() - own)
    share = min(1.0, beyond / rest) if rest > 0 else 0.0
    return np.where(lined, its, share), np.full(len(program.kind), share)


def _without_launches(program: Program, work: DeviceWork, share: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what is left of each activity, (m,), when a share of it joins another: its work.

    That is what it takes longer than the shortest kernel, by the share of the device that it fills: what one
    round leaves of the device, the others take. All rounds take as long as one at least.
    """
    launch = np.minimum(1.0, program.shortest_ns / np.maximum(program.duration, 1.0))
    return 1.0 - share * (1.0 - (1.0 - launch) * np.maximum(work.filled, 1.0 / work.alike))


def _without_loop(
    program: Program,
    work: DeviceWork,
    shares: LoopShares,
    asked: NDArray[np.bool_] | None,
    lined: NDArray[np.bool_] | None = None,
) -> Edit:
    """Take a loop's share out of the dispatch of model or update, or out of all that is launched beside them.

    `asked` and `lined` as in `_of_loop`. A loop in the loss causes its own waits, so they go with it; those
    of one in the model go where their lines are known. What kernels take longer than the shortest one is
    their work, which one operator for all rounds has to do, too: it stays, as far as it fills the device.
    What is sent between ranks stays.
    """
    model = work.reach.model
    others = [Work.OPTIMIZER, Work.ZERO_GRAD, Work.INPUT, Work.ASIDE]
    aside = ~model & (program.work[:, others] == 0.0).all(axis=1)
    inner, inner_host = (
        np.where(model, share, 0.0) for share in _of_loop(program, model, shares.forward, asked, lined)
    )
    beside, beside_host = (
        np.where(aside, share, 0.0) for share in _of_loop(program, aside, shares.between, asked, lined)
    )
    gone = np.zeros_like(program.work)
    for each in EAGER:
        gone[:, each] = (inner + beside) * program.work[:, each]
    gone[:, Work.HOST] = (inner_host + beside_host) * program.work[:, Work.HOST]
    own = np.zeros_like(model) if asked is None or lined is None else asked & lined & (model | aside)
    gone[:, Work.SYNC] = np.where(own, 1.0, beside) * program.work[:, Work.SYNC]
    # One operator for all matrices computes as much: what an optimizer's kernels do stays.
    gone[:, Work.OPTIMIZER] = np.maximum(
        gone[:, Work.OPTIMIZER], shares.update * program.work[:, Work.OPTIMIZER]
    )
    launched = aside[program.event] & (program.launch_work != Work.OPTIMIZER)
    guessed = aside & (shares.between >= _MOSTLY) & (True if lined is None else ~lined)
    waits = (program.kind == EventKind.SYNC) & (own | guessed)
    share = inner[program.event] + np.where(launched, beside[program.event], 0.0)
    share[program.part == PARTS.index(Part.COMMUNICATION)] = 0.0
    return Edit(
        gone=gone,
        duration=_without_launches(program, work, share),
        spacing=1.0 - share,
        drop_at=waits if waits.any() else None,
    )


def _calls_joined(program: Program, work: DeviceWork, share: float) -> Edit:
    """Take what a model's calls dispatch, but for the first; its kernels have the work of all at once."""
    inner = np.where(work.reach.model, share, 0.0)
    gone = np.zeros_like(program.work)
    for each in EAGER:
        gone[:, each] = inner * program.work[:, each]
    inside = inner[program.event]
    return Edit(gone=gone, duration=_without_launches(program, work, inside), spacing=1.0 - inside)


def dispatch_questions(
    program: Program, calibration: Calibration, work: DeviceWork, known: Circumstances
) -> Iterator[Question]:
    """Changes with which the host launches less, or faster."""
    yield from _compiled(program, calibration, work, known)
    facts = known.facts
    if facts.run is not None and facts.run.settings.get("anomaly_mode") is True:
        yield Question(
            WhatIf.ANOMALIES_IGNORED,
            Edit(work=dict.fromkeys(EAGER, 0.0)),
            "replay without operators' fixed cost and the Python between them; an upper bound, since the "
            "operators' normal cost stays",
            bound=True,
        )
    if known.blocked_ns is not None and known.blocked_ns.any():
        taken_ns = program.work @ calibration.base.factors()
        waits = np.minimum(known.blocked_ns / np.maximum(taken_ns, 1.0), 1.0)
        yield Question(
            WhatIf.LAUNCHES_ASYNC,
            Edit(gone=program.work * waits[:, None]),
            "replay without the calls that launch, each of which waits for its kernel; what a launch takes "
            "that does not wait cannot be told from them",
            bound=True,
        )
    if known.loop is not None and (shares := loop_shares(known.loop.loop)) is not None:
        yield Question(
            WhatIf.LOOP_GONE,
            _without_loop(program, work, shares, known.in_loop, known.lined),
            f"replay without the loop's share of what its phase dispatches and waits for "
            f"({known.loop.samples}); one operator for all iterations takes time too",
            bound=True,
        )
    apart = facts.repeats.apart_share if facts.repeats is not None else 0.0
    if apart > 0:
        yield Question(WhatIf.CALLS_JOINED, _calls_joined(program, work, apart), joined_basis(apart))
    fused = _fused_optimizer(program, work, known)
    if fused is not None:
        yield fused
    if program.work[:, Work.ZERO_GRAD].any() or work.zero_grad.any():
        yield Question(
            WhatIf.ZERO_GRAD_FREE,
            Edit(work={Work.ZERO_GRAD: 0.0}, duration=np.where(work.zero_grad, 0.0, 1.0)),
            "replay without the fills and launches of zero_grad",
        )
    collector_ms = facts.baseline.gc_ms if facts.baseline is not None else None
    if collector_ms:
        traced = float(program.work[:, list(EAGER)].sum()) / max(program.steps, 1) / 1e6
        dispatch = traced * calibration.dispatch_scale
        if dispatch > collector_ms:
            yield Question(
                WhatIf.GC_FREE,
                Edit(work=dict.fromkeys(EAGER, 1.0 - collector_ms / dispatch)),
                "replay without the collector's pauses (gc.callbacks, baseline window)",
            )
