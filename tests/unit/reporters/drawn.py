"""The shared diagnosis with everything that charts draw, and a twin with markup in each of its strings."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import msgspec
from unit.reporters.sample import ITEM, LOADER, sample

from torch_bottleneck.model.codes import Part
from torch_bottleneck.model.counters import COUNTERS, Counter, StepCounters
from torch_bottleneck.model.diagnosis import Diagnosis
from torch_bottleneck.model.memory import (
    MemoryCategory,
    MemoryCurve,
    MemoryHolder,
    MemoryMark,
    MemoryShare,
    MemorySummary,
)
from torch_bottleneck.model.view import CodeNode, Lane, LoaderRow, Span, StepTimeline, WindowSteps
from torch_bottleneck.model.work import BreakRow, CompileSummary, ComputeFacts, MathRow, RecompileRow

MIB = 1 << 20
_PARTS = tuple(Part)


def _timeline() -> StepTimeline:
    names = ("data", "forward", "device idle: waiting for the next batch", "gemm", "aten::linear", "relu")
    waiting, dispatch = _PARTS.index(Part.INPUT), _PARTS.index(Part.DISPATCH)
    math, memory = _PARTS.index(Part.TENSOR_CORE), _PARTS.index(Part.MEMORY_BOUND)
    return StepTimeline(
        length_us=100_000.0,
        names=names,
        parts=_PARTS,
        step=4,
        of_steps=8,
        chosen="the median of 7 traced steps",
        lanes=(
            Lane(
                kind="phases",
                name="phases of the training thread",
                spans=(Span(0.0, 60_000.0, 0), Span(60_000.0, 40_000.0, 1)),
                events=2,
            ),
            Lane(
                kind="idle",
                name="GPU idle, by cause",
                spans=(
                    Span(0.0, 55_000.0, 2, waiting),
                    Span(70_000.0, 1_000.0, 2, dispatch),
                    Span(80_000.0, 2_000.0, 2, dispatch),
                    Span(90_000.0, 5_000.0, 2, waiting),
                ),
                events=4,
            ),
            Lane(
                kind="stream",
                name="stream 7",
                spans=(Span(55_000.0, 15_000.0, 3, math, 0, 12), Span(71_000.0, 9_000.0, 5, memory)),
                events=13,
                merged_below_us=40.0,
            ),
            Lane(
                kind="operators",
                name="training thread: operators",
                spans=(Span(60_000.0, 9_000.0, 4), Span(61_000.0, 1_000.0, 5, -1, 1)),
                events=2,
            ),
        ),
    )


def _memory() -> MemorySummary:
    at = [float(t) for t in range(20)]
    activations = [MIB * min(t, 20 - t) * 10 for t in range(20)]
    parameters = [MIB * 50] * 20
    return MemorySummary(
        peak_bytes=150 * MIB,
        events=20,
        peak_at=10.0,
        peak_when="backward of step 2",
        reserved_bytes=200 * MIB,
        capacity_bytes=1000 * MIB,
        composition=(
            MemoryShare(category=MemoryCategory.ACTIVATIONS, bytes=100 * MIB, share=0.667),
            MemoryShare(category=MemoryCategory.PARAMETERS, bytes=50 * MIB, share=0.333, how="by address"),
        ),
        holders=(
            MemoryHolder(
                category=MemoryCategory.ACTIVATIONS, bytes=60 * MIB, share=0.4, blocks=12, site=ITEM
            ),
        ),
        curve=MemoryCurve(
            at=at,
            live_bytes=[a + b for a, b in zip(activations, parameters, strict=True)],
            reserved_bytes=[200 * MIB] * 20,
            by_category={"parameters": parameters, "activations": activations},
        ),
        marks=(
            MemoryMark(name="step", begin=0.0, end=10.0, step=1),
            MemoryMark(name="step", begin=10.0, end=19.0, step=2),
        ),
        stacks="python",
        problems=("The ring was full.",),
    )


def _tree() -> CodeNode:
    count = CodeNode(
        name="torch.histc()", role="extra", ms=8.0, share=0.0915, file="/home/me/train.py", line=20
    )
    return CodeNode(
        name="step",
        role="step",
        ms=87.4,
        share=1.0,
        children=(
            CodeNode(
                name="loss.backward()",
                role="backward",
                ms=40.0,
                share=0.4577,
                price_ms=40.0,
                file="/home/me/train.py",
                line=61,
                function="main",
                children=(count,),
            ),
            CodeNode(
                name="evaluate()",
                role="extra",
                ms=30.0,
                share=0.3432,
                price_ms=29.0,
                bound=True,
                file="/home/me/train.py",
                line=70,
                function="main",
            ),
        ),
    )


def drawn() -> Diagnosis:
    """The sample run with step times, a timeline, memory, compiler and loader facts."""
    return msgspec.structs.replace(
        sample(),
        windows=(
            WindowSteps(name="warm-up", index=(0, 1, 2), ms=(900.0, 95.0, 90.0), of_steps=3),
            WindowSteps(
                name="baseline",
                clock="device",
                index=tuple(range(3, 13)),
                ms=(*tuple(87.0 + 0.1 * k for k in range(9)), None),
                left_out=(5,),
                of_steps=10,
            ),
            WindowSteps(name="trace", index=(13, 14, 15), ms=(117.0, 118.0, 116.3), of_steps=3),
            WindowSteps(name="memory", status="absent", reason="--no-memory"),
        ),
        timeline=_timeline(),
        tree=_tree(),
        loaders=(
            LoaderRow(
                cls="DataLoader",
                role="train",
                dataset="Photos",
                site=LOADER,
                batch_size=64,
                num_workers=2,
                wait_ms=54.0,
                production_ms=87.4,
                produced_in="workers",
                batch="float32[64, 3, 96, 96]",
                batch_bytes=7 * MIB,
                start_method="fork",
            ),
        ),
        memory=(_memory(),),
        compile=CompileSummary(
            mode="default",
            modules=("Net",),
            graphs=3,
            compile_seconds=12.5,
            breaks=(
                BreakRow(
                    reason="call to print()",
                    kind="print",
                    site=ITEM,
                    hint="move it out",
                    seams_per_step=2.0,
                    cost_ms=3.1,
                    share=0.036,
                ),
            ),
            recompiles=(RecompileRow(function="forward", guard="L['x'].size()[0] == 64", count=3, steady=1),),
            cudagraph_skips=("skipping cudagraphs due to mutated inputs",),
        ),
        counters=StepCounters(
            device="gpu",
            traced_steps=2,
            values={"syncs": Counter(value=24.0), "copied_bytes": Counter(value=3e9, low=2e9, high=4e9)},
            absent={"flops": "no shapes in the trace"},
        ),
        compute=ComputeFacts(
            math=(MathRow(dtype="bf16", tensor_cores=True, ms=12.0, share=0.95, peak_tflops=989.0),),
            utilisation=0.11,
            peak_tflops=989.0,
            peak_dtype="bf16",
            peak_source="data sheet",
            attention="fused",
            attention_backends=("flash",),
        ),
    )


def odd() -> Diagnosis:
    """What a page must take without a fuss: nothing, one of everything, and figures that are no figures."""
    nan = float("nan")
    base = drawn()
    assert base.timeline is not None
    return msgspec.structs.replace(
        base,
        step=msgspec.structs.replace(base.step, true_ci_ms=None, count=0),
        budget=(*base.budget[:2], msgspec.structs.replace(base.budget[2], ms=-1e-9, share=-1e-12)),
        windows=(
            WindowSteps(name="warm-up", index=(0,), ms=(None,), of_steps=1),
            WindowSteps(name="baseline", index=(1,), ms=(0.0,), of_steps=1),
            WindowSteps(name="a window of another version", index=(2, 900), ms=(nan, 5.0), of_steps=2),
        ),
        timeline=msgspec.structs.replace(
            base.timeline,
            step=None,
            names=(),
            lanes=(*base.timeline.lanes, Lane(kind="calls", name="nothing in it")),
        ),
        memory=(
            MemorySummary(peak_bytes=0, curve=MemoryCurve(unit="event", at=[0.0], live_bytes=[0])),
            MemorySummary(device=1, peak_bytes=5, curve=MemoryCurve(at=[0.0, 0.0], live_bytes=[1, 5])),
        ),
        kernels=(msgspec.structs.replace(base.kernels[0], ms=nan, share=nan, count=nan),),
        loaders=(LoaderRow(cls="", role="unknown"),),
        compile=CompileSummary(),
        compute=ComputeFacts(),
        counters=StepCounters(device="cpu"),
    )


def planted(value: Any, markup: str) -> Any:
    """Return the struct, tuple or dict with every free string in it replaced by `markup`.

    Strings that only take listed values (literals, enumerations) stay: nothing else decodes into them.
    """
    if isinstance(value, msgspec.Struct):
        changed = {}
        for field in msgspec.structs.fields(value):
            item = getattr(value, field.name)
            options = [field.type, *get_args(field.type)]
            if not any(get_origin(option) is Literal for option in options):
                changed[field.name] = planted(item, markup)
        return msgspec.structs.replace(value, **changed)
    if type(value) is str:
        return markup
    if isinstance(value, (tuple, list)):
        return type(value)(planted(item, markup) for item in value)
    if isinstance(value, dict):
        # Keys of our own tables stay, or their rows would not be shown at all.
        return {
            key if key in COUNTERS else f"{markup}{i}": planted(item, markup)
            for i, (key, item) in enumerate(value.items())
        }
    return value
