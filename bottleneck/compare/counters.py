"""Compares counters: which grew beyond their limit.

In: two baselines and the limits. Out: `CounterRow`s. A counter has no noise, so one run a side is
enough; where the runs of one side disagree nevertheless, it fails only if its least is beyond the
limit that the other side's most gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..model.baseline import Baseline
from ..model.compare import CounterRow
from ..model.counters import COUNTERS, Counter, CounterSpec, StepCounters
from ..model.gate import CounterLimit

Status = Literal["same", "better", "within", "worse", "unstable", "unknown", "off"]
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class _Value:
    """A counter of one side with the range over its runs."""

    value: float
    least: float
    most: float


def compare_counters(
    base: Baseline, head: Baseline, limits: Mapping[str, CounterLimit] | None = None
) -> tuple[CounterRow, ...]:
    """Compare what both sides counted, in the order of the table of counters."""
    if base.counters is None or head.counters is None:
        return ()
    steps = [s for s in (base.counters.run_steps, head.counters.run_steps) if s is not None]
    shared = min(steps) if len(steps) == 2 else None
    rows = []
    for name in COUNTERS:
        wanted = (limits or {}).get(name) or CounterLimit()
        row = _row(name, base, head, wanted=wanted, shared_steps=shared)
        if row is not None:
            rows.append(row)
    return tuple(rows)


def _value(side: Baseline, name: str, shared_steps: int | None) -> _Value | None:
    assert side.counters is not None
    counter = side.counters.values.get(name)
    if counter is None:
        return None
    steps = side.counters.recompile_steps
    if name == "recompiles" and shared_steps is not None and len(steps) == counter.value:
        # The longer run had more occasions; count what both have lived through.
        seen = float(sum(step < shared_steps for step in steps))
        return _Value(seen, seen, seen)
    least, most = side.unstable.get(name, (counter.value, counter.value))
    return _Value(counter.value, least, most)


def _row(
    name: str, base: Baseline, head: Baseline, *, wanted: CounterLimit, shared_steps: int | None
) -> CounterRow | None:
    assert base.counters is not None
    assert head.counters is not None
    spec = COUNTERS[name]
    one, other = _value(base, name, shared_steps), _value(head, name, shared_steps)
    if one is None and other is None:
        return None
    status: Status
    limit: float | None = None
    note = ""
    if one is None or other is None:
        side = base.counters if one is None else head.counters
        where = "base" if one is None else "head"
        # New in head, there is nothing to hold it against; lost in head, a check went missing.
        status = "unknown" if one is not None and wanted.gate else "off"
        note = f"not measured in {where}: {side.absent.get(name, 'no reason given')}"
    else:
        limit = _limit(one.most, spec, wanted)
        status = _judge(one, other, limit)
        status = "off" if not wanted.gate and status in ("worse", "unstable") else status
        note = _note(name, base, head)
        if status == "worse" and _other_steps(name, base, head, other.value, wanted):
            status, note = "unstable", "other steps were counted, and the steps are not all alike"
        if status in ("same", "better", "within") and wanted.gate:
            more = _in_some_steps(name, base.counters, head.counters, wanted)
            if more:
                status, note = "worse", more
    return CounterRow(
        name=name,
        title=spec.title,
        unit=spec.unit,
        scope=spec.scope,
        base=None if one is None else one.value,
        head=None if other is None else other.value,
        status=status,
        limit=limit,
        note=note,
    )


def _limit(base: float, spec: CounterSpec, wanted: CounterLimit) -> float:
    tolerance = spec.tolerance if wanted.tolerance is None else wanted.tolerance
    slack = spec.slack if wanted.slack is None else wanted.slack
    return base * (1.0 + tolerance) + slack


def _judge(one: _Value, other: _Value, limit: float) -> Status:
    if other.least > limit + _EQUAL:
        return "worse"
    if other.value > limit + _EQUAL:
        return "unstable"
    if abs(other.value - one.value) <= _EQUAL:
        return "same"
    return "better" if other.value < one.value else "within"


def _note(name: str, base: Baseline, head: Baseline) -> str:
    notes = []
    for side, label in ((base, "base"), (head, "head")):
        if name in side.unstable:
            least, most = side.unstable[name]
            notes.append(f"{label} varies from run to run: {least:g} to {most:g}")
    assert head.counters is not None
    counter = head.counters.values[name]
    if not notes and counter.high is not None and counter.high > counter.value:
        notes.append(f"in some steps up to {counter.high:g}")
    return "; ".join(notes)


def _most(counter: Counter) -> float:
    return counter.value if counter.high is None else counter.high


def _other_steps(name: str, base: Baseline, head: Baseline, value: float, wanted: CounterLimit) -> bool:
    """Whether a growth may come from counting other steps than base did, of a program whose steps differ."""
    assert base.counters is not None
    assert head.counters is not None
    if name == "flops":
        one, other = ((side.flops_step, side.flops_steps) for side in (base.counters, head.counters))
        workload = head.workload
        alike = workload is not None and workload.distinct_shapes == 1
        return (None in one or one != other) and not alike
    if COUNTERS[name].scope != "step" or base.counters.first_step is None:
        return False
    same = base.counters.first_step == head.counters.first_step
    most = _most(base.counters.values[name])
    return (
        not same and most > base.counters.values[name].value and value <= _limit(most, COUNTERS[name], wanted)
    )


def _in_some_steps(name: str, base: StepCounters, head: StepCounters, wanted: CounterLimit) -> str:
    """Look at the step that counts most, where both sides counted the very same steps.

    The value is a median: what happens every fourth step does not move it. With other steps
    traced the range says nothing, since a step that logs may lie in one window and not the other;
    and only counters of which any growth fails are as exact as that.
    """
    spec = COUNTERS[name]
    tolerance = spec.tolerance if wanted.tolerance is None else wanted.tolerance
    if spec.scope != "step" or tolerance > 0 or base.first_step is None:
        return ""
    if (base.first_step, base.traced_steps) != (head.first_step, head.traced_steps):
        return ""
    before, after = _most(base.values[name]), _most(head.values[name])
    if after <= _limit(before, spec, wanted) + _EQUAL:
        return ""
    return f"in some steps up to {after:g}, before {before:g}"
