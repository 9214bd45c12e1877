"""What a run without a GPU adds to the reading of a rank: its program, its questions, names and places.

In: a trace with its steps (or none), what is known of the run. Out: `CpuReader`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...model.codes import Part
from ...model.finding import WATCHED_REMEDY, Doubt, DoubtCode
from ...model.run import GraphLines, JsonValue, Run
from ...model.words import milliseconds
from ...model.work import ComputeFacts
from ..lanes.budget import budget_lines
from ..lanes.by_code import code_tree, extra_nodes, plain_nodes, recorded_in_loss, time_of, without
from ..lanes.costly import costly_rows
from ..lanes.graph_nodes import again, idle, joined, nodes_of_graph, wasted
from ..lanes.labels import PHASES, Work
from ..lanes.questions import EAGER, Question, modes_gone
from ..lanes.reader import Priced
from ..lanes.recompute import first_passes, recomputed_ns, recorders, unrecorded
from ..lanes.replay import Edit, Replay
from ..lanes.seam_prices import price_seams
from ..lanes.seams import Seam, find_seams
from ..result import CompiledWork, CostlyCall, Timeline
from ..steps.baseline import Baseline
from ..steps.facts import Facts
from ..steps.loop_lines import after_share
from ..steps.loop_price import HostTimes, LoopPrice, dearest_loop
from ..steps.traced import Steps
from ..trace.dialect import Kind
from ..trace.kernels import is_message
from ..trace.operators import FILL, NEW_MEMORY, NODE, OpClass, classify
from ..trace.table import NONE, Names, Trace
from ..views.step import step_view
from ..whose.branch import Branch
from ..whose.tree import Tree
from .anomalies import anomaly_ms
from .describe import describe_context, describe_kernels
from .division import TENSOR_WORK, Division, as_measured, calibrate, split, undivided, unprofiled_ms
from .exchanges import exchanges, own_work_of_steps, waits_of
from .program import cpu_program, faults_by_phase
from .questions import Amounts, cpu_questions
from .segments import Segments, read_segments
from .spans import cpu_spans
from .steady import steady_ns

_ATTENTION = re.compile(r"^aten::_scaled_dot_product_\w+$")
_CASTS = re.compile(r"^(aten::_to_copy|ToCopyBackward0)$")
_SCORES = re.compile(r"^aten::(_softmax|_softmax_backward_data|masked_fill_)$")
_SOFTMAX = "aten::_softmax"
_PRODUCTS = re.compile(r"^aten::(bmm|baddbmm)$")
_WAIT_FOR_EACH_OTHER = 4.0
"""Times that sharing out an operator of 20 us takes longer than not doing so: dividing it costs 5 to 20 us
between threads that are all scheduled."""
_HAD_LITTLE = 0.7
"""Processor time over the working part of the step below which others must have had the rest."""
_LOST_SLICES = 2.5
"""Standard errors that time outside the phases must exceed on a busy machine to be host work: a few
lost time slices in a short window are no checkpoint."""
_MISFIT = 0.25
"""Stretch of the trace, as a share of the step, from which its division is doubted."""


def _flatten(trace: Trace, steps: Steps, facts: Facts) -> Segments | None:
    """Return the training thread of the traced steps; None where nothing ran on it."""
    phases = facts.baseline.phases_ms if facts.baseline is not None else ()
    segments = read_segments(
        trace,
        start_ns=steps.start_ns,
        end_ns=steps.end_ns,
        thread=steps.thread,
        labels=tuple(dict.fromkeys((*PHASES, *phases))),
    )
    return segments if len(segments.row) else None


def _divide(trace: Trace | None, segments: Segments | None, facts: Facts, seams: Sequence[Seam]) -> Division:
    """Divide the step, at the phases' true times."""
    run, baseline = facts.run, facts.baseline
    if trace is None or segments is None:
        return undivided(baseline, true_ms=facts.true_ms)
    profiled = split(
        segments,
        dispatch_ns=run.dispatch_ns if run is not None else None,
        steady=steady_ns(trace, segments),
        seams=seams,
        after_share=after_share(run.sites) if run is not None else None,
        evaluates=facts.evaluates,
    )
    if baseline is None:
        return as_measured(profiled, true_ms=facts.true_ms)
    had = baseline.processor_share
    busy = had is not None and had < _HAD_LITTLE
    if not busy or had is None:
        return calibrate(profiled, baseline)
    return calibrate(profiled, baseline, noise_ms=_LOST_SLICES * baseline.outside_error_ms, had=had)


def _processor_share(parts: dict[Part, float], baseline: Baseline | None) -> float | None:
    """Processor time over what is neither input, host work nor waiting for other ranks, 1 at most."""
    if baseline is None or baseline.processor_ms is None:
        return None
    working = baseline.step_ms - parts[Part.INPUT] - parts[Part.HOST] - parts[Part.COMMUNICATION]
    if working < 0.2 * baseline.step_ms:
        return None
    return min(1.0, baseline.processor_ms / working)


def waiting_threads(run: Run | None) -> tuple[float, float] | None:
    """Return what an operator took on all threads and on one, us, where threads wait for one another."""
    if run is None or run.parallel_us is None:
        return None
    together, alone = run.parallel_us
    return run.parallel_us if together > _WAIT_FOR_EACH_OTHER * alone else None


def extra_context(tree: Tree | None, *, host_ms: float) -> dict[str, JsonValue]:
    """Return what the tree says of the other host work: nothing of it makes what the update needs.

    Nothing where most of that work is not extra, as Python in the model's own forward.
    """
    extras = tree.extras() if tree is not None else []
    if not extras or sum(branch.total_ms for branch in extras) < 0.5 * host_ms:
        return {}
    told: dict[str, JsonValue] = {"host.before_update_share": 0.0}
    return told | ({"host.rare": "evaluation"} if extras[0].evaluates else {})


def _doubts(division: Division, priced: Priced, facts: Facts, *, steps: int) -> tuple[Doubt, ...]:
    run, baseline, divided = facts.run, facts.baseline, division.work is not None
    out: list[Doubt] = []
    waiting = waiting_threads(run)
    if waiting is not None:
        out.append(
            Doubt(
                code=DoubtCode.THREADS_WAIT,
                text=f"Threads wait for each other: an operator on {_threads(run)} threads took"
                f" {waiting[0]:.0f} us, and {waiting[1]:.0f} us on one thread",
                remedy="With torch.set_num_threads(1), or on a machine that runs nothing else, operators "
                "may take a fraction of their time.",
            )
        )
    if not divided:
        out.append(
            Doubt(
                code=DoubtCode.NOT_TRACED,
                text="No trace: only the phases of the baseline window are known, so computing and dispatch "
                "cannot be separated",
                remedy=WATCHED_REMEDY
                if run is not None and run.watched
                else "Run again and let the trace window finish.",
            )
        )
    elif steps < 2:
        out.append(
            Doubt(
                code=DoubtCode.ONE_TRACED_STEP,
                text="Only one traced step: its division may not be typical",
                remedy="Use --steps 3 or more.",
            )
        )
    if baseline is None and divided:
        out.append(
            Doubt(
                code=DoubtCode.NO_BASELINE,
                text="No unprofiled window: the profiled step is used instead, so dispatch looks larger "
                "than it is",
                remedy="Capture with `bottleneck diagnose`, or give --true-step-ms.",
            )
        )
    had = _processor_share(priced.parts, baseline)
    if had is not None and had < _HAD_LITTLE:
        out.append(
            Doubt(
                code=DoubtCode.MACHINE_BUSY,
                text=f"The machine was busy: the process had a processor for {100 * had:.0f} % of its "
                "working time",
                remedy="Times are too long, shares approximately right. Run again on a quiet machine.",
            )
        )
    if division.misfit > _MISFIT:
        out.append(
            Doubt(
                code=DoubtCode.STEPS_DIFFER,
                text=f"Traced and timed steps differ: {100 * division.misfit:.0f} % of the time is "
                "in other phases",
                remedy="Steps vary, or the machine was busy. Use more --steps on a quiet machine.",
            )
        )
    return tuple(out)


@dataclass(slots=True, kw_only=True)
class CpuReader:
    """A run without a GPU: one host lane, true phase times from the baseline, the trace dividing them."""

    trace: Trace | None
    steps: Steps | None
    facts: Facts
    segments: Segments | None
    division: Division
    replay: Replay
    amounts: Amounts
    base: Edit = field(default_factory=Edit)
    kind: Literal["cpu"] = "cpu"

    def questions(self) -> Iterator[Question]:
        """What operators and the compiler could do with less."""
        in_regions = self.segments is not None and self.segments.regions_per_step > 0
        compiled = in_regions or self.facts.in_force(regions=in_regions)
        yield from modes_gone(self.replay.program, self.trace, self.steps, self.facts)
        yield from cpu_questions(self.replay.program, self.facts, self.amounts, compiled=compiled)

    def describe(self, timeline: Timeline, priced: Priced) -> Timeline:
        """Fill in operators, host time by place, context and the picture."""
        trace, segments, division, facts = self.trace, self.segments, self.division, self.facts
        steps = segments.steps if segments is not None else 0
        view = None
        if trace is not None and self.steps is not None and segments is not None:
            view = step_view(trace, self.steps, self.replay.program)
        return replace(
            timeline,
            profiled_ms=float(segments.step_ns.mean()) / 1e6 if segments is not None else None,
            steps=steps,
            budget=budget_lines(priced.parts, true_ms=facts.true_ms, details=_details(priced)),
            kernels=describe_kernels(trace, segments, division, true_ms=facts.true_ms),
            spans=cpu_spans(
                trace, segments, division, priced, seams_per_step=self.amounts.seams_per_step, facts=facts
            ),
            dispatch_scale=division.scale,
            doubts=_doubts(division, priced, facts, steps=steps),
            context=timeline.context
            | self._context(priced)
            | extra_context(facts.tree, host_ms=priced.parts[Part.HOST]),
            view=view,
            seams=price_seams(
                self.replay,
                self.base,
                self._without_seams,
                steps=steps,
                true_ms=facts.true_ms,
                together_ms=priced.parts[Part.GRAPH_BREAK],
            ),
            compiled=_compiled(segments),
            compute=_compute(trace, priced.parts, facts.true_ms) if steps else None,
            loop=self.amounts.loop.loop if self.amounts.loop is not None else None,
            costly=tuple(call for call, _ in self.amounts.costly),
            **self._by_code(priced),
            **self._exchanges(),
        )

    def _exchanges(self) -> dict[str, Any]:
        """Return the own work of single steps at true speed, and where collectives stand in it, if any do."""
        if self.trace is None or self.segments is None:
            return {}
        waits = waits_of(self.trace, self.segments, self.division)
        found = exchanges(self.trace, self.segments, self.division, waits)
        if found is None or found.moments is None:
            return {"waits": waits}
        scale = self.facts.true_ms * 1e6 / float(np.diff(found.moments).mean())
        own = own_work_of_steps(self.segments, self.division, found.moments, self.facts.collected_ms)
        return {
            "waits": waits,
            "alone": replace(
                found,
                places=found.places * scale,
                edges=found.edges * scale,
                gradients=found.gradients * scale,
            ),
            "alone_ms": tuple((np.diff(found.edges[:, 0]) / 1e6 * scale).tolist()),
            "own_work_ms": {cause: tuple((each * scale).tolist()) for cause, each in own.items()},
        }

    def _by_code(self, priced: Priced) -> dict[str, Any]:
        """Return the tree of the step and its extra work, priced one by one."""
        tree, true_ms = self.facts.tree, self.facts.true_ms
        if tree is None:
            return {}

        def saves_ms(branch: Branch, in_loss: float | None = None) -> float:
            edit = without(self.replay.program, tree, branch, in_loss=in_loss)
            return true_ms - priced.asker.step_ms(edit)

        def price(branch: Branch) -> tuple[float, bool]:
            return saves_ms(branch, self.amounts.in_loss), branch.role in ("forward", "loss", "communication")

        whole = code_tree(tree, true_ms=true_ms, price=price, loaders=self.facts.loaders)
        extras = extra_nodes(tree, true_ms=true_ms, price=price)
        plain = plain_nodes(tree, true_ms=true_ms, saves_ms=saves_ms)
        loops = {"update_loop": tree.update_loop(), "loop_owner": tree.owner}
        return {"tree": whole, "extras": extras, "plain": plain, **loops}

    def _without_seams(self, group: int) -> Edit:
        gone = np.zeros_like(self.replay.program.work)
        gone[:, Work.SEAM] = self.replay.program.seam_work[:, group]
        return Edit(gone=gone)

    def _context(self, priced: Priced) -> dict[str, JsonValue]:
        facts, segments, baseline = self.facts, self.segments, self.facts.baseline
        out = describe_context(
            self.trace, segments, self.division, priced, self.replay.program, true_ms=facts.true_ms
        )
        if facts.updates_one_by_one(self.amounts.updates):
            out["optimizer.flavour"] = "for-loop"
        if facts.supply is not None:
            per_step = max(facts.supply.batches_per_step, 1e-9)
            out["loader.production_ms"] = facts.supply.production_ms / per_step
        if baseline is None:
            return out
        if baseline.faults is not None:
            out["memory.faults_per_step"] = baseline.faults
        if baseline.system_ms is not None and facts.true_ms > 0:
            out["memory.system_share"] = baseline.system_ms / facts.true_ms
        if baseline.gc_ms is not None:
            out["gc.ms_per_step"] = baseline.gc_ms
        out["step.micro_steps"] = baseline.micro_steps
        if baseline.grown_ms > 0:
            out["host.grown_ms"] = baseline.grown_ms
        if (
            self.trace is not None
            and segments is not None
            and (segments.op_class == OpClass.COMMUNICATION).any()
        ):
            mine = segments.first_of_row & (segments.op_class == OpClass.COMMUNICATION)
            # Not what fills the buckets that they send, and not what one stage sends to the next.
            rows = segments.row[mine]
            named = self.trace.by_name(rows, classify, np.int8) == OpClass.COMMUNICATION
            sent = int((named & ~self.trace.named(is_message, rows)).sum())
            per_step = sent / max(1, segments.steps)
            out["comm.collectives_per_micro_step"] = per_step / max(1.0, baseline.micro_steps)
        return out


def _details(priced: Priced) -> dict[Part, str]:
    collector = float(priced.by_work[Work.COLLECTOR])
    return {
        Part.DISPATCH: f"{milliseconds(float(priced.by_work[Work.OPTIMIZER]))} ms of it in the optimizer",
        Part.ALLOCATOR: "page faults: system time per step",
        Part.HOST: f"{milliseconds(collector)} ms of it automatic GC" if collector > 0 else "",
    }


def cpu_reader(trace: Trace | None, steps: Steps | None, facts: Facts) -> CpuReader:
    """Divide the step of a rank and build its program."""
    segments = None
    if trace is not None and steps is not None and len(steps):
        segments = _flatten(trace, steps, facts)
    seams: list[Seam] = []
    if trace is not None and segments is not None:
        seams = find_seams(trace, segments.holds(trace), facts.compile_facts)
    division = _divide(trace, segments, facts, seams)
    amounts = Amounts()
    if trace is not None and segments is not None:
        amounts = _amounts(trace, segments, division, facts, seams)
    program = cpu_program(
        division,
        segments,
        baseline=facts.baseline,
        seams=seams,
        threads=_threads(facts.run),
        extra_ms=_extra_ms(facts),
        sent_ms={phase: facts.tree.sent_ms(phase) for phase in division.phases} if facts.tree else {},
        faults=faults_by_phase(facts.tree.system) if facts.tree and facts.tree.system else None,
        collected_ms=_collected_ms(facts),
    )
    return CpuReader(
        trace=trace,
        steps=steps,
        facts=facts,
        segments=segments,
        division=division,
        replay=Replay(program),
        amounts=amounts,
    )


def _amounts(
    trace: Trace, segments: Segments, division: Division, facts: Facts, seams: Sequence[Seam]
) -> Amounts:
    """Return what single questions are about, per step without the profiler."""
    ours = segments.holds(trace)

    def named_ms(named: Names) -> float:
        return unprofiled_ms(trace, segments, division, trace.rows(named=named, among=ours))

    # What the trace shows is as long as it was profiled.
    scale = min(1.0, division.scale or 1.0)
    low, high = segments.bounds_ns
    plain_ns = facts.run.plain_dispatch_ns if facts.run is not None else None
    dropped, (idle_rows, converted, joins) = _for_nobody(trace, segments, facts)
    amounts = Amounts(
        recomputed=recomputed_ns(trace, thread=segments.tid, low_ns=low, high_ns=high)
        / segments.steps
        / 1e6
        * scale,
        unrecorded=_unrecorded(trace) if facts.frozen_inside else 0.0,
        tables=named_ms("aten::embedding_dense_backward"),
        attention=named_ms(_ATTENTION),
        scores=named_ms(_SCORES) if _writes_scores(trace, among=ours) else 0.0,
        casts=named_ms(_CASTS) if facts.casts else 0.0,
        anomalies=anomaly_ms(trace, segments, plain_ns=plain_ns) * scale if plain_ns else 0.0,
        seams_per_step=sum(not seam.backward for seam in seams) / max(1, segments.steps),
        in_loss=recorded_in_loss(trace) if facts.tree is not None else None,
        first_pass=_first_pass(trace) if facts.repeats is not None else 1.0,
        fills=unprofiled_ms(trace, segments, division, _fills(trace, among=ours)),
        dropped=dropped,
        idle_rows=idle_rows,
        converted=converted,
        joined=joins,
        costly=_costly(trace, segments, division, facts),
        updates=_updates(segments),
    )
    return replace(amounts, loop=_loop(division, facts, in_loss=amounts.in_loss))


def _first_pass(trace: Trace) -> float:
    """Return the share of the backward that goes with its forward; see `first_passes`."""
    spent = trace.dur_ns[trace.rows(Kind.OP, named=NODE)]
    return float(spent[first_passes(trace)].sum() / spent.sum()) if spent.sum() else 1.0


def _writes_scores(trace: Trace, *, among: NDArray[np.bool_]) -> bool:
    """Return whether attention is written out, with a softmax between its products (BN304)."""
    if trace.knows(re.compile("_scaled_dot_product_(?!attention_math)")):
        return False
    return all(len(trace.rows(named=each, among=among)) for each in (_SOFTMAX, _PRODUCTS))


def _unrecorded(trace: Trace) -> float:
    """Return the share of the forward's operators, by time, that no backward visits."""
    whole, unvisited = unrecorded(trace)
    return float(trace.dur_ns[unvisited].sum()) / max(1.0, float(trace.dur_ns[whole].sum()))


def _fills(trace: Trace, *, among: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the rows that fill what an operator has just allocated."""
    fills = trace.rows(named=FILL, among=among)
    return fills[trace.inside(fills, trace.rows(Kind.OP, named=NEW_MEMORY))]


def _for_nobody(trace: Trace, segments: Segments, facts: Facts) -> tuple[float, tuple[float, float, float]]:
    """Return the share of the backward for nobody; the ms of rows not in the loss, of conversions, of joins.

    The last two are those of what was converted or joined before. Nearly all of these ms, both ways, is
    operators' work, which the profiler slows no more than the step.
    """
    graph = facts.graph
    if graph is None:
        return 0.0, (0.0, 0.0, 0.0)
    starts = segments.start_ns[np.unique(segments.step, return_index=True)[1]]
    rows, places = nodes_of_graph(trace, starts, graph)
    ours = segments.holds(trace)
    rows, places = rows[ours[rows]], places[ours[rows]]
    whole = float(trace.dur_ns[trace.rows(Kind.OP, named=NODE, among=ours)].sum())
    dropped = float((wasted(graph)[places] * trace.dur_ns[rows]).sum()) / max(1.0, whole)
    made = recorders(trace)
    recording = [made.get(number, NONE) for number in trace.sequence[rows].tolist()]
    forward = np.where(np.array(recording) == NONE, 0, trace.dur_ns[recording])
    ms_of_ns = facts.true_ms / max(1.0, float(segments.step_ns.sum()))
    both_ways = trace.dur_ns[rows] + forward

    def ms(of: Callable[[GraphLines], NDArray[np.float64]]) -> float:
        return ms_of_ns * float((of(graph)[places] * both_ways).sum())

    return dropped, (ms(idle), ms(again), ms(joined))


def _costly(
    trace: Trace, segments: Segments, division: Division, facts: Facts
) -> tuple[tuple[CostlyCall, float], ...]:
    """Return the operators for which there is a cheaper way, with what each takes more, ms per step."""
    return tuple(
        (
            calls.call(steps=segments.steps),
            calls.saved * unprofiled_ms(trace, segments, division, calls.gone),
        )
        for calls in costly_rows(trace, among=segments.holds(trace), seen=facts.costly)
    )


def _updates(segments: Segments) -> float:
    """Return how many operators that compute are in the update, per step."""
    chosen = segments.first_of_row & np.isin(segments.op_class, (OpClass.MATH, OpClass.MEMORY))
    chosen &= segments.phase == segments.phases.index("optimizer")
    return float(chosen.sum()) / max(1, segments.steps)


def _loop(division: Division, facts: Facts, *, in_loss: float | None) -> LoopPrice | None:
    """Return the Python loop that takes most of the step."""

    def times(*works: Work) -> HostTimes:
        forward, outside, backward, update = (
            division.sum_ms(*works, phase=phase) for phase in ("forward", "", "backward", "optimizer")
        )
        return HostTimes(forward=forward, outside=outside, backward=backward, update=update)

    # Python may be long enough to count as work of its own.
    dispatch = (*EAGER, Work.HOST)
    found = dearest_loop(
        facts.loops,
        whole=times(*dispatch, *TENSOR_WORK),
        dispatch=times(*dispatch),
        true_ms=facts.true_ms,
    )
    if found is None or facts.tree is None:
        return found
    inside = facts.tree.within(found.loop.site.file, *found.loop.rounds)
    spent = time_of(facts.tree, inside, in_loss=in_loss)
    # Work of the loop's own stays, as in `dearest_loop`.
    spent_ms = sum(min(ms, division.sum_ms(*dispatch, phase=phase)) for phase, ms in spent.items())
    return replace(found, spent_ms=spent_ms, stacks=inside.samples) if inside.samples else found


def _extra_ms(facts: Facts) -> dict[str, float]:
    """Return the extra work by phase, ms per step: hooks in the backward, evaluations, lines of the loop.

    Functions of the user's that call no operator are no dispatch, either.
    """
    tree, extra = facts.tree, {}
    if tree is not None:
        extra = {phase: tree.extra_ms(phase) + tree.plain_ms(phase) for phase in tree.root.by_phase}
    grown = facts.baseline.grown_ms if facts.baseline is not None else 0.0
    return extra | {"": max(grown, extra.get("", 0.0))}


def _collected_ms(facts: Facts) -> float:
    """Return the collector's time per step that no line asks for."""
    spent = facts.baseline.gc_ms if facts.baseline is not None else None
    asked = facts.tree.calls_ms("gc.") if facts.tree is not None else 0.0
    return max(0.0, (spent or 0.0) - asked)


def _compute(trace: Trace | None, parts: dict[Part, float], true_ms: float) -> ComputeFacts:
    """Shares of the step; the type of the math is not in the names of operators."""
    fused = trace is not None and trace.knows(re.compile("_scaled_dot_product_flash_attention_for_cpu"))
    by_hand = trace is not None and trace.knows(re.compile("_scaled_dot_product_attention_math"))
    return ComputeFacts(
        math_share=parts[Part.OTHER_MATH] / true_ms,
        memory_bound_share=parts[Part.MEMORY_BOUND] / true_ms,
        optimizer_share=parts[Part.OPTIMIZER] / true_ms,
        attention="both" if fused and by_hand else "fused" if fused else "unknown",
        attention_backends=("flash",) if fused else (),
    )


def _compiled(segments: Segments | None) -> CompiledWork | None:
    """How much of the model's operator work lies inside compiled regions."""
    if segments is None or segments.regions_per_step <= 0:
        return None
    classes = (OpClass.MATH, OpClass.MEMORY, OpClass.GRAPH)
    work = np.isin(segments.op_class, classes) & (segments.row != NONE)
    optimizer = [i for i, name in enumerate(segments.phases) if name in ("optimizer", "zero_grad", "data")]
    work &= ~np.isin(segments.phase, optimizer)
    inside = work & ((segments.region > 0) | (segments.op_class == OpClass.GRAPH))
    spent = float(segments.dur_ns[work].sum())
    first = segments.first_of_row
    return CompiledWork(
        kernel_share=float((inside & first).sum()) / max(1, int((work & first).sum())),
        time_share=float(segments.dur_ns[inside].sum()) / spent if spent else 0.0,
        regions=segments.regions_per_step,
    )


def _threads(run: Run | None) -> int:
    value = run.settings.get("threads.intra_op") if run is not None else None
    return value if isinstance(value, int) and value > 0 else 1
