"""Forward work that backward does a second time: activation checkpointing in the trace.

In: a trace and its program. Out: which device activities were recomputed, the edit that leaves them
out, what the forward launches, the most that could be recomputed, which of its operators recorded the
backward, and which no backward visits.

Inside what a node of backward runs, and not its hooks, an operator of the forward only (a linear layer, a
convolution, a norm: their derivatives have other names) means that saved activations are being made again;
all that is launched from the first such operator of the node to the last belongs to it. What a compiled graph
recomputes is part of its kernels and cannot be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..trace.dialect import OPTIMIZER_STEP, Kind
from ..trace.intervals import latest, measure, which
from ..trace.operators import NODE, WRITTEN
from ..trace.table import Trace
from .calibrate import Calibration
from .program import Program
from .replay import Edit, Replay, launching

_NOT_AROUND = re.compile(r"^(data|backward|zero_grad|optimizer|Optimizer\.)")
_FORWARD_ONLY = re.compile(
    r"^aten::(linear|conv[123]d|layer_norm|batch_norm|group_norm|instance_norm|rms_norm|embedding|gelu|relu"
    r"|silu|softmax|log_softmax|dropout|scaled_dot_product_attention|max_pool[123]d|einsum)$"
)


def recomputed(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Return which activities recompute what forward had computed, shape (m,)."""
    out = np.zeros(len(program.event), dtype=bool)
    launched = program.row[program.event]
    when, thread = trace.ts_ns[launched], trace.tid[launched]
    for tid, begin, end in _stretches(trace):
        on = np.flatnonzero(thread == tid)
        out[on] |= which(begin, end, when[on]) >= 0
    return out


def recomputed_ns(trace: Trace, *, thread: int, low_ns: int, high_ns: int) -> float:
    """Return the profiled time in which backward recomputes on one thread of a run without a device."""
    spent = 0.0
    for tid, begin, end in _stretches(trace):
        inside = (begin >= low_ns) & (end <= high_ns)
        if tid == thread and inside.any():
            # Checkpoints within checkpoints: the outer stretch holds the inner one.
            spent += measure(begin[inside], end[inside])
    return spent


def _stretches(trace: Trace) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Yield (thread, begins, ends) of recomputation, in order of time."""
    ops = trace.rows(Kind.OP, named=lambda name: bool(NODE.match(name) or _FORWARD_ONLY.match(name)))
    is_node = trace.named(NODE, ops)
    # Hooks compute things as well, but around what the node itself runs.
    names = {NODE.sub("", trace.names[code]) for code in np.unique(trace.name[ops[is_node]]).tolist()}
    its = is_node | trace.inside(ops, trace.rows(Kind.OP, named=names))
    ops, is_node = ops[its], is_node[its]
    for tid in np.unique(trace.tid[ops[is_node]]).tolist():
        mine = trace.tid[ops] == tid
        spans = _spans(trace, ops[mine], is_node[mine])
        if spans:
            begin, end = np.array(sorted(spans), dtype=np.int64).T
            yield tid, begin, end


def _spans(trace: Trace, rows: NDArray[np.int64], is_node: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return, per node with forward operators in it, from the first of them to the end of the last.

    An operator counts for the innermost node around it: reentrant checkpointing runs a backward of its
    own inside a node, after the recomputation. What goes by steps in a backward of the user's own does so
    again and again: each such backward ends a span.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    inner: dict[int, int] = {}
    """By node: those inside it so far."""
    opened: list[tuple[int, int]] = []
    columns = (rows, trace.ts_ns[rows], trace.end_of(rows), is_node)
    for row, begin, end, opens in zip(*(column.tolist() for column in columns), strict=True):
        while opened and opened[-1][1] <= begin:
            opened.pop()
        if opens:
            if opened:
                inner[opened[-1][0]] = inner.get(opened[-1][0], 0) + 1
            opened.append((row, end))
        elif opened:
            node = opened[-1][0], inner.get(opened[-1][0], 0)
            first, last = found.get(node, (begin, end))
            found[node] = (min(first, begin), max(last, end))
    return list(found.values())


def forward_work(trace: Trace, program: Program, *, phase: str = "forward") -> NDArray[np.bool_]:
    """Return which activities a labelled phase launches, shape (m,): those of the forward may be repeated."""
    return trace.inside(program.row[program.event], trace.rows(Kind.ANNOTATION, named=phase))


def recorders(trace: Trace) -> dict[int, int]:
    """Return the operator that recorded each node that the backward visits, by its number.

    What writes into a part of a tensor records a node for its own gradient, which has its number, and behind
    that one for the gradient of all of the tensor.
    """
    ops = trace.rows(Kind.OP)
    ops = ops[trace.sequence[ops] >= 0]
    is_node = trace.named(NODE, ops)
    nodes, others = ops[is_node], ops[~is_node]
    others = others[~trace.inside(others, nodes)]
    # What records nothing has the number of the next that does, so the last of one number is it.
    made = dict(zip(trace.sequence[others].tolist(), others.tolist(), strict=True))
    written = np.unique(trace.sequence[nodes[trace.named(WRITTEN, nodes)]])
    if made and len(written):
        numbers = np.array(sorted(made), dtype=np.int64)
        last = latest(numbers, written)
        known = last >= 0
        its = [made[number] for number in numbers[last[known]].tolist()]
        made.update(zip(written[known].tolist(), its, strict=True))
    return {number: made[number] for number in set(trace.sequence[nodes].tolist()) & made.keys()}


def nodes_of(trace: Trace, calls: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the nodes of the backward that these calls recorded, as rows."""
    made = recorders(trace)
    recorded = np.asarray(list(made.values()), dtype=np.intp)
    numbers = np.asarray(list(made), dtype=np.int64)[trace.inside(recorded, calls)]
    ops = trace.rows(Kind.OP)
    return ops[np.isin(trace.sequence[ops], numbers) & trace.named(NODE, ops)]


def first_passes(trace: Trace) -> NDArray[np.bool_]:
    """Return which of the nodes, `trace.rows(Kind.OP, named=NODE)`, go with the forward that recorded them.

    Not those that another node recorded, which make the gradient of a gradient (`create_graph=True`), and no
    second visit, which a graph that is kept can have. What has no number is not known to be either.
    """
    nodes = trace.rows(Kind.OP, named=NODE)
    numbers = trace.sequence[nodes]
    first = np.zeros(len(nodes), dtype=bool)
    first[np.unique(numbers, return_index=True)[1]] = True
    return (numbers < 0) | first & ~_by_nodes(trace, nodes)


def _by_nodes(trace: Trace, nodes: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which nodes another node recorded, (n,)."""
    ops = trace.rows(Kind.OP)
    ops = ops[trace.sequence[ops] >= 0]
    others = ops[~trace.named(NODE, ops)]
    inside = trace.sequence[others[trace.inside(others, nodes)]]
    numbers = trace.sequence[nodes]
    outside = np.asarray(list(recorders(trace)), dtype=numbers.dtype)
    return ~np.isin(numbers, outside) & np.isin(numbers, inside)


def visited_again(trace: Trace, *, among: NDArray[np.bool_] | None = None) -> NDArray[np.intp]:
    """Return the nodes that a backward visits though one before it has, since the last update.

    A backward for each of several losses goes through what they share anew. With it go the sums into the
    gradients of parameters: these have no number, and follow the nodes that they are of. None where a
    backward has made a graph (`create_graph=True`): then the first is gone through again for other gradients.
    """
    nodes = trace.rows(Kind.OP, named=NODE, among=among)
    numbers = trace.sequence[nodes]
    updates = trace.ts_ns[trace.rows(Kind.ANNOTATION, Kind.OP, named=OPTIMIZER_STEP)]
    visits = np.stack([numbers, trace.name[nodes], latest(updates, trace.ts_ns[nodes])], axis=1)
    again = np.ones(len(nodes), dtype=bool)
    again[np.unique(visits, axis=0, return_index=True)[1]] = False
    # Most traces have none, and who recorded the nodes takes long to find.
    if not (again & (numbers >= 0)).any() or _by_nodes(trace, nodes).any():
        return nodes[:0]
    numbered = np.maximum.accumulate(np.where(numbers >= 0, np.arange(len(nodes)), 0))
    return nodes[again[numbered] & (numbers[numbered] >= 0)]


def later_work(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Return which activities the other nodes launch, shape (m,)."""
    launched = program.row[program.event]
    nodes = trace.ranges(trace.rows(Kind.OP, named=NODE))
    around = nodes.innermost(trace.ts_ns[launched], trace.tid[launched])
    stays: NDArray[np.bool_] = ~np.append(first_passes(trace), True)[around]
    return stays & (around >= 0)


def unrecorded(trace: Trace, *, beside: bool = False) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the outermost operators of the forward, and those of them that no backward visits.

    These run under no_grad, or nothing that they compute from needs a gradient. None where the trace does
    not tell what the backward visits. `beside`: and of what stands around the forward in its thread, but for
    backward, update and the making of batches.
    """
    rows = np.asarray(list(recorders(trace).values()), dtype=np.intp)
    forward = trace.rows(Kind.ANNOTATION, named="forward")
    ops = trace.rows(Kind.OP)
    if beside:
        ops = ops[np.isin(trace.tid[ops], np.unique(trace.tid[forward]))]
        ops = ops[np.logical_not(trace.inside(ops, trace.rows(Kind.ANNOTATION, named=_NOT_AROUND)))]
    else:
        ops = ops[trace.inside(ops, forward)]
    whole = trace.outermost(ops)
    around = trace.ranges(whole).around(trace.ts_ns[rows], trace.tid[rows])
    return whole, np.delete(whole, np.unique(around[around >= 0])) if len(rows) else whole[:0]


def checkpoint_ms(
    replay: Replay, calibration: Calibration, forward: NDArray[np.bool_], *, true_ms: float
) -> float:
    """Return how much longer a step is whose backward does all of the forward a second time, in ms.

    The most that checkpointing can cost: what is not wrapped (the output layer, the loss) is not repeated.
    The replay does it where the forward stands: on the device the order makes no difference, and the host
    launches as much.
    """
    program, base = replay.program, calibration.base
    events = launching(program, forward)
    again = np.zeros_like(program.work)
    again[events] = -program.work[events]
    twice = Edit(duration=np.where(forward, 2.0, 1.0), gone=again)
    reference = replay.run(base).step_ns
    return max(0.0, true_ms * (replay.run(base.and_also(twice)).step_ns / reference - 1.0))
