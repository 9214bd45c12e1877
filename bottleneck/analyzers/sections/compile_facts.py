"""What torch.compile did: breaks with their price, recompilations with the sizes that changed.

In: facts of one rank. Out: `CompileSummary`, None where nothing was compiled.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from ...model.codes import Part, WhatIf
from ...model.run import CompileEvent, CompileFacts, GraphBreak, Recompile, SourceSite
from ...model.work import BreakRow, ChangedSize, CompileSummary, RecompileRow
from ..base import Facts

_BREAK_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("item", (".item", "tensor.item", "_local_scalar_dense", "scalar", "tolist")),
    (
        "print",
        ("print", "logging", "logger", "time.perf_counter", "time.time", "time.monotonic", "warnings.warn"),
    ),
    ("branch", ("data-dependent", "branch", "jump", "generic_jump", "dynamic control flow")),
    ("disabled", ("disable", "graph_break()", "skip function")),
    # Dynamo's own advice for C extensions, and for operators without a fake implementation.
    ("unsupported", ("custom operator", "fake tensor")),
)

_TENSOR_SIZE = re.compile(
    r"tensor '(?P<tensor>[^']+)' size mismatch at index (?P<dim>\d+)\. "
    r"expected (?P<old>\d+), actual (?P<new>\d+)"
)
_SYMBOL_SIZE = re.compile(
    r"(?P<tensor>[\w\[\]'\".]+?)\.size\(\)\[(?P<dim>\d+)\] *(?P<op>==|!=|<=|>=|<|>) *(?P<value>\d+)"
)
_INTEGER = re.compile(r"^(?P<tensor>L\['\w+'\](?:\.\w+|\['?\w+'?\])*) *== *(?P<value>-?\d+)$")

_SKIP_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_SKIP_CAUSES: tuple[tuple[str, str], ...] = (
    (
        "mutated inputs",
        "an input of the graph is changed in place: write the result to a new tensor and return it",
    ),
    ("cpu device", "the graph uses or creates a tensor on the CPU: create it on the device"),
    ("dynamic shape", "the graph has dynamic shapes: compile with dynamic=False and few sizes, or pad"),
    ("incompatible op", "an operator cannot be captured: keep it out of the compiled function"),
    ("multiple devices", "the graph spans several devices: compile per device"),
    ("complex memory overlap", "an input overlaps itself in memory: call contiguous() on it first"),
    ("deterministic", "an operator needs another implementation under deterministic algorithms"),
    ("unsupported", "an operator cannot be captured: keep it out of the compiled function"),
)


def break_kind(broken: GraphBreak) -> str:
    """Return the kind of break, as far as a rewrite depends on it."""
    # The hint names the call where the reason is general, like "function marked as skipped".
    for text in (broken.reason.lower(), broken.hint.lower()):
        for kind, words in _BREAK_KINDS:
            if any(word in text for word in words):
                return kind
    return "other"


def skip_cause(reason: str) -> str:
    """Return why a CUDA graph was skipped and what to do; empty if unknown."""
    text = reason.lower()
    return next((cause for words, cause in _SKIP_CAUSES if words in text), "")


def skip_site(reason: str) -> SourceSite | None:
    """Return the user's line in inductor's skip reason, None if there is none."""
    lines = _SKIP_LINE.findall(reason)
    if not lines:
        return None
    file, line, function = lines[-1]
    return SourceSite(file=file, line=int(line), function=function)


def skip_words(reason: str) -> str:
    """Return the reason on one line, without inductor's repeated prefix and its stack."""
    text = reason.strip().partition(". Found from")[0].splitlines()[0] if reason.strip() else ""
    while text.startswith("skipping cudagraphs due to "):
        text = text.removeprefix("skipping cudagraphs due to ")
    return text


def changed_sizes(guards: Sequence[str]) -> tuple[ChangedSize, ...]:
    """Return the dimensions that changed according to the failed guards, with all sizes seen."""
    seen: dict[tuple[str, int | None], set[int]] = defaultdict(set)
    for guard in guards:
        for found in _TENSOR_SIZE.finditer(guard):
            seen[found["tensor"], int(found["dim"])] |= {int(found["old"]), int(found["new"])}
        for found in _SYMBOL_SIZE.finditer(guard):
            known = seen[found["tensor"], int(found["dim"])]
            if found["op"] == "==":
                known.add(int(found["value"]))
        number = _INTEGER.match(guard.strip())
        if number is not None:
            seen[number["tensor"].strip(), None].add(int(number["value"]))
    return tuple(
        ChangedSize(tensor=tensor, dim=dim, values=tuple(sorted(values)))
        for (tensor, dim), values in sorted(seen.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    )


def _advice(sizes: tuple[ChangedSize, ...]) -> str:
    """Say which dimension to mark dynamic, or which sizes to pad to."""
    parts = []
    for size in sizes:
        name = size.tensor.removeprefix("L['").removesuffix("']") if size.dim is not None else size.tensor
        shown = ", ".join(str(v) for v in size.values[:8]) + (", ..." if len(size.values) > 8 else "")
        if size.dim is None:
            parts.append(f"{name} is a number that changes ({shown}): pass it as a tensor")
            continue
        text = f"torch._dynamo.mark_dynamic({name}, {size.dim})"
        if len(size.values) > 1:
            text += f" (sizes seen: {shown}), or pad to {_buckets(size.values)}"
        parts.append(text)
    return "; ".join(parts)


def _buckets(values: tuple[int, ...]) -> str:
    """Name a few sizes that cover all those seen."""
    step = size_multiple(values)
    first, last = -(-min(values) // step) * step, -(-max(values) // step) * step
    return ", ".join(str(size) for size in range(first, last + 1, step))


def size_multiple(values: Sequence[int]) -> int:
    """Return the least power of two (at least 8) such that four of its multiples cover these sizes."""
    step = 8
    while -(-max(values) // step) - -(-min(values) // step) >= 4:
        step *= 2
    return step


def _breaks(facts: Facts, compiled: CompileFacts) -> tuple[BreakRow, ...]:
    per_step: dict[int, float] = defaultdict(float)
    host: dict[int, float] = defaultdict(float)
    cost: dict[int, float] = defaultdict(float)
    shared: set[int] = set()
    count = len(compiled.breaks)
    for price in facts.timeline.seams:
        owners = tuple(i for i in (price.owners or range(count)) if i < count)
        for i in owners:
            per_step[i] += price.per_step / len(owners)
            host[i] += price.host_ms / len(owners)
            cost[i] += (price.cost_ms or 0.0) / len(owners)
        if len(owners) > 1:
            shared.update(owners)
    priced = facts.ask(WhatIf.SEAMS_GONE) is not None
    rows = [
        BreakRow(
            reason=broken.reason.strip().split("\n", 1)[0] or "no reason given",
            kind=break_kind(broken),
            site=broken.site,
            hint=broken.hint,
            frames=max(1, len(broken.stacks) + len(broken.skipped)),
            seams_per_step=per_step.get(i),
            host_ms=host.get(i),
            cost_ms=cost.get(i, 0.0) if priced and facts.timeline.seams else None,
            share=cost.get(i, 0.0) / facts.true_ms
            if priced and facts.timeline.seams and facts.true_ms
            else None,
            shared=i in shared,
        )
        for i, broken in enumerate(compiled.breaks)
    ]
    return tuple(sorted(rows, key=lambda row: -(row.cost_ms or 0.0)))


def _same_function(recompile: Recompile, event: CompileEvent) -> bool:
    if recompile.site is None or event.site is None:
        return recompile.frame == event.frame
    return (recompile.site.file, recompile.site.line) == (event.site.file, event.site.line)


def _recompiles(facts: Facts, compiled: CompileFacts) -> tuple[RecompileRow, ...]:
    baseline = facts.run.window("baseline") if facts.run is not None else None
    first = baseline.steps.index[0] if baseline is not None and baseline.steps.index else None
    rows = []
    for item in compiled.recompiles:
        again = [
            event
            for event in compiled.compiles
            if event.recompile_reason is not None and _same_function(item, event)
        ]
        numbers = {event.compile_id for event in again}
        # Backward is compiled under the number of its forward.
        seconds = [e.seconds for e in compiled.compiles if e.compile_id in numbers and e.seconds is not None]
        sizes = changed_sizes([event.recompile_reason or "" for event in again] or [item.guard])
        rows.append(
            RecompileRow(
                function=item.site.function if item.site is not None else item.frame,
                site=item.site,
                guard=item.guard,
                count=item.count,
                steady=sum(step >= first for step in item.steps) if first is not None else 0,
                seconds=sum(seconds) if seconds else None,
                steps=tuple(item.steps),
                sizes=sizes,
                advice=_advice(sizes),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.steady, -row.count)))


def compile_summary(facts: Facts) -> CompileSummary | None:
    """Return what was compiled, what broke, and what it costs."""
    compiled, work = facts.compile, facts.timeline.compiled
    if compiled is None or not compiled.used:
        return None
    seams = facts.ask(WhatIf.SEAMS_GONE)
    baseline = facts.run.window("baseline") if facts.run is not None else None
    first = baseline.steps.index[0] if baseline is not None and baseline.steps.index else None
    seconds = [event.seconds for event in compiled.compiles if event.seconds is not None]
    before = [
        event.seconds
        for event in compiled.compiles
        if event.seconds is not None and first is not None and event.step is not None and event.step < first
    ]
    steps = [event.step for event in compiled.compiles if event.step is not None]
    compiling = facts.timeline.part_ms(Part.COMPILE)
    return CompileSummary(
        mode=compiled.mode or "",
        modules=tuple(compiled.compiled_modules),
        graphs=compiled.unique_graphs or None,
        compile_seconds=sum(seconds) if seconds else None,
        before_steady_seconds=sum(before) if before else None,
        last_compile_step=max(steps) if steps else None,
        breaks=_breaks(facts, compiled),
        seams_ms=seams.saves_ms if seams is not None else None,
        recompiles=_recompiles(facts, compiled),
        recompile_ms_per_step=compiling if compiling > 0 else None,
        limit_hit=tuple(compiled.limit_hit),
        cudagraph_skips=tuple(skip_words(text) for text in compiled.cudagraph_skips),
        cudagraph_skip_causes=tuple(skip_cause(text) for text in compiled.cudagraph_skips),
        graph_launches_per_step=work.graph_launches if work is not None else None,
        compiled_kernel_share=work.kernel_share if work is not None else None,
        compiled_time_share=work.time_share if work is not None else None,
        eager_in_seams=work.eager_in_seams if work is not None else None,
    )
