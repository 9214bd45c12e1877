"""The GPU reading: lanes, replay, budget and what-ifs of one rank.

In: a trace with its steps, the true step time, the run's facts. Out: `Timeline`, the same result
type as the CPU reading, so that analyzers serve both; None when the window holds no device work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...model.codes import Part, WhatIf
from ...model.diagnosis import BudgetLine
from ...model.doubt import Doubt, DoubtCode
from ..cpu.what_ifs import table_share
from ..lanes.budget import gpu_budget
from ..lanes.calibrate import MAX_REPLAY_ERROR, calibrate
from ..lanes.labels import PART_OF_WORK, Work
from ..lanes.program import PARTS, Program, build_program
from ..lanes.recompute import checkpoint_ms, forward_work
from ..lanes.replay import Replay
from ..result import Timeline
from ..steps.baseline import Baseline, read_baseline
from ..steps.loop_price import loop_of_dispatch
from ..steps.supply import input_supply
from ..trace.dialect import Kind
from ..trace.intervals import within
from ..views.gpu import gpu_view
from .compute import compiled_work, slowest_backend, trace_compute
from .context import gpu_context
from .device_work import kernel_rows, optimizer_seen, read_device_work
from .edits import price_seams
from .questions.ask import Answers, ask_gpu, workers_needed
from .questions.circumstances import Circumstances
from .spans import read_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...model.run import CompileFacts, LoaderFacts, Run
    from ..lanes.calibrate import Calibration
    from ..steps.traced import Steps
    from ..trace.table import Trace

__all__ = ["read_gpu"]

_MOST_MISSING = 0.02
"""Share of launches without a kernel (or kernels without a launch) from which the capture is doubted.
Kernels of the last launches may lie behind the end of the window."""


def _edges(steps: Steps) -> NDArray[np.int64]:
    """Boundaries of consecutive steps: each begin, and the end of the last."""
    return np.concatenate([steps.start_ns, steps.end_ns[-1:]]).astype(np.int64)


def read_gpu(
    trace: Trace,
    steps: Steps,
    *,
    true_ms: float,
    run: Run | None = None,
    kept: NDArray[np.bool_] | None = None,
    loaders: Sequence[LoaderFacts] = (),
    compile_facts: CompileFacts | None = None,
    true_is_profiled: bool = False,
    counted: Collection[str] = (),
) -> Timeline | None:
    """Read one rank of a run on a GPU.

    Args:
        trace: columns.
        steps: whole steps of that trace, at least one.
        true_ms: the step time that the budget must add up to.
        run: run.json, or None for a bare trace.
        kept: which steps of the baseline window stand behind `true_ms`.
        loaders: loader.json.
        compile_facts: compile.json.
        true_is_profiled: no unprofiled step time exists; the replay stays at profiled speed.
        counted: operators whose FLOPs were counted; empty when none were.

    Returns:
        The timeline, or None when the steps launch no device work.
    """
    if len(steps) == 0:
        return None
    baseline = None
    if run is not None and kept is not None:
        baseline = read_baseline(run, kept=kept, true_ms=true_ms)
    program = build_program(
        trace,
        _edges(steps),
        main_tid=steps.thread[1],
        compile_facts=compile_facts,
        evaluates=baseline is not None and baseline.evaluates,
    )
    if program is None or program.steps < 1:
        return None
    replay = Replay(program)
    calibration = calibrate(
        replay,
        None if true_is_profiled else true_ms,
        input_ms=baseline.phases_ms.get("data") if baseline is not None else None,
        host_scale=_host_scale(trace, program, baseline),
    )
    scale = true_ms / calibration.replayed_true_ms if calibration.replayed_true_ms else 1.0
    work = read_device_work(trace, program)
    flavour, tensors = optimizer_seen(trace)
    schedule = replay.run(calibration.base)
    budget = gpu_budget(program, schedule, calibration.base.factors())
    wait_ms = baseline.phases_ms.get("data", 0.0) if baseline is not None else 0.0
    copies = np.where(program.part == PARTS.index(Part.COPIES), trace.bytes[program.activity_row], -1)
    known = Circumstances(
        true_ms=true_ms,
        supply=input_supply(
            loaders, wait_ms=wait_ms, true_ms=true_ms, cores=run.host.cores if run is not None else None
        ),
        cores=run.host.cores if run is not None else None,
        pinned_gbps=run.pinned_gbps if run is not None else None,
        copy_bytes=copies,
        optimizers=run.optimizers if run is not None else (),
        optimizer_flavour=flavour,
        optimizer_parameters=tensors,
        matmul_tflops=run.matmul_tflops if run is not None else {},
        capability=_capability(trace, run),
        compiled=compile_facts is not None and compile_facts.used,
        gc_ms=baseline.gc_ms if baseline is not None else None,
        micro_steps=baseline.micro_steps if baseline is not None else 1.0,
        table_share=table_share(run),
        ungraded=forward_work(trace, program, phase="evaluation")
        if baseline is not None and baseline.evaluates
        else None,
    )
    answers = ask_gpu(replay, calibration, work, known)
    if run is not None and run.settings.get("anomaly_mode") is True:
        free = answers.results.get(WhatIf.DISPATCH_FREE)
        if free is not None:
            question = WhatIf.ANOMALIES_IGNORED
            basis = f"{free.basis}; more than can be gained, as what operators cost without it stays"
            answers.results[question] = msgspec.structs.replace(free, question=question, basis=basis)
    loop = None
    if run is not None and baseline is not None:
        free = answers.results.get(WhatIf.DISPATCH_FREE)
        loop = loop_of_dispatch(run.loops, baseline=baseline, dispatch=free, true_ms=true_ms)
    if loop is not None:
        answers.results[WhatIf.LOOP_GONE] = loop[1]
    parts = {part: ns / 1e6 * scale for part, ns in budget.parts.items()}
    context = gpu_context(
        trace,
        program,
        work,
        parts=parts,
        true_ms=true_ms,
        varying=calibration.varying,
        device_scale=calibration.device_scale * scale,
        flavour=flavour,
    )
    usable = calibration.replay_error <= MAX_REPLAY_ERROR
    forward = forward_work(trace, program)
    if usable and forward.any() and not work.recomputed.any():
        context["work.checkpoint_ms"] = checkpoint_ms(replay, calibration, forward, true_ms=true_ms)
    context["attention.backend"] = slowest_backend(trace) or "none"
    compute = trace_compute(
        trace,
        program,
        work,
        memory_bound_ms=parts[Part.MEMORY_BOUND],
        true_ms=true_ms,
        device_scale=calibration.device_scale * scale,
        counted=counted,
    )
    without_seams = answers.results.get(WhatIf.SEAMS_GONE)
    ready = answers.results.get(WhatIf.INPUT_READY)
    if known.supply is not None and ready is not None:
        context["loader.needed_workers"] = workers_needed(known.supply, ready)
    _credit_waits(parts, replay, calibration, answers, scale=scale)
    idle = {w: parts[PART_OF_WORK[w]] for w in (Work.INPUT, Work.HOST, Work.COMPILE, Work.SEAM)}
    idle[Work.OPTIMIZER] = budget.optimizer_dispatch_ns / 1e6 * scale
    idle[Work.ASIDE] = budget.aside_ns / 1e6 * scale
    idle[Work.HOST] = max(0.0, idle[Work.HOST] - idle[Work.ASIDE])
    idle[Work.DISPATCH] = max(0.0, parts[Part.DISPATCH] - idle[Work.OPTIMIZER])
    return Timeline(
        kind="gpu",
        true_ms=true_ms,
        profiled_ms=calibration.observed_ms,
        steps=program.steps,
        budget=tuple(
            BudgetLine(part=part, ms=ms, share=ms / true_ms if true_ms else 0.0)
            for part, ms in parts.items()
            if ms > 0 or part is Part.UNEXPLAINED
        ),
        what_ifs=answers.results if usable else {},
        kernels=kernel_rows(trace, program, true_ms=true_ms, scale=calibration.device_scale * scale),
        spans=read_spans(
            trace,
            program,
            budget.exposed_by_event,
            run=run,
            scale=scale,
            idle_ms=idle,
            main_tid=steps.thread[1],
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
            replay,
            calibration,
            work,
            true_ms=true_ms,
            together_ms=without_seams.saves_ms if without_seams is not None else 0.0,
        ),
        compiled=compiled_work(trace, program),
        compute=compute,
        after=answers.after if usable else {},
        loop=loop[0] if loop is not None else None,
        view=gpu_view(trace, program, main_tid=steps.thread[1], numbers=steps.numbers),
    )


def _host_scale(trace: Trace, program: Program, baseline: Baseline | None) -> float | None:
    """Return how long the host took in the phases without the profiler, relative to with it.

    The smallest ratio counts: a phase in which the host waits for the device tells nothing.
    """
    if baseline is None:
        return None
    low, high = program.mark_ns[0], program.mark_ns[-1]
    ratios: list[float] = []
    for phase in ("forward", "backward", "optimizer"):
        true_ms = baseline.phases_ms.get(phase, 0.0)
        rows = trace.rows(Kind.ANNOTATION, named=phase)
        rows = rows[within(trace.ts_ns[rows], low, high)]
        traced_ms = float(trace.dur_ns[rows].sum()) / program.steps / 1e6
        if traced_ms > 0 and true_ms > 0.02 * baseline.step_ms:
            ratios.append(true_ms / traced_ms)
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


def _credit_waits(
    parts: dict[Part, float],
    replay: Replay,
    calibration: Calibration,
    answers: Answers,
    *,
    scale: float,
) -> None:
    """Move dispatch idle that a wait brought about to the line of the wait.

    After a synchronisation the host starts from behind, and the device runs dry again and again
    until the host has caught up: gap by gap that looks like dispatching, yet without the wait it
    would not be there. How much is the difference between the budgets with and without the wait.
    """
    for question, part in (
        (WhatIf.SYNCS_GONE, Part.SYNC),
        (WhatIf.COPIES_ASYNC, Part.COPIES),
        (WhatIf.ALLOCATOR_FREE, Part.ALLOCATOR),
    ):
        if question not in answers.results:
            continue
        edit = calibration.base.and_also(answers.edits[question])
        without = gpu_budget(replay.program, replay.run(edit), edit.factors())
        fewer = parts[Part.DISPATCH] - without.parts[Part.DISPATCH] / 1e6 * scale
        unseen = answers.results[question].saves_ms - parts[part]
        moved = max(0.0, min(fewer, unseen, parts[Part.DISPATCH]))
        parts[part] += moved
        parts[Part.DISPATCH] -= moved


def _doubts(program: Program, calibration: Calibration) -> list[Doubt]:
    """Return what is doubtful about the capture itself."""
    doubts: list[Doubt] = []
    launches = max(1, program.launch_calls)
    if program.missing_activities > _MOST_MISSING * launches + 8:
        doubts.append(
            Doubt(
                code=DoubtCode.ACTIVITIES_DROPPED,
                text=f"{program.missing_activities} of {launches} launches have no kernel in the trace: the "
                "profiler dropped activities",
                remedy="Trace fewer steps (--steps 3).",
            )
        )
    if program.orphan_activities > _MOST_MISSING * max(1, len(program.event)) + 1024:
        doubts.append(
            Doubt(
                code=DoubtCode.KERNELS_WITHOUT_LAUNCH,
                text=f"{program.orphan_activities} kernels have no launch call in the trace; they are "
                "left out",
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
                text="Steps differ in size, so the traced steps need not be typical: shares are of the "
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
