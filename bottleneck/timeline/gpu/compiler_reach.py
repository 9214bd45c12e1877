"""What torch.compile of the model would reach, and what it leaves to the host.

In: a `Trace`, a `Program`. Out: `Reach`: the events and activities of forward and backward that a
compiled model would run itself, and how many regions and gradients the host would still handle one by one;
`host_left_ns`: the host time that this takes.

A compiler sees the model, not the loop around it. Losses, gradient clipping, logging, the optimizer and
whatever else is launched between them stay as they are, and so does autograd's handing of each gradient to
its parameter. The forward pass is told by the label `forward` (the root module's call); a trace without it is
told by autograd: operators on the training thread that recorded a node of backward. Nodes of backward belong
to the model where their sequence number is that of an operator in its forward pass. A loss that is a module
of its own is no part of it. nn.LSTM, nn.GRU and
nn.RNN are left out: dynamo makes no graph of them, and ends the one before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..lanes.labels import Work
from ..lanes.program import Program
from ..trace.dialect import Kind
from ..trace.intervals import before, latest, which
from ..trace.table import Ranges, Trace

ENTRY_NS = 185_000.0
"""Per region and step: cache lookup, guards, wrappers, the node of backward (280 us under the profiler)."""
PER_PARAMETER_NS = 1_000.0
"""Per parameter: passed to the region, saved for backward (1.5 us under the profiler)."""
PER_GRADIENT_NS = 3_800.0
"""Per gradient that autograd hands to its parameter (6.3 us under the profiler)."""
PER_KERNEL_NS = 10_500.0
"""Per kernel that the generated Python wrapper launches (15 to 17 us under the profiler)."""
GRAPH_NS = 130_000.0
"""Per region whose two CUDA graphs are replayed: inputs checked and copied, the tree of graphs walked."""
PER_STATIC_TENSOR_NS = 1_600.0
"""Per parameter when CUDA graphs replay: its address checked, its gradient made a tensor again."""
PER_NODE_NS = 630.0
"""Per kernel inside a CUDA graph: the share of cudaGraphLaunch."""
# All without the profiler, on the host of an H200 (torch 2.11), read off the traces of compiled runs alone:
# examples/graph_breaks.py and launch_bound.py with --fixed, and would_compile.py mlp and recurrent (6 to 146
# parameters, 151 to 462 launches in two bodies). No step time was looked at to choose them.
REFERENCE_NS = 1_400.0
"""What autograd's node that keeps a gradient took there, under the profiler: a yardstick for the host.
It does the same few things in every program, eager or compiled, and holds neither Python nor hooks."""
_SAME_HOST = 0.25
"""It takes 1.2 to 1.6 us in eager and compiled runs of one host on one day; what lies within counts as
the same host. In recordings made at other times it took up to 2.6 us, and eager steps took longer with it."""

_NODE = re.compile(r"^autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)")
_KEEPS = re.compile(r"^torch::autograd::AccumulateGrad$")
_COMPILED = re.compile(r"^Torch-Compiled Region|evaluate_function: CompiledFunctionBackward$")
_RECURRENT = re.compile(r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$")
_FEWEST = 5
"""Fewest gradient-accumulating nodes from which the host's speed is measured."""
_ACCUMULATE = re.compile(r"^autograd::engine::evaluate_function: torch::autograd::AccumulateGrad$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a compiled model runs by itself."""

    events: NDArray[np.bool_]
    """Host events of its forward and backward, (n,)."""
    model: NDArray[np.bool_]
    """The same with what no compiler takes over, and of all modules that the script calls, (n,)."""
    activities: NDArray[np.bool_]
    """Device work that they launch, (m,)."""
    backward: NDArray[np.bool_]
    """Those of the events that backward launches, (n,)."""
    regions: float
    """Forward passes of models per step."""
    parameters: float
    """Gradients that autograd hands to parameters, per step."""
    handed_within: float
    """Those of them that are handed over while `events` are launched: their cost is part of that time."""
    compiled: NDArray[np.bool_]
    """Events that compiled code calls already, (n,)."""
    recurrent: float = 0.0
    """Calls of recurrent layers per step, which stay as they are."""
    slowness: float = 1.0
    """Time that this host takes for the same work, relative to the one that the constants are of."""


def _recorded_forward(trace: Trace, nodes: NDArray[np.intp], marks: NDArray[np.int64]) -> Ranges:
    """Return where operators recorded nodes of backward: from the first to the last before it runs."""
    numbered = _numbered(trace)
    numbered = numbered[np.isin(trace.sequence[numbered], trace.sequence[nodes])]
    forward = numbered[~trace.inside(numbered, nodes)]
    # A backward pass, or the end of a step, ends a forward pass.
    walls = np.unique(np.concatenate([trace.ts_ns[nodes], marks]))
    group = before(walls, trace.ts_ns[forward])
    tid = trace.tid[forward]
    order = np.lexsort((group, tid))
    first = np.flatnonzero((np.diff(tid[order], prepend=-1) != 0) | (np.diff(group[order], prepend=-1) != 0))
    ends = trace.end_of(forward[order])
    return Ranges(
        trace.ts_ns[forward[order[first]]],
        np.maximum.reduceat(ends, first) if len(first) else ends,
        tid[order[first]],
    )


def _numbered(trace: Trace) -> NDArray[np.intp]:
    """Return the operators that carry a number of autograd's."""
    rows = trace.rows(Kind.OP)
    return rows[trace.sequence[rows] >= 0]


def _regions(trace: Trace, nodes: NDArray[np.intp], forward: Ranges) -> NDArray[np.int64]:
    """Return which forward pass recorded each node, -1 for none."""
    ops = _numbered(trace)
    around = forward.around(trace.ts_ns[ops], trace.tid[ops])
    ops, around = ops[around >= 0], around[around >= 0]
    if not len(ops):
        return np.full(len(nodes), -1, dtype=np.int64)
    in_order = np.argsort(trace.sequence[ops], kind="stable")
    numbers = trace.sequence[ops[in_order]]
    last = latest(numbers, trace.sequence[nodes])
    return np.where((last >= 0) & (numbers[last] == trace.sequence[nodes]), around[in_order[last]], -1)


def _of_inner_backwards(trace: Trace, nodes: NDArray[np.intp], forward: Ranges) -> NDArray[np.intp]:
    """Return the nodes that run during a forward pass, for a gradient it asks for, and those they record.

    Numbers of nodes are each thread's own; the trace does not tell whose: of equal ones, both are returned.
    """
    inner = nodes[which(forward.start, forward.end, trace.ts_ns[nodes]) >= 0]
    ops = _numbered(trace)
    recorded = np.unique(trace.sequence[ops[trace.inside(ops, inner)]])
    return np.union1d(inner, nodes[np.isin(trace.sequence[nodes], recorded)])


def _trained(
    trace: Trace, nodes: NDArray[np.intp], region: NDArray[np.int64], handed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the forward passes of modules that are trained; all where the trace does not tell.

    A loss may be a module, too, without parameters. The gradient of a parameter is `handed` over right behind
    the node that made it.
    """
    behind = before(trace.ts_ns[nodes], handed) - 1
    trained = np.setdiff1d(region[behind[behind >= 0]], [-1])
    return trained if len(trained) else np.setdiff1d(region, [-1])


def read_reach(trace: Trace, program: Program) -> Reach:
    """Tell what of a program a compiled model would run.

    Without label and without backward (inference, not marked) all dispatch counts.
    """
    called = program.row >= 0
    when = np.where(called, trace.ts_ns[program.row], -1)
    tid = np.where(called, trace.tid[program.row], -1)
    nodes = trace.rows(Kind.OP, named=_NODE)
    nodes = nodes[trace.sequence[nodes] >= 0]
    handed = trace.ts_ns[trace.rows(Kind.OP, named=_ACCUMULATE)]
    marks = program.mark_ns.astype(np.int64)
    labels = trace.rows(Kind.ANNOTATION, named="forward")
    forward = trace.ranges(labels) if len(labels) else _recorded_forward(trace, nodes, marks)
    within = forward.around(when, tid)
    model = within >= 0
    backward = np.zeros(len(within), dtype=bool)
    if len(nodes) and len(forward.start):
        region = _regions(trace, nodes, forward)
        own = np.union1d(nodes[region >= 0], _of_inner_backwards(trace, nodes, forward))
        model |= trace.ranges(own).around(when, tid) >= 0
        trained = _trained(trace, nodes, region, handed)
        within = np.where(np.isin(within, trained), within, -1)
        backward = trace.ranges(nodes[np.isin(region, trained)]).around(when, tid) >= 0
    events = (within >= 0) | backward
    if not len(forward.start) and not len(nodes):
        model = events = called & (program.work[:, [Work.DISPATCH, Work.SEAM]].sum(axis=1) > 0)
    layers = trace.rows(Kind.OP, named=_RECURRENT)
    layers = layers[forward.around(trace.ts_ns[layers], trace.tid[layers]) >= 0]
    if len(layers):
        ops = _numbered(trace)
        theirs = nodes[np.isin(trace.sequence[nodes], trace.sequence[ops[trace.inside(ops, layers)]])]
        left = np.concatenate([layers, theirs])
        reached = trace.ranges(left).around(when, tid) < 0
        events, backward = events & reached, backward & reached
    activities = events[program.event] & (program.launch_work != Work.OPTIMIZER)
    launching = np.zeros(len(events), dtype=bool)
    launching[program.event[activities]] = True
    entered = np.unique(within[launching & (within >= 0)])
    handed = handed[(handed >= marks[0]) & (handed < marks[-1])]
    # Time between two calls belongs to the later one.
    calls = np.flatnonzero(called)
    calls = calls[np.argsort(when[calls], kind="stable")]
    after = before(when[calls], handed)
    inside = events[calls[after[after < len(calls)]]]
    steps = max(1, program.steps)
    regions = trace.rows(Kind.OP, named=_COMPILED)
    keeps = trace.rows(Kind.OP, named=_KEEPS)
    # Where a gradient is there already, the node launches a sum: that is no yardstick.
    ends = before(when[calls], trace.end_of(keeps))
    keeps = keeps[ends == before(when[calls], trace.ts_ns[keeps])]
    return Reach(
        events=events,
        model=model,
        activities=activities,
        backward=backward,
        regions=max(1.0, (len(entered) + len(layers)) / steps),
        recurrent=len(layers) / steps,
        parameters=len(handed) / steps,
        handed_within=float(inside.sum()) / steps,
        compiled=trace.ranges(regions).around(when, tid) >= 0,
        slowness=_slowness(trace.dur_ns[keeps]),
    )


def _slowness(keeps_ns: NDArray[np.int64]) -> float:
    if len(keeps_ns) < _FEWEST:
        return 1.0
    ratio = float(np.percentile(keeps_ns, 10)) / REFERENCE_NS
    return 1.0 if 1.0 - _SAME_HOST <= ratio <= 1.0 + _SAME_HOST else ratio


def host_left_ns(reach: Reach, kernels: float, *, graphs: bool) -> float:
    """Return the host time of a compiled model per step, without the profiler.

    `kernels` per step are left when neighbours are fused; `graphs`: replayed as CUDA graphs rather than
    launched by generated Python.
    """
    each = PER_PARAMETER_NS + (PER_STATIC_TENSOR_NS if graphs else 0.0)
    return reach.slowness * (
        reach.regions * (ENTRY_NS + (GRAPH_NS if graphs else 0.0))
        + reach.parameters * each
        + reach.handed_within * PER_GRADIENT_NS
        + kernels * (PER_NODE_NS if graphs else PER_KERNEL_NS)
    )
