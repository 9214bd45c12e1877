"""Which lines of the user's the device works for: each kernel by the operation that asked for it.

In: a trace, its program, and the lines that autograd noted for the nodes of a step's graph. Out: the line of
each activity, in forward and backward. The nodes of a traced step are those of the noted one where both have
as many of a name: the k-th of a name is the k-th.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.run import GraphLines
from ..lanes.program import Program
from ..lanes.recompute import recorders
from ..trace.dialect import Kind
from ..trace.intervals import latest
from ..trace.table import Trace

NODE = re.compile(r"^autograd::engine::evaluate_function: ")
NO_LINE = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """What asked for each activity, (m,): indices into the lists of `GraphLines`, NO_LINE where not known."""

    graph: GraphLines
    line: NDArray[np.intp]
    inner: NDArray[np.intp]
    node: NDArray[np.intp]
    backward: NDArray[np.bool_]
    """A node of the backward asked for it."""

    def dropped(self) -> NDArray[np.float64] | None:
        """Return the share of each activity that makes gradients nobody needs, (m,); None where none does."""
        shares = np.array([self.graph.dropped.get(name, 0.0) for name in (*self.graph.names, "")])
        found = np.where(self.backward, shares[self.node], 0.0)
        return found if found.any() else None


def asked_by(trace: Trace, program: Program, graph: GraphLines) -> Asked:
    """Return what asked for each activity; what the forward does belongs to the node that it records."""
    nodes = trace.rows(Kind.OP, named=NODE)
    nodes = nodes[trace.sequence[nodes] >= 0]
    place = _places_of_nodes(trace, program, nodes, graph)
    launched = program.row[program.event]
    when, thread = trace.ts_ns[launched], trace.tid[launched]

    found = np.full(len(launched), NO_LINE, dtype=np.intp)
    by_number = dict(zip(trace.sequence[nodes].tolist(), place.tolist(), strict=True))
    made = {row: by_number[number] for number, row in recorders(trace).items()}
    recording = np.array(sorted(made), dtype=np.intp)
    of_recording = np.array([made[row] for row in recording.tolist()], dtype=np.intp)
    backward = np.zeros(len(launched), dtype=bool)
    for rows, its in ((recording, of_recording), (nodes, place)):
        if len(rows):
            around = trace.ranges(rows).innermost(when, thread)
            found = np.where(around >= 0, its[around], found)
            backward = around >= 0

    def of(places: Sequence[int]) -> NDArray[np.intp]:
        # One more entry, which NO_LINE as an index means.
        return np.array([*(places or [NO_LINE] * len(graph.node)), NO_LINE], dtype=np.intp)[found]

    return Asked(graph, of(graph.line), of(graph.inner), of(graph.node), backward)


def _places_of_nodes(
    trace: Trace, program: Program, nodes: NDArray[np.intp], graph: GraphLines
) -> NDArray[np.intp]:
    """Return which of the noted nodes each node of the traced steps is, shape of `nodes`."""
    noted: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(graph.node):
        noted[graph.names[name]].append(at)
    out = np.full(len(nodes), NO_LINE, dtype=np.intp)
    step = latest(program.mark_ns.astype(np.int64), trace.ts_ns[nodes]).tolist()
    names = [NODE.sub("", trace.names[code]) for code in trace.name[nodes].tolist()]
    order = np.lexsort((trace.sequence[nodes], step)).tolist()
    seen, done = Counter(zip(step, names, strict=True)), Counter[tuple[int, str]]()
    for at in order:
        key = (step[at], names[at])
        if seen[key] == len(noted[names[at]]):
            out[at] = noted[names[at]][done[key]]
            done[key] += 1
    return out
