"""Counters that the run itself keeps: allocator statistics, compilations, the number of steps.

In: run.json and compile.json. Out: `StepCounters` without what a trace tells.
"""

from __future__ import annotations

from ...model.counters import BreakSite, Counter, StepCounters
from ...model.run import CompileFacts, Run

_MOST_BREAKS = 100
_MOST_RECOMPILES = 500
_ALLOCATOR = ("allocations", "segments", "peak_allocated_bytes")
_COMPILER = ("graph_breaks", "recompiles", "graphs")


def _steps_run(run: Run) -> int | None:
    last = [max(window.steps.index) for window in run.windows if window.steps.index]
    return max(last) + 1 if last else None


def _first_traced(run: Run) -> int | None:
    window = run.window("trace")
    return window.steps.index[0] if window is not None and window.steps.index else None


def _allocator(run: Run) -> dict[str, Counter]:
    window = run.window("baseline")
    if window is None or window.before is None or window.after is None or not window.steps.wall_ms:
        return {}
    before, after = window.before.allocator, window.after.allocator
    steps = len(window.steps.wall_ms)
    out: dict[str, Counter] = {}
    for name, keys in (
        ("allocations", ("allocation.all.allocated",)),
        ("segments", ("segment.all.allocated", "segment.all.freed")),
    ):
        if all(key in before and key in after for key in keys):
            grown = sum(after[key] - before[key] for key in keys)
            out[name] = Counter(value=round(grown / steps, 4))
    peak = after.get("allocated_bytes.all.peak")
    if peak is not None:
        out["peak_allocated_bytes"] = Counter(value=float(peak))
    return out


def _why_no_flops(run: Run | None) -> str:
    artefact = run.artefacts.get("flops") if run is not None else None
    reason = artefact.reason if artefact is not None else None
    return reason or "shapes of operators were not recorded"


def count_run(run: Run | None, facts: CompileFacts | None, *, gpu: bool) -> StepCounters:
    """Read the counters that need no trace."""
    values: dict[str, Counter] = {}
    absent: dict[str, str] = {}
    if run is not None and gpu:
        values |= _allocator(run)
    for name in _ALLOCATOR:
        if name not in values:
            absent[name] = "no baseline window with allocator statistics" if gpu else "no device in this run"
    if run is not None and run.flops is not None:
        values["flops"] = Counter(value=run.flops.flops)
    else:
        absent["flops"] = _why_no_flops(run)
    breaks: tuple[BreakSite, ...] = ()
    at_steps: list[int] = []
    again: tuple[BreakSite, ...] = ()
    if facts is None:
        absent |= dict.fromkeys(_COMPILER, "no compile.json")
    else:
        breaks = tuple(BreakSite(reason=item.reason, site=item.site) for item in facts.breaks[:_MOST_BREAKS])
        at_steps = sorted(step for item in facts.recompiles for step in item.steps)
        again = tuple(
            BreakSite(reason=item.guard, site=item.site) for item in facts.recompiles[:_MOST_BREAKS]
        )
        values |= {
            "graph_breaks": Counter(value=float(len(facts.breaks))),
            "recompiles": Counter(value=float(sum(item.count for item in facts.recompiles))),
            "graphs": Counter(value=float(facts.unique_graphs)),
        }
    flops = run.flops if run is not None else None
    return StepCounters(
        device="gpu" if gpu else "cpu",
        run_steps=_steps_run(run) if run is not None else None,
        values=values,
        absent=absent,
        breaks=breaks,
        recompile_steps=tuple(at_steps[:_MOST_RECOMPILES]),
        recompiles=again,
        first_step=_first_traced(run) if run is not None else None,
        flops_step=flops.step if flops is not None else None,
        flops_steps=flops.steps if flops is not None else 1,
    )
