"""What the page shows about compiling and about how well the device is used.

In: a diagnosis. Out: `CompileSection` and pairs of facts, clean text.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...model.diagnosis import Diagnosis
from ...model.words import clean, milliseconds, ms, percent, sentence
from .diagnosis import root_of
from .pairs import Pairs, cut_text, known, known_pairs, place_or, share


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSection:
    """What torch.compile did."""

    facts: Pairs
    breaks: tuple[tuple[str, str, str, str, str, str], ...]
    """Reason, place, crossings per step, cost, share, hint."""
    recompiles: tuple[tuple[str, str, str, str, str], ...]
    """Function, place, times, guard, advice."""
    advised: bool
    lists: tuple[tuple[str, tuple[str, ...]], ...]


def compile_section(diagnosis: Diagnosis) -> CompileSection | None:
    """Return what the compiler did; None if nothing was compiled or recorded."""
    summary = diagnosis.compile
    if summary is None:
        return None
    root, true_ms = root_of(diagnosis), diagnosis.step.true_ms
    seconds = summary.compile_seconds
    pairs = known_pairs(
        ("Mode", clean(summary.mode)),
        ("Graphs", str(summary.graphs) if summary.graphs is not None else None),
        ("Compile time", f"{seconds:.1f} s in all" if seconds is not None else None),
        ("Last compilation", known(summary.last_compile_step, "in step {:.0f}")),
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
        ("Kernels from compiled code", share(summary.compiled_kernel_share)),
        ("Device time in compiled code", share(summary.compiled_time_share)),
        ("Eager between graphs", known(summary.eager_in_seams, "{:.4g} launches per step")),
        ("CUDA graph launches", known(summary.graph_launches_per_step, "{:.3g} per step")),
        ("Compiled", clean(", ".join(summary.modules[:6]))),
    )
    return CompileSection(
        facts=pairs,
        breaks=tuple(
            (
                cut_text(row.reason),
                place_or(row.site, root),
                f"{row.seams_per_step:.3g}" if row.seams_per_step is not None else "not measured",
                milliseconds(row.cost_ms, like=true_ms) + (" (shared evenly)" if row.shared else ""),
                percent(row.share),
                cut_text(row.hint),
            )
            for row in summary.breaks
        ),
        recompiles=tuple(
            (
                cut_text(row.function),
                place_or(row.site, root),
                f"{row.count}, {row.steady} of them in steady state",
                cut_text(row.guard),
                cut_text(row.advice),
            )
            for row in summary.recompiles
        ),
        advised=any(row.advice for row in summary.recompiles),
        lists=tuple(
            (title, tuple(cut_text(text) for text in texts))
            for title, texts in (
                ("CUDA graphs skipped", summary.cudagraph_skip_causes or summary.cudagraph_skips),
                ("Given up: these always run eagerly", summary.limit_hit),
            )
            if texts
        ),
    )


def compute_facts(diagnosis: Diagnosis) -> Pairs:
    """Return how well the device is used while it is busy."""
    c = diagnosis.compute
    if c is None:
        return ()
    peak = None
    if c.peak_tflops is not None:
        peak = f"{c.peak_tflops:.0f} TFLOP/s {clean(c.peak_dtype)}, {clean(c.peak_source)}"
    return known_pairs(
        ("Utilisation (MFU)", share(c.utilisation)),
        ("Achieved over the step", _flop(c.achieved_tflops, "/s")),
        ("Achieved while in math", _flop(c.math_tflops, "/s")),
        ("Peak", peak),
        ("FLOPs per step", _flop(c.tflop_per_step) or sentence(c.flops_from)),
        ("Math of the step", share(c.math_share)),
        ("On tensor cores", share(c.tensor_core_share)),
        ("Memory-bound kernels", share(c.memory_bound_share)),
        ("Fusing could save", None if c.fusable_ms is None else ms(c.fusable_ms)),
        ("Padding, computed but not used", share(c.padding_share)),
        ("Attention", clean(", ".join((c.attention, *c.attention_backends)))),
        ("Optimizer", known(c.optimizer_launches, "{:.4g} launches per step")),
    )


def _flop(tera: float | None, per: str = "") -> str | None:
    """Word an amount of 1e12 operations in the unit that keeps it readable."""
    if tera is None:
        return None
    for factor, unit in ((1.0, "TFLOP"), (1e3, "GFLOP"), (1e6, "MFLOP")):
        if abs(tera) * factor >= 0.1 or unit == "MFLOP":
            break
    return f"{tera * factor:.3g} {unit}{per}"


def math_rows(diagnosis: Diagnosis) -> tuple[tuple[str, str, str, str, str], ...]:
    """Return the math by arithmetic type: type, tensor cores, ms, share of math, peak."""
    compute = diagnosis.compute
    if compute is None:
        return ()
    return tuple(
        (
            clean(row.dtype),
            "yes" if row.tensor_cores else "no",
            milliseconds(row.ms),
            percent(row.share),
            f"{row.peak_tflops:.0f}" if row.peak_tflops is not None else "not known",
        )
        for row in compute.math
    )
