"""The seams of broken graphs: where compiled code was left and entered again, and because of which break.

In: a trace, its launching threads, compile.json. Out: `Seam`s: stretches of host time that one graph
would not have, each with the breaks that it is owed to.

Within one run of compiled regions the first one's entry is needed by any compiled program; every later
cache lookup, wrapper prologue and eager fallback exists because the graph was broken. A region names its
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
from typing import TYPE_CHECKING

import numpy as np

from . import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..model.run import CompileFacts, GraphBreak, SourceSite
    from ..model.trace import Trace

__all__ = ["Seam", "find_seams", "region_owners"]

REACH_NS = 800_000
"""Regions further apart than this are one run only where a break is known to lie between them."""
_NEAR_LINES = 25
"""A statement may span lines: how far the line of a resumed function may lie from the break's."""

_REGION = re.compile(r"^Torch-Compiled Region(?:: *!?(?P<frame>\d+)/\d+)?")
_BACKWARD = re.compile(r"evaluate_function: CompiledFunctionBackward$")
_FORWARD_NODE = re.compile(r"^CompiledFunction$")
_BODY = re.compile(r"^## Call CompiledFxGraph|^inductor_cudagraph|CUDAGraph")
_ACCUMULATE = re.compile(r"evaluate_function: torch::autograd::AccumulateGrad$")
_BARRIER = re.compile(r"^(ProfilerStep#\d+|data|optimizer|zero_grad|backward|evaluation|Optimizer\.step#.*)$")
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)$")


@dataclass(frozen=True, slots=True)
class Seam:
    """One passage from compiled code to compiled code."""

    stretches: tuple[tuple[int, int], ...]
    """Host time of it, int64 ns: from the end of one graph's body to the beginning of the next one's."""
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
    """Return per frame number the breaks because of which that frame is a frame of its own.

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
            if away and min(away) <= _NEAR_LINES:
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
class _Regions:
    """Entries of compiled code in one direction, in order of time, (k,) each.

    What dynamo resumes after a break runs inside the region before it, so regions nest.
    """

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    owners: list[tuple[int, ...] | None]
    """Breaks that made each a region of its own; None where nothing tells."""


def _frame_of(name: str) -> int | None:
    match = _REGION.search(name)
    return int(match["frame"]) if match is not None and match["frame"] else None


def _forward(trace: Trace, rows: NDArray[np.intp], owners: dict[int, tuple[int, ...]] | None) -> _Regions:
    frames = [_frame_of(trace.names[code]) for code in trace.name[rows].tolist()]
    return _Regions(
        start=trace.ts_ns[rows],
        end=trace.end_ns[rows],
        owners=[None if owners is None or frame is None else owners.get(frame) for frame in frames],
    )


def _backward(trace: Trace, rows: NDArray[np.intp], forward: _Regions, nodes: NDArray[np.intp]) -> _Regions:
    """A region of backward is entered anew as the one before it, in backward's order, was cut off."""
    # The innermost region around a node is the last that began before it.
    at = np.searchsorted(forward.start, trace.ts_ns[nodes], side="right") - 1
    region_of = {int(trace.sequence[node]): int(k) for node, k in zip(nodes, at, strict=True) if k >= 0}
    owners: list[tuple[int, ...] | None] = [None] * len(rows)
    for k in range(1, len(rows)):
        before = region_of.get(int(trace.sequence[rows[k - 1]]))
        owners[k] = None if before is None else forward.owners[before]
    return _Regions(start=trace.ts_ns[rows], end=trace.end_ns[rows], owners=owners)


def find_seams(trace: Trace, threads: NDArray[np.bool_], facts: CompileFacts | None) -> list[Seam]:
    """Find the seams in a trace.

    Args:
        trace: the trace.
        threads: mask of the rows on launching threads, within the window.
        facts: compile.json; None for a bare trace, whose seams have no owner.

    Returns:
        Seams in order of time, forward ones first. Nothing where no graph was broken: regions side by
        side are then blocks compiled one by one.
    """
    if facts is not None and facts.used and not facts.breaks:
        return []
    names = trace.names

    def rows_of(pattern: re.Pattern[str]) -> NDArray[np.intp]:
        code = np.fromiter((bool(pattern.search(n)) for n in names), bool, len(names))
        return np.flatnonzero(code[trace.name] & threads)

    owners = region_owners(facts) if facts is not None and facts.used else None
    forward = _forward(trace, rows_of(_REGION), owners)
    backward = _backward(trace, rows_of(_BACKWARD), forward, rows_of(_FORWARD_NODE))
    body = rows_of(_BODY)
    bodies = trace.ts_ns[body], np.maximum.accumulate(trace.end_ns[body]) if len(body) else trace.ts_ns[body]
    barriers = np.sort(trace.ts_ns[rows_of(_BARRIER)])
    kept = rows_of(_ACCUMULATE)
    seams: list[Seam] = []
    for regions, is_backward in ((forward, False), (backward, True)):
        for k in range(1, len(regions.start)):
            owned = regions.owners[k]
            if owners is not None and owned == ():
                continue  # compiled by itself, not cut off
            left, entered = _passage(regions, k, bodies)
            apart = int(regions.start[k]) - left
            crossed = np.searchsorted(barriers, left) != np.searchsorted(barriers, regions.start[k])
            if apart > REACH_NS and (not owned or crossed):
                continue
            stretches = _without(trace, kept, left, entered)
            seams.append(Seam(stretches=tuple(stretches), owners=owned or (), backward=is_backward))
    return seams


def _passage(
    regions: _Regions, k: int, bodies: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[int, int]:
    """Return when the graph before region k was done, and when the graph of region k began."""
    begin, end = bodies
    start, following = int(regions.start[k]), int(regions.end[k])
    if k + 1 < len(regions.start):
        following = min(following, int(regions.start[k + 1]))
    j = int(np.searchsorted(begin, start))
    entered = int(begin[j]) if j < len(begin) and begin[j] < following else start
    since = int(regions.start[k - 1])
    left = int(end[j - 1]) if j and begin[j - 1] >= since else int(regions.end[k - 1])
    return min(left, start), entered


def _without(trace: Trace, rows: NDArray[np.intp], start: int, end: int) -> list[tuple[int, int]]:
    """Return the stretch less what autograd does in any program: handing gradients to parameters."""
    low, high = np.searchsorted(trace.ts_ns[rows], [start, end])
    inside = rows[low:high]
    gap_start, gap_end = intervals.gaps(trace.ts_ns[inside], trace.end_ns[inside], start, end)
    return list(zip(gap_start.tolist(), gap_end.tolist(), strict=True))
