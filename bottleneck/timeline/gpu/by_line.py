"""Which lines of the user's the device works for: each kernel by the operation that asked for it.

In: a trace, its program, and the lines that autograd noted for the nodes of a step's graph. Out: the line of
each activity, in forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.run import GraphLines, LoopTime, SourceSite
from ..lanes.graph_nodes import NO_NODE, idle, nodes_of_graph, wasted
from ..lanes.program import Program
from ..lanes.recompute import recorders
from ..lanes.replay import Edit, not_launched
from ..trace.table import Trace
from .edits import without

NO_LINE = NO_NODE


@dataclass(frozen=True, slots=True)
class Asked:
    """What asked for each activity, (m,): indices into the lists of `GraphLines`, NO_LINE where not known."""

    graph: GraphLines
    line: NDArray[np.intp]
    inner: NDArray[np.intp]
    node: NDArray[np.intp]
    place: NDArray[np.intp]
    """In the order of the graph's nodes."""
    backward: NDArray[np.bool_]
    """A node of the backward asked for it."""
    rows: NDArray[np.intp]
    place_of_row: NDArray[np.intp]
    """Each operator that records a node, and each node of a backward: its row, and which node it is of."""

    def main_line(self, among: NDArray[np.bool_], duration: NDArray[np.float64]) -> SourceSite | None:
        """Return the line that most of the time of some activities (m,) is asked for on."""
        known = among & (self.line != NO_LINE)
        if not known.any():
            return None
        return self.graph.sites[int(np.bincount(self.line[known], weights=duration[known]).argmax())]

    def events_of(self, program: Program, loop: LoopTime) -> NDArray[np.bool_]:
        """Return the events that the lines of a loop ask for, (n,)."""
        (first, last), graph = loop.rounds, self.graph
        inside = [each.file == loop.site.file and first <= each.line <= last for each in graph.sites]
        chains = [any(inside[line] for line in chain) for chain in graph.chains]
        of_node = [chains[chain] for chain in graph.chain] or [
            line >= 0 and inside[line] for line in graph.line
        ]
        out = np.zeros(len(program.kind), dtype=bool)
        # One more, for NO_LINE.
        out[program.event[np.array([*of_node, False])[self.place]]] = True
        return out

    def dropped(self) -> NDArray[np.float64] | None:
        """Return the share of each activity that makes gradients nobody needs, (m,); None where none does."""
        found = np.where(self.backward, wasted(self.graph)[self.place], 0.0)
        return found if found.any() else None

    def idle(self) -> NDArray[np.float64] | None:
        """Return the share of each activity that works on rows without a part in the loss, (m,), or None."""
        found = idle(self.graph)[self.place]
        return found if found.any() else None

    def without(self, trace: Trace, program: Program, chosen: NDArray[np.float64]) -> Edit | None:
        """Take away what some nodes do, both ways; None where there are none.

        `chosen`: 1 for each node to be taken away, with one more entry, for NO_NODE. What they launch goes
        with the Python that leads to it; of those that launch nothing, their own time.
        """
        rows, nothing = self.rows[chosen[self.place_of_row] > 0], np.zeros(len(program.row), dtype=bool)
        if not len(rows):
            return None
        own = without(trace, program, trace.ts_ns[rows], trace.end_of(rows), of=nothing)
        return not_launched(program, chosen[self.place] > 0).and_also(own)


def asked_by(trace: Trace, program: Program, graph: GraphLines) -> Asked:
    """Return what asked for each activity; what the forward does belongs to the node that it records."""
    nodes, place = nodes_of_graph(trace, program.mark_ns.astype(np.int64), graph)
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

    return Asked(
        graph=graph,
        line=of(graph.line),
        inner=of(graph.inner),
        node=of(graph.node),
        place=found,
        backward=backward,
        rows=np.concatenate([recording, nodes]),
        place_of_row=np.concatenate([of_recording, place]),
    )
