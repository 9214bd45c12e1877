"""The acceleration state: which switches were on, from settings and from what actually ran.

In: context and settings. Out: rows for the report. What ran counts more than the settings: a flag
says what may happen, kernels show what did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ...model.diagnosis import SettingRow
from ...model.finding import NEGLIGIBLE_SHARE
from ...model.run import JsonValue
from ...model.words import percent
from ...model.work import CompileSummary, ComputeFacts

State = Literal["on", "off", "partly", "not applicable", "unknown"]

_LOW = ("bf16", "fp16", "half", "fp8", "int8")
_NEARLY_ALL = 0.9
_TRACES = 0.02
_GRAPH_MODES = ("reduce-overhead", "max-autotune", "cudagraphs")


def _row(name: str, state: State, value: str = "", seen_by: str = "") -> SettingRow:
    return SettingRow(name=name, state=state, value=value, seen_by=seen_by)


def _number(context: Mapping[str, JsonValue], key: str) -> float | None:
    value = context.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _share(compute: ComputeFacts | None, *dtypes: str) -> float | None:
    """Share of the math's time in some data types; None if no math was seen."""
    if compute is None or not compute.math:
        return None
    return sum(row.share for row in compute.math if row.dtype in dtypes)


def _autocast(context: Mapping[str, JsonValue], compute: ComputeFacts | None) -> SettingRow:
    name, dtype = "mixed precision", context.get("autocast.dtype")
    low = _share(compute, *_LOW)
    asked = isinstance(dtype, str) and dtype != "none"
    if low is not None:
        text = f"{percent(low)} of the math's time in 16 bit or less" if low else "no math in 16 bit or less"
        if asked:
            text = f"{dtype}, {text}"
        state: State = "on" if low >= _NEARLY_ALL else "partly" if low > _TRACES or asked else "off"
        return _row(name, state, text, "kernels")
    if asked:
        return _row(name, "on", str(dtype), "autocast in forwards")
    if dtype == "none":
        return _row(name, "off", "no autocast seen", "autocast in forwards")
    return _row(name, "unknown")


def _tf32(context: Mapping[str, JsonValue], compute: ComputeFacts | None, *, gpu: bool) -> SettingRow:
    if not gpu:
        return _row("TF32", "not applicable", "", "no GPU")
    capability = _number(context, "device.capability")
    if capability is not None and capability < 8.0:
        return _row("TF32", "not applicable", f"compute capability {capability}", "device")
    precision = context.get("matmul.precision")
    asked = f"matmul precision {precision}" if isinstance(precision, str) else ""
    tf32, fp32 = _share(compute, "tf32"), _share(compute, "fp32")
    if tf32 is not None and fp32 is not None:
        if tf32 + fp32 <= _TRACES:
            return _row("TF32", "not applicable", "no math in 32 bit", "kernels")
        text = f"{percent(tf32)} of the math's time in TF32, {percent(fp32)} in full fp32" + (
            asked and f"; {asked}"
        )
        part = tf32 / (tf32 + fp32)
        return _row(
            "TF32", "on" if part >= _NEARLY_ALL else "partly" if part > _TRACES else "off", text, "kernels"
        )
    if precision in ("high", "medium", "highest"):
        return _row("TF32", "off" if precision == "highest" else "on", asked, "settings")
    return _row("TF32", "unknown")


def _attention(context: Mapping[str, JsonValue], compute: ComputeFacts | None) -> SettingRow:
    name = "fused attention"
    unfused = _number(context, "kernels.attention_unfused_share")
    backends = ", ".join(compute.attention_backends) if compute is not None else ""
    if compute is not None and compute.attention != "unknown":
        scores = f"{percent(unfused)} of the step writes scores" if unfused else ""
        seen: dict[str, tuple[State, str]] = {
            "fused": ("on", f"{backends} back end"),
            "both": ("partly", f"{backends} back end; {scores or 'some writes scores'}"),
            "scores in memory": ("off", scores or f"{backends or 'math'} back end writes scores"),
            "none seen": ("not applicable", "no attention seen"),
        }
        state, text = seen[compute.attention]
        return _row(name, state, text, "operators and kernels")
    if unfused is None:
        return _row(name, "unknown")
    if unfused > 0.005:
        return _row(name, "off", f"{percent(unfused)} of the step writes scores", "trace")
    return _row(name, "not applicable", "no unfused attention seen", "trace")


def _compiled(
    context: Mapping[str, JsonValue], compiled: CompileSummary | None, *, gpu: bool
) -> list[SettingRow]:
    name, used = "torch.compile", context.get("compile.used")
    if used is not True:
        unused = context.get("compile.unused")
        told = f"asked for but not in use, {unused}" if unused else ""
        return [_row(name, "off" if used is False else "unknown", told, "dynamo")]
    if context.get("compile.failed"):
        return [_row(name, "off", f"asked for but it fails, {context['compile.failed']}", "dynamo")]
    breaks = _number(context, "compile.breaks") or 0.0
    mode = context.get("compile.mode")
    parts = [f"mode {mode}"] if isinstance(mode, str) else []
    share = compiled.compiled_time_share if compiled is not None else None
    kernels = compiled.compiled_kernel_share if compiled is not None else None
    if share is not None:
        parts.append(f"{percent(share)} of forward's and backward's work")
    if kernels is not None:
        parts.append(f"{percent(kernels)} of their {'kernels' if gpu else 'operators'}")
    if breaks:
        parts.append(f"{breaks:.0f} graph break{'s' if breaks != 1 else ''}")
    given_up = compiled is not None and bool(compiled.limit_hit)
    if compiled is not None and given_up:
        parts[:0] = ["recompile limit reached", f"{len(compiled.limit_hit)} given up"]
    whole = not breaks and not given_up and (share is None or share >= _NEARLY_ALL)
    rows = [
        _row(name, "on" if whole else "partly", ", ".join(parts), "trace" if share is not None else "dynamo")
    ]
    launches = compiled.graph_launches_per_step if compiled is not None else None
    if launches is not None:
        skips = len(compiled.cudagraph_skips) if compiled is not None else 0
        asked = isinstance(mode, str) and any(word in mode for word in _GRAPH_MODES)
        text = (
            f"{launches:.0f} graph launches per step"
            if launches
            else "asked for"
            if asked
            else "not asked for"
        )
        text += f", {skips} skipped" if skips else ""
        rows.append(
            _row(
                "CUDA graphs", "partly" if launches and skips else "on" if launches else "off", text, "trace"
            )
        )
    return rows


def _optimizer(context: Mapping[str, JsonValue]) -> SettingRow:
    flavour = context.get("optimizer.flavour")
    name = context.get("optimizer.cls")
    value = " ".join(str(part) for part in (name, flavour) if part)
    each = context.get("optimizer.each")
    if isinstance(each, str) and "fused" in each:
        return _row("fused optimizer", "partly", each, "constructor")
    if flavour == "fused":
        return _row("fused optimizer", "on", value, "constructor")
    if context.get("optimizer.can_fuse") is False:
        return _row("fused optimizer", "not applicable", value, "class")
    if flavour in ("foreach", "for-loop"):
        return _row("fused optimizer", "partly" if flavour == "foreach" else "off", value, "constructor")
    return _row("fused optimizer", "unknown", value)


def _loader(context: Mapping[str, JsonValue]) -> list[SettingRow]:
    if context.get("loader.present") is not True:
        state: State = "not applicable" if context.get("loader.present") is False else "unknown"
        return [_row("DataLoader workers", state, "no DataLoader" if state != "unknown" else "")]
    workers = _number(context, "loader.num_workers") or 0.0
    rows = [_row("DataLoader workers", "on" if workers else "off", f"{workers:.0f}", "constructor")]
    if workers:
        kept = context.get("loader.persistent_workers") is True
        rows.append(_row("persistent workers", "on" if kept else "off", "", "constructor"))
        queue = _number(context, "loader.prefetch_factor")
        if queue is not None:
            text = f"{queue:.0f} batches per worker"
            rows.append(_row("batches queued ahead", "on" if queue > 1 else "off", text, "constructor"))
    return rows


def _zero_grad(context: Mapping[str, JsonValue]) -> SettingRow:
    name, value = "gradients set to None", context.get("zero_grad.set_to_none")
    fills = _number(context, "kernels.zero_grad_share") or 0.0
    if isinstance(value, bool):
        text = f"fills take {percent(fills)} of the step" if fills > 0.002 and not value else ""
        return _row(name, "on" if value else "off", text, "zero_grad calls")
    if fills > 0.002 and context.get("device.kind") != "cpu":
        return _row(name, "off", f"fills take {percent(fills)} of the step", "trace")
    return _row(name, "unknown")


def _allocator(context: Mapping[str, JsonValue]) -> list[SettingRow]:
    rows = [_flag(context, "allocator.expandable_segments", "expandable segments", "settings")]
    backend = context.get("allocator.backend")
    if isinstance(backend, str) and backend != "native":
        rows.append(_row("caching allocator", "off", backend, "settings"))
    return rows


def _flag(context: Mapping[str, JsonValue], key: str, name: str, seen_by: str) -> SettingRow:
    value = context.get(key)
    if not isinstance(value, bool):
        return _row(name, "unknown")
    return _row(name, "on" if value else "off", "", seen_by)


def acceleration_rows(
    context: Mapping[str, JsonValue],
    settings: Mapping[str, JsonValue],
    *,
    compute: ComputeFacts | None = None,
    compiled: CompileSummary | None = None,
) -> tuple[SettingRow, ...]:
    """Return one row per switch that matters on this device.

    The math that ran (`compute`) counts more than the flags. `settings` serve the switches that no fix
    depends on.
    """
    gpu = context.get("device.kind") in ("cuda", "rocm")
    rows = [
        _autocast(context, compute),
        _tf32(context, compute, gpu=gpu),
        *_compiled(context, compiled, gpu=gpu),
        _attention(context, compute),
        _optimizer(context),
        *_loader(context),
        _zero_grad(context),
    ]
    if gpu:
        if context.get("loader.present") is not False:
            rows.append(_flag(context, "loader.pin_memory", "pinned batches", "constructor"))
        if (_number(context, "kernels.conv_share") or 0.0) > NEGLIGIBLE_SHARE:
            rows.append(_flag(context, "cudnn.benchmark", "cudnn.benchmark", "settings"))
            layout = context.get("memory_format")
            if layout in ("channels_last", "contiguous"):
                state: State = "on" if layout == "channels_last" else "off"
                rows.append(_row("channels last", state, layout, "parameters"))
        rows += _allocator(context)
    else:
        library = context.get("malloc.library")
        if isinstance(library, str):
            better: State = "off" if library == "glibc" else "on"
            rows.append(_row("caching malloc", better, library, "memory map of the process"))
        threads, cores = _number(context, "threads.intra_op"), _number(context, "host.cores")
        if threads and cores:
            value = f"{threads:.0f} on {cores:.0f} cores"
            rows.append(_row("intra-op threads", "on" if threads > 1 else "off", value, "settings"))
    for key, name in (("anomaly_mode", "anomaly mode"), ("deterministic", "deterministic algorithms")):
        if settings.get(key) is True:
            rows.append(_row(name, "on", "slows every step", "settings"))
    return tuple(rows)
