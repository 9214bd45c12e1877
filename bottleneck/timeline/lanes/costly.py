"""Operators that compute more than is asked of them, where people found a cheaper way to the same result.

In: a trace, and the calls that have one by what they were given in one step. Out: their rows, with the nodes
of the backward that they record. What to write in their place is in the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...model.codes import WhatIf
from ...model.flops import COSTLY_AT_TIMES
from ...model.run import CostlyCalls, SourceSite
from ...model.words import percent
from ..result import CostlyCall
from ..trace.dialect import Kind
from ..trace.intervals import latest
from ..trace.operators import NODE, WRITTEN
from ..trace.table import NONE, Trace
from .questions import Question
from .recompute import recorders, visited_again
from .replay import Edit

REPEAT = "torch.Tensor.repeat"
"""Where broadcasting takes its place, what works on the copies takes less time, too."""
CALLS = {
    "aten::quantile": "torch.quantile",
    "aten::nanquantile": "torch.nanquantile",
    "aten::embedding_renorm_": "torch.embedding_renorm_",
    "aten::unique_dim": "torch.unique",
    "aten::_sparse_addmm": "torch.sparse.mm",
    "aten::repeat": REPEAT,
    "aten::repeat_interleave": REPEAT,
}
"""Name of the operator -> what Python calls it; a fix names each of the latter. Beside `COSTLY_AT_TIMES`."""
IN_ROUNDS = ("way:rounds", "way:sequence")
"""Calls that the rounds of a loop make one by one."""
BACKWARD = "torch.Tensor.backward"
"""A second one in a step goes through what the losses share anew."""
_ONLY_WITH = {"aten::_sparse_addmm": "aten::_indices", "aten::repeat_interleave": "aten::expand"}
"""What an operator calls where there is a cheaper way: of sparse layouts, COO has such indices; of repeated
rows, those that are all repeated as often are expanded."""

_BY_THEMSELVES = ("aten::repeat", "aten::repeat_interleave")
"""What other operators call, too, for small things of theirs: an instance norm for its weights."""
_PARTS = ("aten::select", "aten::slice")
"""What costs in the backward alone, and what other operators call for parts of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostlyRows:
    """All calls of one such operator in the traced steps."""

    callee: str
    rows: NDArray[np.intp]
    nodes: NDArray[np.intp]
    """What the backward does for them, in order of time, as `rows`."""
    gone: NDArray[np.intp]
    """Those of both that the other way does not need, in order of time."""
    tried: CostlyCalls | None = None
    """What was seen where the other way was tried."""

    @property
    def saved(self) -> float:
        """Of their time, as far as it is known."""
        return 1.0 - ((self.tried.left if self.tried is not None else None) or 0.0)

    def call(self, *, steps: int, site: SourceSite | None = None) -> CostlyCall:
        """Return them for the answer; `site` where none of their own is known."""
        call = CostlyCall(
            callee=self.callee, count=len(self.rows) / max(1, steps), site=site, shown=f"`{self.callee}()`"
        )
        if self.tried is None:
            return call
        tried = self.tried
        return replace(
            call, site=tried.site or site, left=tried.left, left_on_host=tried.left_on_host,
            shown=tried.shown or call.shown,
        )  # fmt: skip


def costly_rows(
    trace: Trace, *, among: NDArray[np.bool_] | None = None, seen: Sequence[CostlyCalls] = ()
) -> list[CostlyRows]:
    """Return the calls of each such operator; `among` (n,) marks the rows to choose from."""
    calls = trace.rows(Kind.OP, named=CALLS.keys(), among=among)
    for name, inner in _ONLY_WITH.items():
        its = trace.rows(Kind.OP, named=inner, among=among)
        with_it = trace.ranges(calls).around(trace.ts_ns[its], trace.tid[its])
        calls = calls[~trace.named(name, calls) | np.isin(np.arange(len(calls)), with_it)]
    own = trace.named(_BY_THEMSELVES, calls)
    if own.any():
        calls = calls[~own | np.isin(calls, trace.outermost(trace.rows(Kind.OP, among=among)))]
    callees = {row: CALLS[trace.name_of(row)] for row in calls.tolist()}
    which: dict[int, int] = {}
    """Call -> the position of what was seen of it."""
    for k, call in enumerate(seen):
        # Older runs do not say it: there was one way then to call each.
        known = COSTLY_AT_TIMES.get(call.operator)
        if name := call.callee or (known[0].callee if known else ""):
            those = _those(trace, call, among).tolist()
            callees.update(dict.fromkeys(those, name))
            which.update(dict.fromkeys(those, k))
    found = _gone_through_again(trace, among)
    calls = np.array(sorted(callees), dtype=np.intp)
    calls = calls[~trace.named(_PARTS, calls) | (trace.sequence[calls] >= 0)]
    if not len(calls):
        return found
    nodes = trace.rows(Kind.OP, named=NODE, among=among)
    # What operators do in the backward is looked up below. What was tried there, the script calls itself.
    own = np.isin(calls, [row for row, k in which.items() if seen[k].left is not None])
    calls = trace.outermost(calls[~trace.inside(calls, nodes) | own])
    if not len(calls):
        return found
    made = recorders(trace)
    recorded = np.array([made.get(number, NONE) for number in trace.sequence[nodes].tolist()], dtype=np.intp)
    written = trace.named(WRITTEN, nodes) & (recorded != NONE)
    recorded[written] = _parts_written(trace, recorded[written], calls)
    in_order = np.argsort(recorded, kind="stable")[int((recorded == NONE).sum()) :]
    nodes, recorded = nodes[in_order], recorded[in_order]
    # A node is recorded inside a call, or by an operator that is this call and little else.
    within = trace.ranges(calls).around(trace.ts_ns[recorded], trace.tid[recorded])
    holder = trace.ranges(recorded).innermost(trace.ts_ns[calls], trace.tid[calls])
    within[holder[holder >= 0]] = np.flatnonzero(holder >= 0)
    nodes, within = nodes[within >= 0], within[within >= 0]
    nodes, within = nodes[np.argsort(nodes)], within[np.argsort(nodes)]
    callee = np.array([callees[row] for row in calls.tolist()])
    of_seen = np.array([which.get(row, NONE) for row in calls.tolist()], dtype=np.intp)[within]
    tried = {each.callee: each for each in seen if each.left is not None}
    forward, stays = calls[~trace.named(_PARTS, calls)], _of_all_at_once(trace, nodes, of_seen, seen)
    for name in np.unique(callee).tolist():
        rows, its = calls[callee == name], callee[within] == name
        gone = np.sort(np.concatenate([rows[np.isin(rows, forward)], nodes[its & ~stays]]))
        found.append(CostlyRows(callee=name, rows=rows, nodes=nodes[its], gone=gone, tried=tried.get(name)))
    return found


def _gone_through_again(trace: Trace, among: NDArray[np.bool_] | None) -> list[CostlyRows]:
    """Return what backward passes visit that an earlier one has; the rows are where each begins to."""
    gone = visited_again(trace, among=among)
    if not len(gone):
        return []
    nodes = trace.rows(Kind.OP, named=NODE, among=among)
    again = np.isin(nodes, gone)
    begins = again & ~np.append(False, again[:-1])
    return [CostlyRows(callee=BACKWARD, rows=nodes[begins], nodes=gone, gone=gone)]


def _of_all_at_once(
    trace: Trace, nodes: NDArray[np.intp], of_seen: NDArray[np.intp], seen: Sequence[CostlyCalls]
) -> NDArray[np.bool_]:
    """Return which nodes stand for the one gradient that a tensor has when it is taken apart at once, (n,).

    `of_seen` (n,) are the positions in `seen` of what recorded them. What is put together of its parts has no
    such gradient: there each part has its own.
    """
    out = np.zeros(len(nodes), dtype=bool)
    for k, call in enumerate(seen):
        its = np.flatnonzero(of_seen == k)
        if call.tensors and not trace.named(WRITTEN, nodes[its]).any():
            each = len(call.places) // call.tensors
            out[its[each - 1 :: each]] = True
    return out


def _parts_written(trace: Trace, writes: NDArray[np.intp], calls: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return into which part each operator writes: the call right before it that took the part, or NONE.

    A part of a part (`x[t, 2:5] = y`) is taken by several calls, one right after the other.
    """
    parts = trace.rows(Kind.OP, named=_PARTS)
    parts = parts[trace.sequence[parts] >= 0]
    if not len(parts):
        return np.full(len(writes), NONE, dtype=np.intp)
    # What records a node moves the number on by one.
    numbers, thread = trace.sequence[parts], trace.tid[parts]
    begins = np.ones(len(parts), dtype=bool)
    begins[1:] = (np.diff(numbers) < 0) | (np.diff(numbers) > 1) | (thread[1:] != thread[:-1])
    chain = np.cumsum(begins)
    costly = np.maximum.accumulate(np.where(np.isin(parts, calls), np.arange(len(parts)), NONE))
    at = latest(trace.ts_ns[parts], trace.ts_ns[writes])
    gap = trace.sequence[writes] - numbers[at]
    found = (at >= 0) & (thread[at] == trace.tid[writes]) & (gap >= 0) & (gap <= 1)
    found &= (costly[at] != NONE) & (chain[costly[at]] == chain[at])
    return np.where(found, parts[costly[at]], NONE)


def _those(trace: Trace, call: CostlyCalls, among: NDArray[np.bool_] | None) -> NDArray[np.intp]:
    """Return the rows of an operator's calls that have the places in each step of those that were seen."""
    rows = trace.rows(Kind.OP, named=call.operator, among=among)
    if len(call.places) == call.of:
        return rows
    return (
        rows[np.isin(np.arange(len(rows)) % call.of, call.places)] if len(rows) % call.of == 0 else rows[:0]
    )


def python_names(callee: str) -> set[str]:
    """Return the names by which such calls may stand in the source."""
    return {
        callee.rpartition(".")[2],
        *(name.removeprefix("aten::") for name in CALLS if CALLS[name] == callee),
    }


def without_calls(call: CostlyCall, gone: Edit) -> Question:
    """Ask for the step without such calls; a bound, unless what the other way takes is known, or less."""
    without = f"without {call.shown}, forward and backward; "
    if call.left is not None:
        basis = f"{call.shown} made another way, forward and backward: {percent(call.left)} of its time"
        if call.left_on_host is not None and call.left_on_host != call.left:
            basis += f" on the device, {percent(call.left_on_host)} on the host"
    elif call.callee == REPEAT:
        basis = without + "what works on the copies is not counted"
    elif call.callee == BACKWARD:
        basis = "without going back again through what an earlier backward of the step has visited"
    else:
        basis = without + "the other way to the same result takes time, too"
    bound = call.left is None and call.callee != REPEAT
    return Question(WhatIf.CALL_GONE, gone, basis, bound=bound, about=call.callee)
