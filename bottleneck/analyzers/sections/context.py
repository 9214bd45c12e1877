"""The context: facts and settings as one flat mapping that fix conditions are checked against.

In: a run's records and its timeline. Out: the mapping; keys as listed in model/context.py. A key
that could not be measured is absent, never a default value.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ...model.codes import Part, WhatIf
from ...model.diagnosis import StepSummary
from ...model.memory import MemorySummary
from ...model.run import CompileFacts, JsonValue, LoaderFacts, Run, Window
from ...timeline.cpu.reading import waiting_threads
from ...timeline.result import SpanKind, Timeline
from ...timeline.steps.loop_lines import MAIN_SHARE
from ...timeline.steps.supply import batches_per_iterator, is_bursty, training_loader
from .compile_facts import break_kind, changed_sizes, size_multiple
from .context_keys import CONTEXT_KEYS
from .memory_context import memory_context

_FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")
_WITHOUT_FOREACH = ("LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch.optim whose constructors have no such argument (torch 2.6 to 2.13)."""
_ON_ONE_VECTOR = ("LBFGS",)
"""Whose else they may be: it puts all parameters into one vector, and updates nothing one by one."""
_SLOWEST_FIRST = ("for-loop", "foreach", "fused")

_STEPS_WITH = {
    "loader.kept_ms": WhatIf.WORKERS_KEPT,
    "loader.in_main_ms": WhatIf.INPUT_IN_MAIN,
    "loader.handed_ms": WhatIf.BATCHES_HANDED_OVER,
    "loader.one_thread_ms": WhatIf.WORKERS_ONE_THREAD,
    "host.on_device_ms": WhatIf.OPERATORS_ON_DEVICE,
    "kernels.unfilled_ms": WhatIf.FILLS_GONE,
    "kernels.aligned_ms": WhatIf.SIZES_ALIGNED,
    "outputs.counted_ms": WhatIf.IDLE_ROWS_GONE,
    "math.converted_once_ms": WhatIf.CONVERTED_ONCE,
}
"""The step with something changed, where that is an answer."""


def _compute_capability(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _machine(run: Run) -> dict[str, JsonValue]:
    out: dict[str, JsonValue] = {"distributed.world_size": run.world_size}
    device = run.devices[0] if run.devices else None
    if device is not None:
        out["device.kind"] = device.kind
        out["device.name"] = device.name or None
        out["device.capability"] = _compute_capability(device.compute_capability)
        out["device.total_bytes"] = device.total_bytes
    out["host.cores"] = run.host.cores
    if run.host.cores and run.host.cores_at_start:
        out["host.cores_taken"] = run.host.cores_at_start - run.host.cores
    version = run.host.torch.split("+")[0].split(".")
    if len(version) >= 2:
        out["torch.version"] = ".".join(version[:2])
    return out


def _loader(loaders: Sequence[LoaderFacts] | None) -> dict[str, JsonValue]:
    if loaders is None:
        return {}
    loader = training_loader(loaders)
    if loader is None:
        return {"loader.present": False, "loader.pin_memory": False}
    out: dict[str, JsonValue] = {
        "loader.present": True,
        "loader.num_workers": loader.num_workers,
        "loader.pin_memory": loader.pin_memory,
        "loader.persistent_workers": loader.persistent_workers,
        "loader.iterable": loader.iterable,
        "loader.prefetch_factor": loader.prefetch_factor,
        "loader.start_method": loader.start_method,
        "loader.batches_per_iterator": batches_per_iterator(loader),
    }
    if loader.duplicated_samples_share is not None:
        out["loader.duplicated"] = loader.duplicated_samples_share > 0.01
    if loader.batch is not None:
        out["batch.padding_share"] = loader.batch.padding_share
        out["batch.beyond_share"] = loader.batch.beyond_share
    return out


def _step(run: Run, step: StepSummary) -> dict[str, JsonValue]:
    out: dict[str, JsonValue] = {"step.true_ms": step.true_ms}
    window = run.window("baseline") or run.window("trace")
    if window is not None:
        if window.steps.micro_steps:
            out["step.micro_steps"] = statistics.fmean(window.steps.micro_steps)
        sizes = [size for size in window.steps.batch_elements if size > 0]
        if len(sizes) >= 4:
            # The short last batch of an epoch is not variation.
            usual = statistics.mode(sizes)
            out["step.varying_shapes"] = sum(size != usual for size in sizes) > 0.2 * len(sizes)
        if window.steps.gc_ms:
            out["gc.ms_per_step"] = statistics.fmean(window.steps.gc_ms)
    return out


def _optimizer(run: Run) -> dict[str, JsonValue]:
    if not run.optimizers:
        return {}
    main = max(run.optimizers, key=lambda item: item.parameter_bytes)
    flavours = {item.flavour for item in run.optimizers}
    torchs = main.module.startswith("torch")
    out: dict[str, JsonValue] = {
        "optimizer.cls": main.cls,
        "optimizer.parameter_dtype": main.parameter_dtype or None,
        "optimizer.can_fuse": main.cls in _FUSABLE and torchs,
        "optimizer.can_foreach": main.cls not in (_WITHOUT_FOREACH if torchs else _ON_ONE_VECTOR),
    }
    if torchs:
        out["optimizer.of_torch"] = main.cls
    denormal = [item.denormal_share for item in run.optimizers if item.denormal_share is not None]
    if denormal:
        out["denormals.share"] = max(denormal)
    if main.flavour != "unknown":
        out["optimizer.flavour"] = next(flavour for flavour in _SLOWEST_FIRST if flavour in flavours)
    if len(flavours) > 1:
        each = [f"{item.cls} {item.flavour.replace('unknown', 'not')}" for item in run.optimizers]
        out["optimizer.each"] = ", ".join(dict.fromkeys(each))
    return out


def _compile(facts: CompileFacts | None) -> dict[str, JsonValue]:
    if facts is None:
        return {}
    out: dict[str, JsonValue] = {"compile.used": facts.used}
    if not facts.used:
        if facts.compiled_modules:
            out["compile.unused"] = " and ".join(facts.compiled_modules[:3])
        # False rather than absent: fixes for recompilations do not apply.
        return out | {"compile.recompiles": 0, "compile.dynamic_sizes": False}
    failures = [event.fail for event in facts.compiles if event.fail]
    if failures and len(failures) == len(facts.compiles) and not facts.unique_graphs:
        out["compile.failed"] = failures[0]
    out["compile.mode"] = facts.mode
    out["compile.breaks"] = len(facts.breaks)
    out["compile.recompiles"] = sum(item.count for item in facts.recompiles)
    out["compile.cudagraph_skips"] = len(facts.cudagraph_skips)
    guards = " ".join(item.guard.lower() for item in facts.recompiles)
    out["compile.dynamic_sizes"] = "size" in guards or "shape" in guards or "stride" in guards
    reasons = [event.recompile_reason for event in facts.compiles if event.recompile_reason]
    sizes = [size for size in changed_sizes(reasons) if size.dim is not None and len(size.values) > 1]
    if sizes:
        most = max(sizes, key=lambda size: len(size.values))
        shown = ", ".join(str(value) for value in most.values[:4])
        out["compile.dynamic_tensor"] = most.tensor
        out["compile.dynamic_dim"] = most.dim
        out["compile.dynamic_values"] = f"{shown}, ..." if len(most.values) > 4 else shown
        out["compile.size_multiple"] = size_multiple(most.values)
    if facts.breaks:
        kinds = {break_kind(item) for item in facts.breaks}
        out["compile.break_kinds"] = sorted(kinds)
    return out


def _host_share(timeline: Timeline, *kinds: SpanKind) -> float:
    """Share of the other host work that these kinds make up."""
    spans = [span for span in timeline.spans if span.part is Part.HOST]
    total = sum(span.exposed_ms for span in spans)
    return sum(span.exposed_ms for span in spans if span.kind in kinds) / total if total > 0 else 0.0


def _unnamed(timeline: Timeline) -> dict[str, JsonValue]:
    """Return whether samples of the stack show no call that other host work could be; empty without any."""
    answer = timeline.what_ifs.get(WhatIf.HOST_WORK_GONE)
    if timeline.tree is None or answer is None:
        return {}
    if any(span.kind is SpanKind.RARE for span in timeline.spans):
        return {"host.unnamed": False}
    seen = sum(node.price_ms or 0.0 for node in timeline.extras)
    return {"host.unnamed": seen < MAIN_SHARE * answer.saves_ms}


def _made(timeline: Timeline) -> dict[str, JsonValue]:
    made = timeline.tree.making_tensors() if timeline.tree is not None else []
    return {"host.tensors_made_in": made[0].role} if made else {}


def _loop(timeline: Timeline) -> dict[str, JsonValue]:
    """Return the share of the step in one Python loop; None if no loop was seen."""
    loop, answer = timeline.loop, timeline.what_ifs.get(WhatIf.LOOP_GONE)
    if loop is None or answer is None or timeline.true_ms <= 0:
        return {"loop.share": 0.0, "loop.carried": False}
    return {"loop.share": answer.saves_ms / timeline.true_ms, "loop.carried": loop.carried}


def _grown(window: Window, counter: str) -> int | None:
    if window.before is None or window.after is None:
        return None
    before, after = (side.allocator.get(counter) for side in (window.before, window.after))
    return None if before is None or after is None else after - before


def _allocator(run: Run) -> dict[str, JsonValue]:
    window = run.window("baseline")
    if window is None or window.after is None or not window.after.allocator:
        return {}
    steps = max(1, len(window.steps.wall_ms))
    out: dict[str, JsonValue] = {}
    for key, counter in (
        ("allocator.retries_per_step", "num_alloc_retries"),
        ("allocator.device_allocs_per_step", "num_device_alloc"),
        ("allocator.device_frees_per_step", "num_device_free"),
    ):
        grown = _grown(window, counter)
        if grown is not None:
            out[key] = grown / steps
    after = window.after.allocator
    reserved, allocated = after.get("reserved_bytes.all.peak"), after.get("allocated_bytes.all.peak")
    if reserved and allocated:
        out["allocator.reserved_over_allocated"] = reserved / allocated
        device = run.devices[0] if run.devices else None
        if device is not None and device.total_bytes:
            usable = device.total_bytes * (device.memory_fraction_cap or 1.0)
            out["allocator.headroom_share"] = max(0.0, 1.0 - reserved / usable)
    return out


def _calls(run: Run) -> dict[str, JsonValue]:
    calls = run.repeats
    if calls is None:
        return {}
    fed = {} if calls.fed_share is None else {"ungraded.fed_share": calls.fed_share}
    again = max(calls.share + calls.steady_share, calls.outside_share)
    return {"forward.repeated_share": again, **fed}


def _copied(run: Run, known: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    out: dict[str, JsonValue] = {}
    if run.graph is not None and run.graph.joined:
        out["copies.grown"] = True
    if run.copied is not None:
        out["copies.kept_share"] = run.copied.kept_bytes / run.copied.bytes
        out["copies.kept_fits"] = _fits(run.copied.held_bytes, known)
    return out


def _fits(more_bytes: JsonValue, known: Mapping[str, JsonValue]) -> bool | None:
    """Return whether the device would hold so much more at its peak; None where that is not known."""
    free, total = known.get("allocator.headroom_share"), known.get("device.total_bytes")
    if isinstance(free, float) and isinstance(total, int) and isinstance(more_bytes, int | float):
        return more_bytes <= free * total
    return None


def build_context(
    *,
    timeline: Timeline,
    step: StepSummary,
    run: Run | None,
    loaders: Sequence[LoaderFacts] | None,
    compile_facts: CompileFacts | None,
    memory: Sequence[MemorySummary] = (),
    extra: Mapping[str, JsonValue] | None = None,
) -> dict[str, JsonValue]:
    """Join everything known about one rank under the keys of `CONTEXT_KEYS`.

    The timeline's own entries win over those derived from counters; `memory` has the fullest device first.
    """
    out: dict[str, JsonValue] = {"step.true_ms": step.true_ms, "host.rare": "none"}
    out |= _loop(timeline) | {"loop.owner": timeline.loop_owner}
    out["host.before_update_share"] = _host_share(timeline, SpanKind.BEFORE_MODEL, SpanKind.IN_LOSS)
    out |= _unnamed(timeline) | _made(timeline)
    if timeline.extras:
        out["host.leaves_out"] = timeline.extras[0].leaves_out or None
    for key, question in _STEPS_WITH.items():
        answer = timeline.what_ifs.get(question)
        if answer is not None:
            out[key] = answer.step_ms
    if timeline.kind == "cpu":
        out["device.kind"] = "cpu"
        out["math.half"] = next(iter(run.half_types), None) if run is not None else None
    if run is not None:
        dropped = run.graph is not None and bool(run.graph.dropped or run.graph.unread)
        out["gradients.wasted"] = dropped or bool(run.settings.get("gradients.unused_share"))
        out |= _machine(run) | _step(run, step) | _optimizer(run) | _allocator(run)
        out |= {key: value for key, value in run.settings.items() if key in CONTEXT_KEYS}
        if waiting_threads(run) is not None:
            out["threads.useful"] = 1
        if run.masks is not None and run.masks.masked:
            out["attention.idle_masks"] = run.masks.idle / run.masks.masked
        out |= _calls(run) | _copied(run, out)
        trace = run.artefacts.get("trace")
        if run.profiles_itself and trace is not None and trace.status == "absent":
            out["profiler.always"] = True
        anomaly = run.settings.get("anomaly_mode")
        if isinstance(anomaly, bool):
            out["debug.anomaly"] = anomaly
        environment = {"debug.launch_blocking": run.launches_block, "allocator.caches": run.caches_memory}
        out |= {key: value for key, value in environment.items() if value is not None}
        out["calls.modes"] = run.settings.get("function_modes")
        torchscript = run.settings.get("torchscript")
        if isinstance(torchscript, bool):
            out["compile.torchscript"] = torchscript
    out |= _loader(loaders) | _compile(compile_facts)
    out |= timeline.context
    out["copies.offloaded_fits"] = _fits(out.get("copies.offloaded_bytes"), out)
    if "optimizer.of_torch" not in out or "dispatch.in_optimizer" not in out:
        # One of torch's own has a flag for it; the loop of one that a script brings it can mend.
        out["dispatch.in_optimizer"] = 0.0
    told = memory_context(run, memory)
    if "step.varying_shapes" in out:
        # From many steps' batches rather than from the few in the memory window.
        told.pop("step.varying_shapes", None)
    out |= told
    if loaders:
        wait = timeline.context.get("input.wait_share")
        share = float(wait) if isinstance(wait, (int, float)) else 0.0
        bursty = is_bursty(training_loader(loaders), rest_ms=timeline.true_ms * (1.0 - share))
        if bursty is not None:
            out["loader.bursty"] = bursty
    out |= dict(extra or {})
    return {key: value for key, value in out.items() if value is not None and key in CONTEXT_KEYS}
