"""What a run with a GPU adds to the reading of a rank: its program, its questions, names and places.

In: a trace with its steps, what is known of the run. Out: `GpuReader`; None when the window holds no
device work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part, WhatIf
from ...model.diagnosis import WhatIfResult
from ...model.finding import NEGLIGIBLE_SHARE, Doubt, DoubtCode
from ...model.run import CostlyCalls, JsonValue, Run, SourceSite
from ...model.view import Role
from ..lanes.budget import budget_lines, step_budget
from ..lanes.by_code import code_tree, extra_nodes, host_gone_ms, input_gone_ms, plain_nodes, share_of
from ..lanes.calibrate import MAX_REPLAY_ERROR, TYPICAL_SCALE, Calibration, calibrate
from ..lanes.costly import costly_rows
from ..lanes.graph_nodes import again, joined
from ..lanes.labels import Work
from ..lanes.program import PARTS, Program, build_program
from ..lanes.questions import EAGER, Question, modes_gone
from ..lanes.reader import Priced
from ..lanes.recompute import checkpoint_ms, forward_work, later_work, unrecorded
from ..lanes.replay import Edit, Replay
from ..lanes.seam_prices import price_seams
from ..result import CostlyCall, Timeline
from ..steps.baseline import Baseline
from ..steps.facts import Facts
from ..steps.loop_price import LoopPrice, loop_of_dispatch
from ..steps.traced import Steps
from ..trace.dialect import Kind
from ..trace.intervals import within
from ..trace.table import Trace
from ..views.step import step_view
from .by_line import NO_LINE, Asked, asked_by
from .compute import compiled_work, slowest_backend, trace_compute
from .context import asked_waits, gpu_context
from .detour import detours
from .device_masks import DeviceWork
from .device_work import kernel_rows, optimizer_seen, read_device_work
from .edits import gradients_untouched, plans_gone, seams_gone, searches_gone, share_within
from .line_nodes import LineTeller
from .narrow import narrow_kernels
from .offload import kept_on_device
from .questions import gpu_questions
from .questions.circumstances import Circumstances
from .spans import read_spans

_IDLE = (
    Work.INPUT, Work.HOST, Work.COMPILE, Work.SEAM, Work.OPTIMIZER, Work.ASIDE, Work.OPERATORS,
    Work.BATCH_OPERATORS,
)  # fmt: skip
_FILLED = 0.9
"""Of the step: phases of so much leave the host no time to wait outside them."""
"""Categories that labels identify; each has its own span."""
_MOST_MISSING = 0.02
"""Share of kernels without a launch from which the capture is doubted."""
_PHASES = ("forward", "backward", "optimizer", "zero_grad")


@dataclass(slots=True, kw_only=True)
class GpuReader:
    """A run with a GPU: launching threads and streams."""

    trace: Trace
    steps: Steps
    facts: Facts
    replay: Replay
    calibration: Calibration
    work: DeviceWork
    known: Circumstances
    asked: Asked | None = None
    """What asked for the device's work; None where the graph was not noted."""
    kind: Literal["gpu"] = "gpu"

    @property
    def base(self) -> Edit:
        """Under it the replay runs at true speed."""
        return self.calibration.base

    @property
    def device_scale(self) -> float:
        """Factor from traced to true device time; kernels never take longer than they were traced."""
        replayed, scale = self.calibration.replayed_true_ms, min(1.0, self.calibration.device_scale)
        return scale * (self.facts.true_ms / replayed if replayed else 1.0)

    def questions(self) -> Iterator[Question]:
        """Graph breaks, copies, launching, and the device's own work."""
        yield from modes_gone(self.replay.program, self.trace, self.steps, self.facts)
        yield from gpu_questions(self.replay.program, self.calibration, self.work, self.known)

    def describe(self, timeline: Timeline, priced: Priced) -> Timeline:
        """Fill in kernels, calls, seams, context and the picture."""
        trace, program, calibration = self.trace, self.replay.program, self.calibration
        true_ms, answers = self.facts.true_ms, priced.answers
        usable = calibration.replay_error <= MAX_REPLAY_ERROR
        without_seams = answers.results.get(WhatIf.SEAMS_GONE)
        parts = _as_traced(_credit_waits(priced, self.replay, calibration), calibration.device_scale)
        context = timeline.context | self._context(parts, usable=usable)
        device = self._device(priced) if usable else None
        idle = {w: float(priced.by_work[w]) for w in _IDLE}
        idle[Work.DISPATCH] = max(0.0, parts[Part.DISPATCH] - idle[Work.OPTIMIZER])
        return replace(
            timeline,
            profiled_ms=calibration.observed_ms,
            budget=budget_lines(parts, true_ms=true_ms),
            kernels=kernel_rows(trace, program, true_ms=true_ms, scale=self.device_scale),
            spans=read_spans(
                trace,
                program,
                priced.exposed_ns,
                run=self.facts.run,
                scale=priced.scale,
                idle_ms=idle,
                main_tid=self.steps.thread[1],
            ),
            replay_error=calibration.replay_error,
            dispatch_scale=calibration.dispatch_scale,
            usable_what_ifs=usable,
            doubts=(*calibration.doubts, *_doubts(program, calibration)),
            context=context,
            launches=program.launch_calls,
            device_activities=len(program.event),
            missing_activities=program.missing_activities,
            seams=price_seams(
                self.replay,
                calibration.base,
                lambda group: seams_gone(program, self.work, group),
                steps=program.steps,
                true_ms=true_ms,
                together_ms=without_seams.saves_ms if without_seams is not None else 0.0,
            ),
            compiled=compiled_work(trace, program),
            compute=trace_compute(
                trace,
                program,
                self.work,
                memory_bound_ms=parts[Part.MEMORY_BOUND],
                true_ms=true_ms,
                device_scale=self.device_scale,
                counted=self.facts.counted,
            ),
            after=answers.after if usable else {},
            loop=self.known.loop.loop if self.known.loop is not None else None,
            costly=tuple(call for call, _ in self.known.costly),
            narrow=self.known.narrow.call if self.known.narrow is not None else None,
            full_precision=self._full_precision_line(),
            **self._by_code(priced, usable=usable),
            device_lines=(lines := device.lines() if device is not None else ()),
            device_calls=device.calls(lines) if device is not None else (),
            view=step_view(trace, self.steps, program),
        )

    def _full_precision_line(self) -> SourceSite | None:
        if self.asked is None:
            return None
        work, duration = self.work, self.replay.program.duration
        return self.asked.main_line(work.fp32_math | work.tf32_math | work.fp32_attention, duration)

    def _by_code(self, priced: Priced, *, usable: bool) -> dict[str, Any]:
        """Return the tree of the step, by the host's time, its extra work, and what is answered."""
        tree, true_ms = self.facts.tree, self.facts.true_ms
        what_ifs = dict(priced.answers.results) if usable else {}
        if tree is None:
            return {"what_ifs": what_ifs}
        saves: dict[Role, float] = {}
        if usable:
            edit = gradients_untouched(self.trace, self.replay.program, thread=self.steps.thread[1])
            if (told := priced.answers.edits.get(WhatIf.HOST_WORK_GONE)) is not None:
                # What the host does in the model's forward is no part of any extra work.
                gone = self._share_in()[:, None] * (1.0 - told.factors())
                edit = edit.and_also(replace(told, work={}, gone=gone * self.replay.program.work))
            saves["extra"] = true_ms - priced.asker.step_ms(edit)
            if WhatIf.INPUT_READY in priced.answers.edits and not self.facts.own_input:
                ready = priced.answers.results.get(WhatIf.INPUT_READY)
                saves["input"] = ready.saves_ms if ready is not None else 0.0
        without_ms = self._host_time_gone(priced) if usable else None
        price = share_of(tree, saves, without_ms)
        whole = code_tree(tree, true_ms=true_ms, price=price, loaders=self.facts.loaders)
        extras = extra_nodes(tree, true_ms=true_ms, price=price)
        if without_ms is not None and self.facts.own_input:
            # The replay leaves its launches and copies.
            ready = what_ifs.get(WhatIf.INPUT_READY)
            gone_ms = input_gone_ms(tree.own_input_ms(), without_ms)
            if gone_ms > max(NEGLIGIBLE_SHARE * true_ms, ready.saves_ms if ready is not None else 0.0):
                what_ifs[WhatIf.INPUT_READY] = WhatIfResult(
                    question=WhatIf.INPUT_READY,
                    step_ms=true_ms - gone_ms,
                    saves_ms=gone_ms,
                    basis="the host spends as much less outside of the phases as making the batch takes",
                )
        saves_ms = partial(host_gone_ms, without_ms=without_ms) if without_ms is not None else None
        plain = plain_nodes(tree, true_ms=true_ms, saves_ms=saves_ms)
        loops = {"update_loop": tree.update_loop(), "loop_owner": tree.owner, "plain": plain}
        return {"tree": whole, "extras": extras, "what_ifs": what_ifs, **loops}

    def _host_time_gone(self, priced: Priced) -> Callable[[float, str], float]:
        """Return what tells the saving, ms, of a host that spends so many ms less in a phase, or outside."""
        program = self.replay.program

        @cache
        def host_work(phase: str) -> tuple[NDArray[np.float64], float]:
            work = program.work * self._share_in(phase)[:, None]
            return work, program.per_step_ns(work * self.calibration.base.factors()) / 1e6 * priced.scale

        def saves_ms(host_ms: float, phase: str) -> float:
            work, whole_ms = host_work(phase)
            gone = work * (host_ms / max(whole_ms, host_ms))
            return self.facts.true_ms - priced.asker.step_ms(Edit(gone=gone))

        return saves_ms

    def _share_in(self, phase: str = "") -> NDArray[np.float64]:
        """Return how much of each event's host work is done in a phase, or outside of all, (n,)."""
        trace, program = self.trace, self.replay.program
        phases = (phase,) if phase else _PHASES
        thread = self.steps.thread[1]
        labels = np.concatenate([trace.rows(Kind.ANNOTATION, named=name, tid=thread) for name in phases])
        inside = share_within(trace, program, trace.ts_ns[labels], trace.end_of(labels))
        return inside if phase else 1.0 - inside

    def _device(self, priced: Priced) -> LineTeller | None:
        """Return who tells for which lines the device works; None where no graph was noted."""
        if self.asked is None:
            return None
        return LineTeller(
            asked=self.asked,
            program=self.replay.program,
            asker=priced.asker,
            device_scale=self.device_scale,
            host_scale=self.calibration.dispatch_scale,
        )

    def _context(self, parts: dict[Part, float], *, usable: bool) -> dict[str, JsonValue]:
        program, true_ms = self.replay.program, self.facts.true_ms
        context = gpu_context(
            self.trace,
            program,
            self.work,
            parts=parts,
            true_ms=true_ms,
            varying=self.calibration.varying,
            device_scale=self.device_scale,
            flavour=self.known.optimizer_flavour,
        )
        forward = forward_work(self.trace, program)
        if usable and forward.any() and not self.work.recomputed.any():
            context["work.checkpoint_ms"] = checkpoint_ms(
                self.replay, self.calibration, forward, true_ms=true_ms
            )
        context["attention.backend"] = slowest_backend(self.trace) or "none"
        return context


def gpu_reader(trace: Trace, steps: Steps, facts: Facts) -> GpuReader | None:
    """Build the program of a rank and bring it to true speed; None when the steps launch no device work."""
    if len(steps) == 0:
        return None
    baseline = facts.baseline
    program = build_program(
        trace,
        steps.edges_ns,
        main_tid=steps.thread[1],
        compile_facts=facts.compile_facts,
        evaluates=facts.evaluates,
        own_input=facts.own_input,
    )
    if program is None or program.steps < 1:
        return None
    replay = Replay(program)
    flavour, tensors = optimizer_seen(trace)
    work = read_device_work(trace, program)
    if flavour == "unknown" and facts.updates_one_by_one(float(work.optimizer.sum()) / program.steps):
        flavour = "for-loop"
    asked = asked_by(trace, program, facts.graph, facts.operators) if facts.graph is not None else None
    loop = _loop(program, facts, asked)
    return GpuReader(
        trace=trace,
        steps=steps,
        facts=facts,
        replay=replay,
        calibration=calibrate(
            replay,
            None if facts.true_is_profiled else facts.true_ms,
            input_ms=baseline.phases_ms.get("data") if baseline is not None else None,
            host_scale=_host_scale(trace, program, baseline),
            walls_ms=_walls_ms(facts.run),
        ),
        work=work,
        asked=asked,
        known=Circumstances(
            facts=facts,
            dropped=asked.dropped() if asked is not None else None,
            idle=asked.idle() if asked is not None else None,
            again=asked.without(trace, program, again(asked.graph)) if asked is not None else None,
            joined=asked.without(trace, program, joined(asked.graph)) if asked is not None else None,
            copy_bytes=np.where(
                program.part == PARTS.index(Part.COPIES), trace.bytes[program.activity_row], -1
            ),
            optimizer_flavour=flavour,
            optimizer_parameters=tensors,
            capability=_capability(trace, facts.run),
            bare=_bare(trace, program, facts),
            later=later_work(trace, program) if facts.repeats is not None else None,
            ungraded=_ungraded(trace, program, facts),
            costly=_costly(trace, program, asked, facts.costly),
            detours=detours(trace, program, asked),
            narrow=narrow_kernels(trace, program, work.filled, asked),
            asked_waits=asked_waits(trace, program),
            searches=searches_gone(trace, program),
            plans=plans_gone(trace, program),
            offloads=kept_on_device(trace, program, work.offloaded) if work.offloaded.any() else None,
            blocked_ns=_launch_calls(trace, program)
            if facts.run is not None and facts.run.launches_block
            else None,
            in_loop=asked.events_of(loop.loop) if asked is not None and loop is not None else None,
            lined=asked.chain != NO_LINE if asked is not None and facts.operators is not None else None,
            loop=loop,
        ),
    )


def _loop(program: Program, facts: Facts, asked: Asked | None) -> LoopPrice | None:
    if facts.baseline is None:
        return None
    eager = program.work[:, EAGER].sum(axis=1)
    return loop_of_dispatch(
        facts.loops,
        baseline=facts.baseline,
        true_ms=facts.true_ms,
        backward_share=lambda loop: asked.backward_share(loop, eager) if asked is not None else None,
    )


def _ungraded(trace: Trace, program: Program, facts: Facts) -> NDArray[np.bool_]:
    """Return which activities belong to a model that every step runs without gradients, shape (m,)."""
    out = np.zeros(len(program.event), dtype=bool)
    if facts.evaluates:
        out |= forward_work(trace, program, phase="evaluation")
    if facts.frozen_inside:
        out |= trace.inside(program.row[program.event], unrecorded(trace)[1])
    return out


def _bare(trace: Trace, program: Program, facts: Facts) -> NDArray[np.bool_] | None:
    """Return which activities of the forward, and around it, no backward visits, (m,).

    None where none of them repeats another.
    """
    repeats = facts.repeats
    if repeats is None or max(repeats.ungraded_share, repeats.carried_ungraded_share) <= 0:
        return None
    return trace.inside(program.row[program.event], unrecorded(trace, beside=True)[1])


def _costly(
    trace: Trace, program: Program, asked: Asked | None, seen: Sequence[CostlyCalls]
) -> tuple[tuple[CostlyCall, NDArray[np.bool_]], ...]:
    """Return the operators for which there is a cheaper way, and the events of each, (n,)."""
    found = []
    for calls in costly_rows(trace, seen=seen):
        events = trace.inside(program.row, calls.gone)
        site = asked.main_line(events[program.event], program.duration) if asked is not None else None
        found.append((calls.call(steps=program.steps, site=site), events))
    return tuple(found)


def _launch_calls(trace: Trace, program: Program) -> NDArray[np.float64]:
    """Return how long the call of each event that launches something took, (n,), ns."""
    launches = np.diff(program.first_activity) > 0
    return np.where(launches, trace.dur_ns[program.row], 0).astype(np.float64)


def _walls_ms(run: Run | None) -> Sequence[float]:
    window = run.window("baseline") if run is not None else None
    return window.steps.wall_ms if window is not None else ()


def _host_scale(trace: Trace, program: Program, baseline: Baseline | None) -> float | None:
    """Return how long the host took in the phases without the profiler, relative to with it.

    The smallest ratio counts: a phase in which the host waits for the device tells nothing. Where the phases
    fill the step, the host may wait in each of them, as soon as it is as far ahead as launches can wait: then
    the ratio is at most what it would be.
    """
    if baseline is None:
        return None
    low, high = program.mark_ns[0], program.mark_ns[-1]
    ratios: list[float] = []
    filled_ms = 0.0
    for phase in ("forward", "backward", "optimizer"):
        true_ms = baseline.phases_ms.get(phase, 0.0)
        filled_ms += true_ms
        rows = trace.rows(Kind.ANNOTATION, named=phase)
        rows = rows[within(trace.ts_ns[rows], low, high)]
        traced_ms = float(trace.dur_ns[rows].sum()) / program.steps / 1e6
        if traced_ms > 0 and true_ms > 0.02 * baseline.step_ms:
            ratios.append(true_ms / traced_ms)
    if ratios and filled_ms > _FILLED * baseline.step_ms:
        ratios.append(TYPICAL_SCALE)
    return min(ratios) if ratios else None


def _capability(trace: Trace, run: Run | None) -> str | None:
    if run is not None:
        for device in run.devices:
            if device.compute_capability:
                return device.compute_capability
    for properties in trace.meta.device_properties:
        major, minor = properties.get("computeMajor"), properties.get("computeMinor")
        if major is not None and minor is not None:
            return f"{major}.{minor}"
    return None


def _credit_waits(priced: Priced, replay: Replay, calibration: Calibration) -> dict[Part, float]:
    """Return the lines with the dispatch idle that a wait brought about moved to the line of the wait.

    After a synchronisation the host starts from behind, and the device runs dry again and again
    until the host has caught up: gap by gap that looks like dispatching, yet without the wait it
    would not be there. How much is the difference between the budgets with and without the wait.
    """
    parts, answers = dict(priced.parts), priced.answers
    for question, part in (
        (WhatIf.SYNCS_GONE, Part.SYNC),
        (WhatIf.COPIES_ASYNC, Part.COPIES),
        (WhatIf.ALLOCATOR_FREE, Part.ALLOCATOR),
    ):
        if question not in answers.results:
            continue
        edit = calibration.base.and_also(answers.edits[question])
        without = step_budget(replay.program, replay.run(edit), edit.factors())
        fewer = parts[Part.DISPATCH] - without.parts[Part.DISPATCH] / 1e6 * priced.scale
        unseen = answers.results[question].saves_ms - parts[part]
        moved = max(0.0, min(fewer, unseen, parts[Part.DISPATCH]))
        parts[part] += moved
        parts[Part.DISPATCH] -= moved
    return parts


def _as_traced(parts: dict[Part, float], device_scale: float) -> dict[Part, float]:
    """Return the lines with what kernels would have taken longer in the timed steps as not explained."""
    if device_scale <= 1.0:
        return parts
    kernels = {part: parts[part] / device_scale for part in PARTS[: PARTS.index(Part.COMMUNICATION)]}
    longer = sum(parts[part] - ms for part, ms in kernels.items())
    return parts | kernels | {Part.UNEXPLAINED: parts[Part.UNEXPLAINED] + longer}


def _doubts(program: Program, calibration: Calibration) -> list[Doubt]:
    """Return what is doubtful about the capture itself."""
    doubts: list[Doubt] = []
    if program.orphan_activities > _MOST_MISSING * max(1, len(program.event)) + 1024:
        doubts.append(
            Doubt(
                code=DoubtCode.KERNELS_WITHOUT_LAUNCH,
                text=f"{program.orphan_activities} kernels have no launch call in the trace and are left out",
                remedy="Record CPU and CUDA activities together.",
            )
        )
    if calibration.replay_error > MAX_REPLAY_ERROR:
        doubts.append(
            Doubt(
                code=DoubtCode.NOTHING_PREDICTED,
                text=f"The replay misses the profiled window by {100 * calibration.replay_error:.0f} %; "
                "nothing is predicted from it",
            )
        )
    if calibration.varying:
        doubts.append(
            Doubt(
                code=DoubtCode.STEPS_VARY,
                text="Steps differ in size, so the traced steps may not be typical: shares are those of the "
                "traced steps, times are scaled to the mean step",
                remedy="Trace more steps (--steps 32) to narrow this.",
            )
        )
    if program.steps < 3:
        doubts.append(
            Doubt(
                code=DoubtCode.FEW_TRACED_STEPS,
                text=f"Only {program.steps} whole step{'s' if program.steps > 1 else ''} traced",
                remedy="Let the script run longer, or trace more steps.",
            )
        )
    return doubts
