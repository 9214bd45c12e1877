"""Rows of the page's tables: windows, kernels, memory, compiler, loaders, ranks.

In: a diagnosis. Out: frozen rows of clean text, with the numbers that tables are sorted by beside them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...model.codes import Part
from ..rows import root_of
from ..wording import clean, milliseconds, percent, place, sentence

if TYPE_CHECKING:
    from ...model.diagnosis import Diagnosis
    from ...model.memory import MemoryHolder, MemorySummary
    from ...model.run import SourceSite
    from ...model.view import LoaderRow

__all__ = [
    "CompileSection",
    "Facts",
    "KernelCells",
    "LoaderCells",
    "MemorySection",
    "RankCells",
    "WindowCells",
    "compile_section",
    "compute_facts",
    "kernel_rows",
    "loader_rows",
    "memory_sections",
    "rank_rows",
    "size",
    "window_rows",
]

Facts: TypeAlias = "tuple[tuple[str, str], ...]"

_ATTACHED = {
    "warm-up": "nothing, not counted",
    "baseline": "step timing only",
    "trace": "torch.profiler",
    "memory": "memory history",
    "after": "nothing, once more",
}
_LONGEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCells:
    """One window of the run."""

    name: str
    status: str
    attached: str
    steps: int
    median: str
    lowest: str
    highest: str
    clock: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCells:
    """One kernel or operator."""

    name: str
    part: int
    label: str
    count: str
    count_value: float
    ms: str
    ms_value: float
    share: str
    share_value: float
    width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySection:
    """Memory of one device."""

    device: int
    drawn: bool
    facts: Facts
    composition: tuple[tuple[str, str, str, float, str], ...]
    """Category, bytes as shown, share as shown, bytes, how it is known."""
    holders: tuple[tuple[str, str, str, str], ...]
    """Place, category, bytes, share."""
    lists: tuple[tuple[str, tuple[str, ...]], ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSection:
    """What torch.compile did."""

    facts: Facts
    breaks: tuple[tuple[str, str, str, str, str, str], ...]
    """Reason, place, seams per step, cost, share, hint."""
    recompiles: tuple[tuple[str, str, str, str, str], ...]
    """Function, place, times, guard, advice."""
    lists: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCells:
    """One DataLoader."""

    title: str
    where: str
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCells:
    """One rank."""

    rank: int
    step: str
    busy: str
    waits: str
    path: str


def size(value: float | None) -> str:
    """Word a number of bytes in binary units with three figures."""
    if value is None:
        return "not measured"
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or abs(amount) >= 100 else f"{amount:.3g} {unit}"


def _text(value: str) -> str:
    text = clean(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _facts(*pairs: tuple[str, str | None]) -> Facts:
    return tuple((name, value) for name, value in pairs if value)


def _known(value: float | None, form: str) -> str | None:
    return None if value is None else form.format(value)


def window_rows(diagnosis: Diagnosis) -> tuple[WindowCells, ...]:
    """Return the windows in the order of the run, the ones without steps with their reason."""
    rows = []
    for window in diagnosis.windows:
        ms = [t for t in window.ms if t is not None]
        like = statistics.median(ms) if ms else None
        note = window.status if window.status == "ok" else f"{window.status}: {clean(window.reason)}"
        rows.append(
            WindowCells(
                name=clean(window.name),
                status=note.removesuffix(": "),
                attached="torch.profiler" if window.clock == "trace" else _ATTACHED.get(window.name, ""),
                steps=window.of_steps,
                median=milliseconds(like),
                lowest=milliseconds(min(ms) if ms else None, like=like),
                highest=milliseconds(max(ms) if ms else None, like=like),
                clock=window.clock,
            )
        )
    return tuple(rows)


def kernel_rows(diagnosis: Diagnosis) -> tuple[KernelCells, ...]:
    """Return all kernels that the diagnosis holds."""
    largest = max((row.share for row in diagnosis.kernels), default=0.0)
    return tuple(
        KernelCells(
            name=_text(row.name),
            part=list(Part).index(row.part),
            label=row.part.value,
            count=f"{row.count:.4g}",
            count_value=row.count,
            ms=milliseconds(row.ms),
            ms_value=row.ms,
            share=percent(row.share),
            share_value=row.share,
            width=round(100 * max(row.share, 0.0) / largest, 2) if largest > 0 else 0.0,
        )
        for row in diagnosis.kernels
    )


def _place(site: SourceSite | None, root: str, other: str = "") -> str:
    return place(site, root=root, width=100) if site is not None else clean(other)


def memory_sections(diagnosis: Diagnosis) -> tuple[MemorySection, ...]:
    """Return one section per device."""
    root = root_of(diagnosis)
    return tuple(_memory(summary, root) for summary in diagnosis.memory)


def _memory(summary: MemorySummary, root: str) -> MemorySection:
    churn, spare = summary.churn, summary.headroom
    fragments = summary.fragmentation
    facts = _facts(
        (
            "Peak",
            f"{size(summary.peak_bytes)}{f', in {clean(summary.peak_when)}' if summary.peak_when else ''}",
        ),
        ("Stays between steps", size(summary.floor_bytes) if summary.floor_bytes is not None else None),
        ("Reserved", size(summary.reserved_bytes) if summary.reserved_bytes is not None else None),
        ("Device", size(summary.capacity_bytes) if summary.capacity_bytes is not None else None),
        ("Not told apart", percent(summary.unknown_share) if summary.unknown_share else None),
        (
            "Asked of the driver",
            f"{churn.allocs + churn.maps:.3g} times a step, {size(churn.bytes)}; given back "
            f"{churn.frees + churn.unmaps:.3g} times"
            if churn is not None
            else None,
        ),
        (
            "Fragmentation",
            f"{size(fragments.inactive_split_bytes)} free in {fragments.unfreeable_segments} segments that "
            "are partly used"
            if fragments is not None
            else None,
        ),
        (
            "Gradients alive in forward",
            size(summary.gradients_in_forward_bytes) if summary.gradients_in_forward_bytes else None,
        ),
        (
            "Room for the batch",
            f"{spare.factor:.2g}× the present one ({clean(spare.basis)})" if spare else None,
        ),
        ("Out of memory", _failed(summary, root) if summary.out_of_memory is not None else None),
        ("Stacks", clean(summary.stacks)),
    )
    leaks = tuple(
        f"{_place(leak.site, root, leak.where) or 'no stack'}: {size(leak.bytes_per_step)} a step, "
        f"{leak.blocks_per_step:.3g} blocks"
        + (f"; full in {leak.steps_left} steps" if leak.steps_left is not None else "")
        for leak in summary.leaks
    )
    spike = summary.spike
    spiked = tuple(_holder(holder, root) for holder in spike.holders) if spike is not None else ()
    lists = (
        ("Never freed", leaks),
        (f"Spike of {size(spike.above_bytes)} from" if spike is not None else "", spiked),
    )
    return MemorySection(
        device=summary.device,
        drawn=bool(summary.curve.at),
        facts=facts,
        composition=tuple(
            (clean(row.category.value), size(row.bytes), percent(row.share), row.bytes, clean(row.how))
            for row in summary.composition
        ),
        holders=tuple(
            (
                _place(row.site, root, row.where) or "no stack",
                clean(row.category.value),
                size(row.bytes),
                percent(row.share),
            )
            for row in summary.holders
        ),
        lists=tuple((title, rows) for title, rows in lists if rows),
        problems=tuple(clean(text) for text in summary.problems),
    )


def _holder(holder: MemoryHolder, root: str) -> str:
    where = _place(holder.site, root, holder.where) or "no stack"
    return f"{where}: {size(holder.bytes)}, {clean(holder.category.value)}"


def _failed(summary: MemorySummary, root: str) -> str:
    failed = summary.out_of_memory
    if failed is None:
        return ""
    parts = [
        f"{size(failed.requested_bytes)} asked for" if failed.requested_bytes is not None else "",
        f"{size(failed.device_free_bytes)} free" if failed.device_free_bytes is not None else "",
        _place(failed.site, root),
        clean(failed.when),
        "caught by the script" if failed.caught else "",
    ]
    return ", ".join(filter(None, parts)) or "an allocation failed"


def compile_section(diagnosis: Diagnosis) -> CompileSection | None:
    """Return what the compiler did, None where nothing was compiled or it was not watched."""
    summary = diagnosis.compile
    if summary is None:
        return None
    root, true_ms = root_of(diagnosis), diagnosis.step.true_ms
    seconds = summary.compile_seconds
    facts = _facts(
        ("Mode", clean(summary.mode)),
        ("Graphs", str(summary.graphs) if summary.graphs is not None else None),
        ("Compile time", f"{seconds:.1f} s in all" if seconds is not None else None),
        ("Last compilation", _known(summary.last_compile_step, "in step {:.0f}")),
        (
            "All seams cost",
            f"{milliseconds(summary.seams_ms, like=true_ms)} ms per step"
            if summary.seams_ms is not None
            else None,
        ),
        (
            "Recompiling costs",
            f"{milliseconds(summary.recompile_ms_per_step, like=true_ms)} ms per step"
            if summary.recompile_ms_per_step
            else None,
        ),
        ("Kernels from compiled code", _share(summary.compiled_kernel_share)),
        ("Device time in compiled code", _share(summary.compiled_time_share)),
        ("Eager between graphs", _known(summary.eager_in_seams, "{:.4g} launches per step")),
        ("CUDA graph launches", _known(summary.graph_launches_per_step, "{:.3g} per step")),
        ("Compiled", clean(", ".join(summary.modules[:6]))),
    )
    return CompileSection(
        facts=facts,
        breaks=tuple(
            (
                _text(row.reason),
                _place(row.site, root),
                f"{row.seams_per_step:.3g}" if row.seams_per_step is not None else "not measured",
                milliseconds(row.cost_ms, like=true_ms) + (" (shared evenly)" if row.shared else ""),
                percent(row.share),
                _text(row.hint),
            )
            for row in summary.breaks
        ),
        recompiles=tuple(
            (
                _text(row.function),
                _place(row.site, root),
                f"{row.count}, {row.steady} of them in steady state",
                _text(row.guard),
                _text(row.advice),
            )
            for row in summary.recompiles
        ),
        lists=tuple(
            (title, tuple(_text(text) for text in texts))
            for title, texts in (
                ("CUDA graphs skipped", summary.cudagraph_skip_causes or summary.cudagraph_skips),
                ("Given up: these run eagerly for good", summary.limit_hit),
            )
            if texts
        ),
    )


def _share(value: float | None) -> str | None:
    return None if value is None else percent(value)


def compute_facts(diagnosis: Diagnosis) -> Facts:
    """Return how well the device is used while it is busy."""
    c = diagnosis.compute
    if c is None:
        return ()
    peak = None
    if c.peak_tflops is not None:
        peak = f"{c.peak_tflops:.0f} TFLOP/s {clean(c.peak_dtype)}, {clean(c.peak_source)}"
    return _facts(
        ("Utilisation (MFU)", _share(c.utilisation)),
        ("Achieved over the step", _known(c.achieved_tflops, "{:.3g} TFLOP/s")),
        ("Achieved while in math", _known(c.math_tflops, "{:.3g} TFLOP/s")),
        ("Peak", peak),
        ("FLOPs per step", _known(c.tflop_per_step, "{:.3g} TFLOP") or sentence(c.flops_from)),
        ("Math of the step", _share(c.math_share)),
        ("On tensor cores", _share(c.tensor_core_share)),
        ("Memory-bound kernels", _share(c.memory_bound_share)),
        ("Fusing could take away", _known(c.fusable_ms, "{:.3g} ms")),
        ("Padding computed for nothing", _share(c.padding_share)),
        ("Attention", clean(", ".join((c.attention, *c.attention_backends)))),
        ("Optimizer", _known(c.optimizer_launches, "{:.4g} launches per step")),
    )


def loader_rows(diagnosis: Diagnosis) -> tuple[LoaderCells, ...]:
    """Return the loaders."""
    root = root_of(diagnosis)
    return tuple(
        LoaderCells(
            title=" ".join(filter(None, [clean(row.cls), f"({row.role})" if row.role != "unknown" else ""])),
            where=_place(row.site, root),
            facts=_loader(row),
        )
        for row in diagnosis.loaders
    )


def _loader(row: LoaderRow) -> Facts:
    where = {"workers": "in a worker", "main": "in the training process"}.get(row.produced_in, "")
    return _facts(
        (
            "Waiting per fetch",
            f"{milliseconds(row.wait_ms)} ms" if row.wait_ms is not None else "not measured",
        ),
        (
            "Producing a batch",
            f"{milliseconds(row.production_ms)} ms {where}".strip()
            if row.production_ms is not None
            else "not measured",
        ),
        ("Workers", str(row.num_workers)),
        ("Batch size", str(row.batch_size) if row.batch_size is not None else None),
        ("Batch", f"{clean(row.batch)}{f', {size(row.batch_bytes)}' if row.batch_bytes else ''}"),
        ("Pinned memory", "yes" if row.pin_memory else "no"),
        ("Persistent workers", "yes" if row.persistent_workers else "no"),
        ("Prefetch", str(row.prefetch_factor) if row.prefetch_factor is not None else None),
        ("Start method", clean(row.start_method or "") or None),
        ("First batch after", f"{milliseconds(row.startup_ms)} ms" if row.startup_ms is not None else None),
        ("Dataset", clean(row.dataset)),
    )


def rank_rows(diagnosis: Diagnosis) -> tuple[RankCells, ...]:
    """Return the ranks, none for a run of one."""
    if len(diagnosis.ranks) < 2:
        return ()
    return tuple(
        RankCells(
            rank=row.rank,
            step=milliseconds(row.step_ms),
            busy=percent(row.busy_share),
            waits=milliseconds(row.waits_for_others_ms),
            path=clean(row.path),
        )
        for row in diagnosis.ranks
    )
