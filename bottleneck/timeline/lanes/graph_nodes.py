"""Which noted nodes those are that the backwards of the traced steps go through, and which noted operators.

In: a trace, where its steps begin, the graph and the operators noted in other steps. Out: the noted one of
each traced one. Where both steps have as many of a name, the k-th of a name is the k-th. Otherwise a loop, as
over words or frames, went round more often in one of them: nodes go on in the order of the noted ones, and
where that ends, where the next few are the same; operators are not known then. And how much of each node is
for nobody.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from ...model.run import GraphLines, OperatorLines
from ..trace.dialect import Kind
from ..trace.intervals import latest
from ..trace.operators import NODE
from ..trace.table import Trace

NO_NODE = -1
_ALIKE = (12, 6, 3, 1)
"""Nodes that must be the same from a place on: as many as can be."""


def nodes_of_graph(
    trace: Trace, steps_ns: NDArray[np.int64], graph: GraphLines
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the rows of the nodes that backwards go through, and which noted node each is, or NO_NODE."""
    rows = trace.rows(Kind.OP, named=NODE)
    rows = rows[trace.sequence[rows] >= 0]
    noted: dict[str, list[int]] = defaultdict(list)
    for at, name in enumerate(graph.node):
        noted[graph.names[name]].append(at)
    out = np.full(len(rows), NO_NODE, dtype=np.intp)
    step = latest(steps_ns, trace.ts_ns[rows]).tolist()
    names = [NODE.sub("", trace.names[code]) for code in trace.name[rows].tolist()]
    order = np.lexsort((trace.sequence[rows], step)).tolist()
    whole = [graph.names[name] for name in graph.node]
    for _, its in groupby(order, key=step.__getitem__):
        mine = list(its)
        its_names = [names[at] for at in mine]
        seen, done = Counter(its_names), Counter[str]()
        others = _aligned(whole, its_names) if any(len(noted[name]) != seen[name] for name in seen) else []
        for k, at in enumerate(mine):
            name = names[at]
            if seen[name] == len(noted[name]):
                out[at] = noted[name][done[name]]
                done[name] += 1
            else:
                out[at] = others[k]
    return rows, out


def _aligned(noted: Sequence[str], traced: Sequence[str]) -> list[int]:
    """Return the place in `noted` of each of `traced`, where rounds of loops are more or fewer."""
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for count in _ALIKE:
        for at in range(len(noted) - count + 1):
            places[tuple(noted[at : at + count])].append(at)
    out, at = [], 0
    for k, name in enumerate(traced):
        if at == len(noted) or noted[at] != name:
            alike = (places.get(tuple(traced[k : k + count])) for count in _ALIKE if k + count <= len(traced))
            found = next(filter(None, alike), None)
            if found is None:
                out.append(NO_NODE)
                continue
            next_one = bisect_left(found, at)
            at = min(found[max(0, next_one - 1) : next_one + 1], key=lambda place: abs(place - at))
        out.append(at)
        at += 1
    return out


def operators_with_lines(
    trace: Trace, steps_ns: NDArray[np.int64], operators: OperatorLines
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of operators of which the user's lines were noted, and the chain of lines of each."""
    rows = trace.rows(Kind.OP, named=operators.calls.keys())
    step, chain = latest(steps_ns, trace.ts_ns[rows]), np.full(len(rows), NO_NODE, dtype=np.intp)
    for name, chains in operators.calls.items():
        its = np.flatnonzero(trace.named(name, rows))
        for one in np.unique(step[its]):
            calls = its[step[its] == one]
            if len(calls) == len(chains):
                chain[calls] = chains
    known = chain != NO_NODE
    return rows[known], chain[known]


def _of_each(graph: GraphLines, shares: Sequence[float]) -> NDArray[np.float64]:
    """Return a share for each node, 0 where none is known of any; one more, for NO_NODE."""
    return np.array([*(shares or [0.0] * len(graph.node)), 0.0])


def idle(graph: GraphLines) -> NDArray[np.float64]:
    """Return the share of each node's rows that have no part in the loss; one more, for NO_NODE."""
    return _of_each(graph, graph.idle)


def again(graph: GraphLines) -> NDArray[np.float64]:
    """Return 1 for each node that converts what another one has converted; one more entry, for NO_NODE."""
    return _of_each(graph, graph.again)


def joined(graph: GraphLines) -> NDArray[np.float64]:
    """Return 1 for each node that joins what is joined again, or reads an entry; one more at the end."""
    return _of_each(graph, graph.joined)


def wasted(graph: GraphLines) -> NDArray[np.float64]:
    """Return the share of each node's backward that makes gradients nobody uses; one more, for NO_NODE."""
    dropped = [graph.dropped.get(graph.names[name], 0.0) for name in graph.node]
    return np.maximum(_of_each(graph, dropped), _of_each(graph, graph.unread))
