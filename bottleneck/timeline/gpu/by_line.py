"""Which lines of the user's the device works for: each kernel by the operation that asked for it.

In: a trace, its program, the lines that autograd noted for the nodes of a step's graph, and those below which
the operators of another step were called. Out: the line of each activity, in forward and backward. A node
tells both; an operator tells what no gradient is recorded for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...model.run import GraphLines, LoopTime, OperatorLines, SourceSite
from ...model.view import ONE_CALL
from ..lanes.graph_nodes import NO_NODE, idle, nodes_of_graph, operators_with_lines, wasted
from ..lanes.labels import Work
from ..lanes.program import Program
from ..lanes.recompute import recorders
from ..lanes.replay import Edit, not_launched
from ..trace.table import Trace
from .edits import without

NO_LINE = NO_NODE


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a graph and of operators, and what they lead to."""

    sites: list[SourceSite]
    texts: list[str]
    names: list[str]
    """Of nodes, and behind them of operators."""
    chains: list[tuple[int, ...]]
    """Indices into `sites`, the innermost first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What asked for each activity, (m,), if nothing else is said: indices into `Lines`, or NO_LINE."""

    graph: GraphLines
    lines: Lines
    line: NDArray[np.intp]
    inner: NDArray[np.intp]
    node: NDArray[np.intp]
    """Into `names`."""
    chain: NDArray[np.intp]
    """Of each event, (n,), those of the update among them."""
    place: NDArray[np.intp]
    """In the order of the graph's nodes."""
    backward: NDArray[np.bool_]
    """A node of the backward asked for it."""
    in_backward: NDArray[np.bool_]
    """The same of each event, (n,)."""
    rows: NDArray[np.intp]
    place_of_row: NDArray[np.intp]
    """Each operator that records a node, and each node of a backward: its row, and which node it is of."""

    def calls(self, spent: NDArray[np.float64]) -> list[tuple[int, NDArray[np.bool_]]]:
        """Return the lines that call what the device works for, where the step comes apart into several.

        `spent`: the time of each chain. A call stands for its caller where nearly all of the time is in it.
        With each come the chains that lead through it; what is a line by itself is not among them.
        """
        outer = [tuple(reversed(chain)) for chain in self.lines.chains]

        def below(chains: list[int], depth: int) -> dict[int, list[int]]:
            found: dict[int, list[int]] = {}
            for at in chains:
                if len(outer[at]) > depth and spent[at] > 0:
                    found.setdefault(outer[at][depth], []).append(at)
            return found

        def main_of(chains: list[int], depth: int) -> tuple[list[int], int]:
            inner = max(below(chains, depth).values(), key=lambda its: spent[its].sum(), default=[])
            if spent[inner].sum() <= ONE_CALL * spent[chains].sum():
                return chains, depth
            return main_of(inner, depth + 1)

        everything, depth = main_of(list(range(len(outer))), 0)
        found = []
        for head, its in below(everything, depth).items():
            chains, inner = main_of(its, depth + 1)
            if any(len(outer[at]) > inner for at in chains):
                found.append((head, outer[chains[0]][inner - 1], chains))
        met = Counter(line for _, line, _ in found)
        # Two ways that lead to one line are told by where they part.
        return [
            (line if met[line] == 1 else head, np.isin(np.arange(len(outer)), chains))
            for head, line, chains in found
        ]

    def main_line(self, among: NDArray[np.bool_], duration: NDArray[np.float64]) -> SourceSite | None:
        """Return the line that most of the time of some activities (m,) is asked for on."""
        known = among & (self.line != NO_LINE)
        if not known.any():
            return None
        return self.lines.sites[int(np.bincount(self.line[known], weights=duration[known]).argmax())]

    def events_of(self, loop: LoopTime) -> NDArray[np.bool_]:
        """Return the events that the lines of a loop ask for, (n,)."""
        (first, last), lines = loop.rounds, self.lines
        inside = [each.file == loop.site.file and first <= each.line <= last for each in lines.sites]
        # One more, for NO_LINE.
        chains = np.array([*(any(inside[line] for line in chain) for chain in lines.chains), False])
        return chains[self.chain]

    def backward_share(self, loop: LoopTime, work: NDArray[np.float64]) -> float | None:
        """Return the share of the backward's work, of the events' (n,), that a loop's lines ask for.

        None where the lines of less than half of it are known.
        """
        whole = float(work[self.in_backward].sum())
        if float(work[self.in_backward & (self.chain != NO_LINE)].sum()) <= whole / 2:
            return None
        return float(work[self.in_backward & self.events_of(loop)].sum()) / whole

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


def asked_by(
    trace: Trace, program: Program, graph: GraphLines, operators: OperatorLines | None = None
) -> Asked:
    """Return what asked for each activity; what the forward does belongs to the node that it records."""
    nodes, place = nodes_of_graph(trace, program.mark_ns.astype(np.int64), graph)
    by_number = dict(zip(trace.sequence[nodes].tolist(), place.tolist(), strict=True))
    made = {row: by_number[number] for number, row in recorders(trace).items()}
    recording = np.array(sorted(made), dtype=np.intp)
    of_recording = np.array([made[row] for row in recording.tolist()], dtype=np.intp)
    backward = _around(trace, program, nodes)
    found = _of(place, backward, otherwise=_of(of_recording, _around(trace, program, recording)))

    def of(places: Sequence[int], at: NDArray[np.intp] = found) -> NDArray[np.intp]:
        return _of(np.array(places or [NO_LINE] * len(graph.node), dtype=np.intp), at)

    # Recordings of before have no chains.
    chains: list[tuple[int, ...]] = (
        graph.chains if graph.chain else [(line,) for line in range(len(graph.sites))]
    )
    activities = found[program.event]
    asked = Asked(
        graph=graph,
        lines=Lines(sites=graph.sites, texts=graph.texts, names=graph.names, chains=chains),
        line=of(graph.line, activities),
        inner=of(graph.inner, activities),
        node=of(graph.node, activities),
        chain=of(graph.chain or graph.line),
        place=activities,
        backward=backward[program.event] >= 0,
        in_backward=backward >= 0,
        rows=np.concatenate([recording, nodes]),
        place_of_row=np.concatenate([of_recording, place]),
    )
    return asked if operators is None else _with_operators(asked, trace, program, operators)


def _around(trace: Trace, program: Program, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return which of some rows is the innermost around each event, (n,); NO_LINE for none."""
    out, called = np.full(len(program.row), NO_LINE, dtype=np.intp), program.row >= 0
    calls = program.row[called]
    if len(rows):
        out[called] = trace.ranges(rows).innermost(trace.ts_ns[calls], trace.tid[calls])
    return out


def _of(
    values: NDArray[np.intp], at: NDArray[np.intp], *, otherwise: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """Return the values at these positions; at NO_LINE those of `otherwise`, or NO_LINE."""
    last = np.append(values, NO_LINE)[at]
    return last if otherwise is None else np.where(at == NO_LINE, otherwise, last)


def _with_operators(asked: Asked, trace: Trace, program: Program, operators: OperatorLines) -> Asked:
    """Let what no node asks for, or is inside one, belong to the lines below which its operator was called.

    The update is priced by itself.
    """
    rows, chain = operators_with_lines(trace, program.mark_ns.astype(np.int64), operators)
    around = _around(trace, program, rows)
    lines, known = asked.lines, len(asked.lines.sites)
    place = {site: at for at, site in enumerate(lines.sites)}
    new = {s: text for s, text in zip(operators.sites, operators.texts, strict=True) if s not in place}
    place |= {site: known + at for at, site in enumerate(new)}
    index = [place[site] for site in operators.sites]
    chains = [tuple(index[line] for line in each) for each in operators.chains]
    codes, name_of_row = np.unique(trace.name[rows], return_inverse=True)

    def by_chain(values: list[int]) -> NDArray[np.intp]:
        return np.array(values, dtype=np.intp)[chain]

    below = _of(chain, around)
    deeper = _leads_on(asked.chain, lines.chains, below, chains)
    is_rest = (asked.place == NO_NODE) & (program.launch_work != Work.OPTIMIZER)
    rest = np.where(is_rest | deeper[program.event], around[program.event], NO_LINE)
    inner = by_chain([index[line] if line >= 0 else NO_LINE for line in operators.inner])
    return replace(
        asked,
        lines=Lines(
            sites=[*lines.sites, *new],
            texts=[*lines.texts, *new.values()],
            names=[*lines.names, *(trace.names[code] for code in codes.tolist())],
            chains=[*lines.chains, *chains],
        ),
        line=_of(by_chain([each[0] if each else NO_LINE for each in chains]), rest, otherwise=asked.line),
        inner=_of(inner, rest, otherwise=asked.inner),
        node=_of(name_of_row + len(lines.names), rest, otherwise=asked.node),
        chain=np.where(
            (asked.chain == NO_LINE) | deeper, _of(chain + len(lines.chains), around), asked.chain
        ),
    )


def _leads_on(
    outer: NDArray[np.intp],
    outer_chains: Sequence[tuple[int, ...]],
    below: NDArray[np.intp],
    chains: Sequence[tuple[int, ...]],
) -> NDArray[np.bool_]:
    """Return where the chain of an operator goes on from that of its node, (n,).

    As inside a function of the script's with a backward of its own, of which one node is recorded.
    """
    both = (outer != NO_LINE) & (below != NO_LINE)
    pairs, at = np.unique(np.stack([outer[both], below[both]]), axis=1, return_inverse=True)
    longer = [
        len(chains[b]) > len(outer_chains[a]) and chains[b][-len(outer_chains[a]) :] == outer_chains[a]
        for a, b in pairs.T.tolist()
    ]
    out = np.zeros(len(outer), dtype=bool)
    out[both] = np.array(longer, dtype=bool)[at.reshape(-1)]
    return out
