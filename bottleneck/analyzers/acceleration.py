"""The acceleration state: which switches were on, from settings and from what really ran.

In: context and settings. Out: rows for the report. What ran outranks what was asked for: a flag
says what may happen, kernels say what did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..model.diagnosis import SettingRow
from ..model.run import JsonValue

__all__ = ["acceleration_rows"]

State = Literal["on", "off", "partly", "not applicable", "unknown"]


def _row(name: str, state: State, value: str = "", seen_by: str = "") -> SettingRow:
    return SettingRow(name=name, state=state, value=value, seen_by=seen_by)


def _number(context: Mapping[str, JsonValue], key: str) -> float | None:
    value = context.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _autocast(context: Mapping[str, JsonValue]) -> SettingRow:
    dtype = context.get("autocast.dtype")
    low = _number(context, "kernels.bf16_share")
    if isinstance(dtype, str) and dtype != "none":
        ran = "" if low is None else f", {low:.0%} of the step in such kernels"
        return _row("mixed precision", "on", dtype + ran, "autocast in forwards")
    if low is not None and low > 0.05:
        return _row("mixed precision", "on", f"{low:.0%} of the step in 16-bit kernels", "kernels")
    if dtype == "none":
        return _row("mixed precision", "off", "no autocast seen", "autocast in forwards")
    return _row("mixed precision", "unknown")


def _tf32(context: Mapping[str, JsonValue], *, gpu: bool) -> SettingRow:
    if not gpu:
        return _row("TF32", "not applicable", "", "no GPU")
    capability = _number(context, "device.capability")
    if capability is not None and capability < 8.0:
        return _row("TF32", "not applicable", f"compute capability {capability}", "device")
    precision = context.get("matmul.precision")
    fp32 = _number(context, "kernels.matmul_fp32_share")
    if fp32 is not None and fp32 > 0.02:
        return _row("TF32", "off", f"{fp32:.0%} of the step in fp32 products", "kernels")
    if precision in ("high", "medium"):
        return _row("TF32", "on", f"matmul precision {precision}", "settings")
    if precision == "highest":
        return _row("TF32", "off", "matmul precision highest", "settings")
    return _row("TF32", "unknown")


def _attention(context: Mapping[str, JsonValue]) -> SettingRow:
    unfused = _number(context, "kernels.attention_unfused_share")
    if unfused is None:
        return _row("fused attention", "unknown")
    if unfused > 0.005:
        return _row("fused attention", "off", f"{unfused:.0%} of the step writes scores", "trace")
    return _row("fused attention", "not applicable", "no unfused attention seen", "trace")


def _compiled(context: Mapping[str, JsonValue]) -> SettingRow:
    used = context.get("compile.used")
    if used is not True:
        return _row("torch.compile", "off" if used is False else "unknown", "", "dynamo")
    breaks = _number(context, "compile.breaks") or 0.0
    mode = context.get("compile.mode")
    text = f"mode {mode}" if isinstance(mode, str) else ""
    if breaks:
        text = f"{text + ', ' if text else ''}{breaks:.0f} graph breaks"
    return _row("torch.compile", "partly" if breaks else "on", text, "dynamo")


def _optimizer(context: Mapping[str, JsonValue]) -> SettingRow:
    flavour = context.get("optimizer.flavour")
    name = context.get("optimizer.cls")
    value = " ".join(str(part) for part in (name, flavour) if part)
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
    return rows


def _flag(context: Mapping[str, JsonValue], key: str, name: str, seen_by: str) -> SettingRow:
    value = context.get(key)
    if not isinstance(value, bool):
        return _row(name, "unknown")
    return _row(name, "on" if value else "off", "", seen_by)


def acceleration_rows(
    context: Mapping[str, JsonValue], settings: Mapping[str, JsonValue]
) -> tuple[SettingRow, ...]:
    """Return one row per switch that matters on this device.

    Args:
        context: of the diagnosed rank.
        settings: settings in force, for the switches that no fix depends on.
    """
    gpu = context.get("device.kind") in ("cuda", "rocm")
    rows = [
        _autocast(context),
        _tf32(context, gpu=gpu),
        _compiled(context),
        _attention(context),
        _optimizer(context),
        *_loader(context),
        _flag(context, "zero_grad.set_to_none", "gradients set to None", "zero_grad calls"),
    ]
    if gpu:
        rows.append(_flag(context, "loader.pin_memory", "pinned batches", "constructor"))
        if (_number(context, "kernels.conv_share") or 0.0) > 0.02:
            rows.append(_flag(context, "cudnn.benchmark", "cudnn.benchmark", "settings"))
            layout = context.get("memory_format")
            if isinstance(layout, str):
                state: State = "on" if layout == "channels_last" else "off"
                rows.append(_row("channels last", state, layout, "parameters"))
        rows.append(_flag(context, "allocator.expandable_segments", "expandable segments", "settings"))
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
