"""Numbers of the nodes that a backward goes through, where the profiler leaves them out.

In: a trace. Out: the same with them.

The profiler gives a node the number of what runs first inside it. With a hook on the node's gradients that
is an operator of the hook, which has none, and the node's own function stands behind it.
"""

from __future__ import annotations

import dataclasses

from .dialect import Kind
from .operators import NODE
from .table import NONE, Trace


def with_numbers(trace: Trace) -> Trace:
    """Return the trace in which each node has the number of its function."""
    nodes = trace.rows(Kind.OP, named=NODE)
    nodes = nodes[trace.sequence[nodes] == NONE]
    node_of = {NODE.sub("", trace.names[code]): code for code in set(trace.name[nodes].tolist())}
    functions = trace.rows(Kind.OP, named=node_of.keys())
    functions = functions[trace.sequence[functions] != NONE]
    around = trace.ranges(nodes).innermost(trace.ts_ns[functions], trace.tid[functions])
    functions, around = functions[around >= 0], nodes[around[around >= 0]]
    own = trace.name[around] == [node_of[trace.name_of(row)] for row in functions.tolist()]
    if not own.any():
        return trace
    sequence = trace.sequence.copy()
    sequence[around[own]] = trace.sequence[functions[own]]
    return dataclasses.replace(trace, sequence=sequence)
