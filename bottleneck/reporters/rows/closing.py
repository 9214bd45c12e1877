"""The end of a report: what was on, how far the capture can be trusted, and what it cost.

In: a diagnosis. Out: short, clean strings.
"""

from __future__ import annotations

import re

from ...model.diagnosis import Capture, Diagnosis
from ...model.words import clean, percent

_OVERHEAD_TEXTS: dict[str, str] = {
    "hook_us_per_step": "hooks {} µs per step",
    "total_seconds": "capture added {:.1f} s to the run",
    "after_trace_ratio": "step after the trace {:.2f}× the one before",
}
_REPLAY_WORTH_A_WORD = 0.02
_SHORT_VALUE = 24


def setting_names(diagnosis: Diagnosis, *, short: bool = False) -> list[tuple[str, list[str]]]:
    """Return the acceleration state as (state, [name, name (value)]), on first, unknown last.

    With `short`, values longer than a few words are cut to their first part, or left out.
    """
    lines = []
    for state in ("on", "partly", "off", "unknown"):
        names = []
        for row in diagnosis.acceleration:
            if row.state == state:
                value = clean(row.value)
                if short:
                    value = _short_value(value, clean(row.name))
                plain = not value or value.lower() in {"on", "off", "true", "false", "unknown", "none"}
                names.append(clean(row.name) if plain else f"{clean(row.name)} ({value})")
        if names:
            lines.append((state, names))
    return lines


def _short_value(value: str, name: str) -> str:
    words = name.lower().split()
    told = " ".join(word for word in value.split() if word.lower() not in words)
    if len(told) > _SHORT_VALUE:
        told = re.split("[,;] ", told, maxsplit=1)[0]
    return told if len(told) <= _SHORT_VALUE else ""


def settings_lines(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return the acceleration state as (state, "a, b, c"), on first, unknown last."""
    return [(state, ", ".join(names)) for state, names in setting_names(diagnosis)]


def capture_line(diagnosis: Diagnosis, *, short: bool = False) -> str:
    """Describe the capture's quality and cost; with `short`, only what matters for trusting it."""
    capture = diagnosis.capture
    if short:
        return _short_capture_line(capture)
    parts = [f"quality {capture.quality}"]
    if capture.replay_error is not None:
        parts.append(f"replay off by {percent(capture.replay_error)}")
    if capture.inflation is not None:
        parts.append(f"profiled step {capture.inflation:.2f}× the true one, corrected")
    if capture.missing_kernels:
        parts.append(f"{capture.missing_kernels} launches without a recorded kernel")
    for key, text in _OVERHEAD_TEXTS.items():
        if key in capture.overhead:
            value = capture.overhead[key]
            parts.append(text.format(_micros(value) if key == "hook_us_per_step" else value))
    if capture.trials_s is not None:
        parts.append(f"fixes tried for {capture.trials_s:.0f} s")
    return "; ".join(parts)


def _short_capture_line(capture: Capture) -> str:
    parts = [str(capture.quality)]
    if capture.replay_error is not None and capture.replay_error >= _REPLAY_WORTH_A_WORD:
        parts.append(f"replay off by {percent(capture.replay_error)}")
    if capture.inflation is not None:
        parts.append(f"profiling {capture.inflation:.2f}×, corrected")
    if "hook_us_per_step" in capture.overhead:
        parts.append(f"hooks {_micros(capture.overhead['hook_us_per_step'])} µs per step")
    if "total_seconds" in capture.overhead:
        parts.append(f"added {capture.overhead['total_seconds']:.1f} s")
    return "; ".join(parts)


def _micros(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
