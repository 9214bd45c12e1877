"""Details of compute-bound steps: data types, achieved FLOP/s against the peak, padding, optimizer.

In: facts of one rank. Out: `ComputeFacts`, None without a trace to read them from.
"""

from __future__ import annotations

import msgspec

from ...model.run import Run
from ...model.words import percent
from ...model.work import ComputeFacts, MathRow
from ...timeline.gpu.peaks import Peak, peak_of
from ..base import Facts

_COUNTS = 0.05
"""Share of the math from which a data type counts for the peak."""
_COVERED = 0.9
"""Share of the math that the FLOP count must cover to compute a rate from it."""


def compute_facts(facts: Facts) -> ComputeFacts | None:
    """Join the math in the trace with the count of FLOPs and the device's peak."""
    known = facts.timeline.compute
    if known is None:
        return None
    peak = peak_of(str(facts.context.get("device.name") or "")) if facts.timeline.kind == "gpu" else None
    rows = tuple(
        msgspec.structs.replace(row, peak_tflops=peak.of(row.dtype) if peak else None) for row in known.math
    )
    known = msgspec.structs.replace(
        known,
        math=rows,
        padding_share=facts.number("batch.padding_share"),
        bandwidth_gbps=peak.bandwidth_gbps if peak else None,
    )
    if rows:
        known = _with_peak(known, rows, peak, facts.run)
    return _with_flops(known, facts)


def _with_peak(
    known: ComputeFacts, rows: tuple[MathRow, ...], peak: Peak | None, run: Run | None
) -> ComputeFacts:
    """Set the peak of the data type that the math ran in: published, otherwise measured.

    For several types it is what the device could have done in the time that each of them took.
    """
    main = [row for row in rows if row.share >= _COUNTS]
    names = [dtype_text(row.dtype) for row in main]
    shares = (f"{name} {percent(row.share)}" for name, row in zip(names, main, strict=True))
    dtype = ", ".join(shares) if len(main) > 1 else names[0]
    weight = sum(row.share for row in main)
    probed = run.matmul_tflops if run is not None else {}
    tables = (
        (
            peak.of if peak is not None else lambda _: None,
            peak.source_of(r.dtype for r in main) if peak else "",
        ),
        (lambda d: probed.get("fp16" if d == "half" else d), "large products timed on this device"),
    )
    for rate_of, source in tables:
        rates = [rate_of(row.dtype) for row in main]
        able = [rate for rate in rates if rate]
        if len(able) == len(main):
            mean = sum(rate * row.share for rate, row in zip(able, main, strict=True)) / weight
            return msgspec.structs.replace(known, peak_tflops=mean, peak_dtype=dtype, peak_source=source)
    return msgspec.structs.replace(known, peak_dtype=dtype, peak_source="no peak is known for this device")


def dtype_text(dtype: str) -> str:
    """Name a data type; kernels of fused attention do not show which 16-bit type they use."""
    return "16-bit" if dtype == "half" else dtype


def _with_flops(known: ComputeFacts, facts: Facts) -> ComputeFacts:
    run, count = facts.run, facts.flops
    if count is None:
        artefact = run.artefacts.get("flops") if run is not None else None
        why = f"not counted: {artefact.reason}" if artefact is not None and artefact.reason else ""
        return msgspec.structs.replace(known, flops_from=why or known.flops_from or "not counted: no shapes")
    source = "flop-counter step" if run is not None else "shapes in the trace"
    tflop = count.flops / 1e12
    if tflop <= 0:
        why = f"{source}: no product was called (CUDA graphs and the compiler's own kernels are not counted)"
        return msgspec.structs.replace(known, flops_from=why)
    known = msgspec.structs.replace(known, tflop_per_step=tflop, flops_from=source)
    if facts.true_ms <= 0:
        return known
    if run is not None and facts.is_on("step.varying_shapes"):
        return msgspec.structs.replace(
            known, flops_from=f"{source}, for one size among several, so no rate is computed"
        )
    if known.flops_cover is not None and known.flops_cover < _COVERED:
        return msgspec.structs.replace(
            known,
            flops_from=f"{source}; kernels of the compiler's own or of CUDA graphs were not counted",
        )
    achieved = tflop / facts.true_ms * 1e3
    math_ms = (known.math_share or 0.0) * facts.true_ms
    return msgspec.structs.replace(
        known,
        achieved_tflops=achieved,
        math_tflops=tflop / math_ms * 1e3 if math_ms > 0 else None,
        utilisation=achieved / known.peak_tflops if known.peak_tflops else None,
    )
