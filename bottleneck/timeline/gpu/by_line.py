"""Which lines of the user's the device works for: each kernel by the operation that asked for it.

In: a trace, its program, and the lines that autograd noted for the nodes of a step's graph. Out: the line of
each activity, in forward and backward. The nodes of a traced step are those of the noted one where both have
as many of a name: the k-th of a name is the k-th.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

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


def lines_of_activities(
    trace: Trace, program: Program, graph: GraphLines
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return for each activity the index of its line in `graph`, and of its node's name, NO_LINE for none.

    Both of shape (m,). What the forward does belongs to the node that it records.
    """
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
    for rows, its in ((recording, of_recording), (nodes, place)):
        if len(rows):
            around = trace.ranges(rows).innermost(when, thread)
            found = np.where(around >= 0, its[around], found)
    known = found != NO_LINE
    # One more entry, which NO_LINE as an index means.
    line, node = (np.array([*each, NO_LINE], dtype=np.intp) for each in (graph.line, graph.node))
    return np.where(known, line[found], NO_LINE), np.where(known, node[found], NO_LINE)


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
