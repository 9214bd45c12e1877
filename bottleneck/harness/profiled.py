"""What a stopped profile of torch's holds, in its own form; beside `torch_private`, for the same reason.

In: a `torch.profiler.profile` that has been stopped. Out: calls of operators, with what they were given and
where they stand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch

from ..model.flops import OperatorCall

_OPERATOR = re.compile(r"\w+::\w+")
"""Names of operators, other libraries' too: `aten::mm`, `c10d::allreduce_`. Nodes of a backward have more."""


def operator_calls(profile: Any, names: set[str]) -> list[OperatorCall] | None:
    """Return the recorded calls of some operators from a stopped profile; None if torch gives no shapes.

    Read from kineto's own list: the public event list first builds a Python object for every event
    of the profile, which takes seconds.
    """
    results = getattr(getattr(profile, "profiler", None), "kineto_results", None)
    events = results.events() if results is not None else None
    if events is None:
        return None
    found: list[OperatorCall] = []
    for event in events:
        name = event.name()
        if name not in names:
            continue
        if not all(hasattr(event, part) for part in ("shapes", "dtypes", "concrete_inputs")):
            return None
        found.append(
            OperatorCall(
                name=name,
                shapes=event.shapes(),
                dtypes=event.dtypes(),
                values=list(event.concrete_inputs()),
                began_ns=event.start_ns() if hasattr(event, "start_ns") else 0,
            )
        )
    return found


Mark: TypeAlias = AbstractContextManager[object]


def mark_of(name: str) -> Mark | None:
    """Return a mark for the profiler that is no operator: no tracing and no mode of the script's sees it.

    None where torch has none; `record_function` calls two operators.
    """
    mark = getattr(getattr(torch._C, "_profiler", None), "_RecordFunctionFast", None)
    return mark(name) if mark is not None else None


def record_operators(on: bool) -> None:
    """Have the profiler record what this thread calls, as it does by itself, or not; where torch can."""
    switch = getattr(getattr(torch._C, "_autograd", None), "_enable_record_function", None)
    if switch is not None:
        switch(on)


def operators_inside(
    profile: Any, marks: Collection[str]
) -> tuple[dict[str, list[tuple[str, int]]], Counter[str]]:
    """Return what a stopped profile has inside `record_function` marks: operators, each with its place.

    The outermost operators inside each mark, by the mark's name, as (name, how many calls of that name began
    before it); and how many calls of each name there are.
    """
    results = getattr(getattr(profile, "profiler", None), "kineto_results", None)
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in marks}
    counts: Counter[str] = Counter()
    spans = [
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.start_thread_id(), event.name())
        for event in (results.events() if results is not None else ())
        if _OPERATOR.fullmatch(event.name()) or event.name() in found
    ]
    inside: dict[int, tuple[int, str, int]] = {}
    """By thread: the end of the mark that it is in, its name, and the end of the last outermost operator."""
    for begin, end, thread, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        if name in found:
            inside[thread] = end, name, 0
            continue
        mark_end, mark, last = inside.get(thread, (0, "", 0))
        if last <= begin < mark_end:
            found[mark].append((name, counts[name]))
            inside[thread] = mark_end, mark, end
        counts[name] += 1
    return found, counts
