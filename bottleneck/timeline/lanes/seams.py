"""The seams of broken graphs: where compiled code was left and entered again, and which break caused it.

In: a trace, its launching threads, compile.json. Out: `Seam`s: stretches of host time that one graph
would not have, each with the breaks that it is owed to.

Within one run of compiled regions the first one's entry is needed by any compiled program; every later
cache lookup, wrapper prologue and eager fallback exists because the graph was broken, and so does what a
graph does before its first launch and after its last, beyond the usual pause between two launches (checks
of its inputs, the device guard: 1.7 ms in the 96 graphs of a step on an H200, 0.3 ms in the one graph of
the same model mended). A region names its
frame ("Torch-Compiled Region: 3/0"), compile.json knows the frame's function, and each break the user
stacks that it was reported with:

    torch_dynamo_resume_in_f_at_17   the break (or the call that holds it) at line 17 of f
    f, inside the stack of a break   f became a frame of its own as that break cut its caller
    f, called by a skipped function  the break that made dynamo give up the caller as a whole

In backward the regions run in reverse order; autograd's sequence numbers tell which is whose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model.run import CompileFacts, GraphBreak, SourceSite
from ..trace import intervals
from ..trace.dialect import HOST_CALL_KINDS, is_launch
from ..trace.table import Trace

REACH_NS = 800_000
"""Regions further apart than this are one run only where a break is known to lie between them."""

_REGION = re.compile(r"^Torch-Compiled Region(?:: *!?(?P<frame>\d+)/\d+)?")
_BACKWARD = re.compile(r"evaluate_function: CompiledFunctionBackward$")
_FORWARD_NODE = re.compile(r"^CompiledFunction$")
_BODY = re.compile(r"^## Call CompiledFxGraph|^(cuda|hip|cu)GraphLaunch")
_ACCUMULATE = re.compile(r"evaluate_function: torch::autograd::AccumulateGrad$")
_BARRIER = re.compile(r"^(ProfilerStep#\d+|data|optimizer|zero_grad|backward|evaluation|Optimizer\.step#.*)$")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")


@dataclass(frozen=True, slots=True)
class Seam:
    """One passage from compiled code to compiled code."""

    stretches: tuple[tuple[int, int], ...]
    """Host time of it, int64 ns: from the last launch of one graph to the first of the next one."""
    owners: tuple[int, ...]
    """Breaks (positions in `CompileFacts.breaks`) that it is owed to; empty: not known."""
    backward: bool = False


def _in_function(site: SourceSite, function: SourceSite, starts: list[SourceSite]) -> bool:
    """Whether a line lies in the function of that name and first line, of several of the same name."""
    if site.file != function.file or site.function != function.function or site.line < function.line:
        return False
    later = [s.line for s in starts if s.file == site.file and s.function == site.function]
    return max((line for line in later if line <= site.line), default=function.line) == function.line


def _stacks(broken: GraphBreak) -> list[list[SourceSite]]:
    return broken.stacks or ([[broken.site]] if broken.site is not None else [])


def region_owners(facts: CompileFacts) -> dict[int, tuple[int, ...]]:
    """Return, by frame number, the breaks that made it a separate frame.

    A frame that no break explains has an empty entry: a module compiled by itself.
    """
    frames: dict[int, tuple[str, SourceSite]] = {}
    for event in facts.compiles:
        number = event.compile_id.lstrip("!").partition("/")[0]
        if event.frame and event.site is not None and number.isdigit():
            frames.setdefault(int(number), (event.frame, event.site))
    starts = [site for name, site in frames.values() if not _RESUMED.search(name)]
    return {number: _owners(name, site, facts.breaks, starts) for number, (name, site) in frames.items()}


def _owners(
    name: str, site: SourceSite, breaks: list[GraphBreak], starts: list[SourceSite]
) -> tuple[int, ...]:
    resumed = _RESUMED.search(name)
    if resumed is not None:
        near: dict[int, int] = {}
        for i, broken in enumerate(breaks):
            lines = [s for stack in _stacks(broken) for s in stack]
            away = [
                abs(s.line - int(resumed["line"]))
                for s in lines
                if s.file == site.file and s.function in ("", resumed["function"])
            ]
            if away:
                near[i] = min(away)
        return tuple(i for i, away in near.items() if away == min(near.values()))
    inner = tuple(
        i
        for i, broken in enumerate(breaks)
        if any(_in_function(s, site, starts) for stack in broken.stacks for s in stack[1:])
    )
    if inner:
        return inner
    given_up = tuple(i for i, b in enumerate(breaks) if b.skipped and site not in b.skipped)
    if given_up:
        return given_up
    # Recorded before stacks were: any break may have cut the caller.
    return tuple(i for i, b in enumerate(breaks) if not b.stacks and not b.skipped)


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Runs of compiled graphs, forward or backward, in order of time, (k,) each."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    region: NDArray[np.int64]
    """Trace row of the compiled region that each lies in: several of one region are one graph, cut in
    pieces by the compiler itself."""
    owners: list[tuple[int, ...] | None]
    """Breaks that made each a separate graph; None if unknown."""


def _frame_of(name: str) -> int | None:
    match = _REGION.search(name)
    return int(match["frame"]) if match is not None and match["frame"] else None


def _graphs(trace: Trace, regions: NDArray[np.intp], bodies: NDArray[np.intp]) -> _Graphs:
    """Put each body into the innermost region around it; without any body regions are the graphs.

    A region may hold no graph: a function of which nothing but the break was left. What runs in it is
    then part of the passage.
    """
    start = trace.ts_ns[regions]
    if not len(bodies) or not len(regions):
        following = np.append(start[1:], np.iinfo(np.int64).max)
        return _Graphs(start, np.minimum(trace.end_of(regions), following), regions, [None] * len(regions))
    # What dynamo resumes after a break runs inside the region before it: the last begun is innermost.
    at = intervals.which(start, trace.end_of(regions), trace.ts_ns[bodies])
    inside = at >= 0
    kept = bodies[inside]
    return _Graphs(trace.ts_ns[kept], trace.end_of(kept), regions[at[inside]], [None] * len(kept))


def _between_launches(trace: Trace, graphs: _Graphs, launches: NDArray[np.intp]) -> _Graphs:
    """Narrow each graph down to its launches, the pause before the first of them included."""
    first = intervals.before(trace.ts_ns[launches], graphs.start)
    last = intervals.before(trace.ts_ns[launches], graphs.end) - 1
    some = np.flatnonzero(last >= first)
    if not len(some):
        return graphs
    begin, end = trace.ts_ns[launches], trace.end_of(launches)
    pauses = np.concatenate(
        [begin[f + 1 : t + 1] - end[f:t] for f, t in zip(first[some], last[some], strict=True)]
    )
    usual = int(np.median(pauses)) if len(pauses) else 0
    start, stop = graphs.start.copy(), graphs.end.copy()
    start[some] = np.maximum(start[some], begin[first[some]] - usual)
    stop[some] = np.minimum(stop[some], end[last[some]])
    return _Graphs(start, stop, graphs.region, graphs.owners)


def _own_forward(trace: Trace, graphs: _Graphs, owners: dict[int, tuple[int, ...]]) -> None:
    for k, row in enumerate(graphs.region.tolist()):
        frame = _frame_of(trace.name_of(row))
        graphs.owners[k] = owners.get(frame) if frame is not None else None


def _own_backward(trace: Trace, backward: _Graphs, forward: _Graphs, nodes: NDArray[np.intp]) -> None:
    """A graph of backward is entered anew as the one before it, in backward's order, was cut off."""
    by_region = {int(row): owned for row, owned in zip(forward.region, forward.owners, strict=True)}
    starts = np.unique(forward.region)
    at = intervals.latest(trace.ts_ns[starts], trace.ts_ns[nodes])
    region_of = {int(trace.sequence[n]): int(starts[k]) for n, k in zip(nodes, at, strict=True) if k >= 0}
    for k in range(1, len(backward.region)):
        before = region_of.get(int(trace.sequence[backward.region[k - 1]]))
        backward.owners[k] = None if before is None else by_region.get(before)


def find_seams(trace: Trace, threads: NDArray[np.bool_], facts: CompileFacts | None) -> list[Seam]:
    """Find the seams in a trace.

    `threads` marks the rows on launching threads within the window. Forward seams come first, each kind in
    order of time. Nothing where no graph was broken: regions
    side by side are then blocks compiled one by one.
    """
    if facts is not None and facts.used and not facts.breaks:
        return []

    def rows_of(pattern: re.Pattern[str]) -> NDArray[np.intp]:
        return trace.rows(named=pattern, among=threads)

    owners = region_owners(facts) if facts is not None and facts.used else None
    bodies = rows_of(_BODY)
    backward_regions = rows_of(_BACKWARD)
    begins, ends = trace.ts_ns[backward_regions], trace.end_of(backward_regions)
    in_backward = intervals.which(begins, ends, trace.ts_ns[bodies]) >= 0
    forward = _graphs(trace, rows_of(_REGION), bodies[~in_backward])
    backward = _graphs(trace, backward_regions, bodies[in_backward])
    if owners is not None:
        _own_forward(trace, forward, owners)
        _own_backward(trace, backward, forward, rows_of(_FORWARD_NODE))
    launches = trace.rows(*HOST_CALL_KINDS, named=is_launch, among=threads)
    forward = _between_launches(trace, forward, launches)
    backward = _between_launches(trace, backward, launches)
    barriers = trace.ts_ns[rows_of(_BARRIER)]
    kept = rows_of(_ACCUMULATE)
    seams: list[Seam] = []
    for graphs, is_backward in ((forward, False), (backward, True)):
        for k in range(1, len(graphs.start)):
            owned = graphs.owners[k]
            if graphs.region[k] == graphs.region[k - 1] or (owners is not None and owned == ()):
                continue  # one graph in pieces, or compiled by itself and not cut off
            left, entered = int(graphs.end[k - 1]), int(graphs.start[k])
            crossed = intervals.before(barriers, left) != intervals.before(barriers, entered)
            if entered - left > REACH_NS and (not owned or crossed):
                continue
            stretches = _without(trace, kept, left, entered)
            seams.append(Seam(stretches=tuple(stretches), owners=owned or (), backward=is_backward))
    return seams


def _without(trace: Trace, rows: NDArray[np.intp], start: int, end: int) -> list[tuple[int, int]]:
    """Return the stretch less what autograd does in any program: handing gradients to parameters."""
    inside = rows[intervals.within(trace.ts_ns[rows], start, end)]
    gap_start, gap_end = intervals.gaps(trace.ts_ns[inside], trace.end_of(inside), start, end)
    return list(zip(gap_start.tolist(), gap_end.tolist(), strict=True))
