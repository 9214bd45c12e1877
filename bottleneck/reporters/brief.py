"""The diagnosis in at most 2,000 tokens: for an assistant, or for a line of a log that a program reads.

In: a diagnosis. Out: JSON with stable keys, one per line: verdict, prices, lines, first fixes with their
code, and what to run next. Times are in ms. What does not fit is left out from the end, and named in
`left_out`.
"""

from __future__ import annotations

import json
from typing import Any

from ..model.codes import entry_of
from ..model.diagnosis import Diagnosis
from ..model.words import brief, clean, place, sentence
from .rows.closing import capture_line
from .rows.code import code_rows
from .rows.diagnosis import cause_rows, device_line, headline, is_bound, root_of
from .rows.fixes import fix_rows, useless_rows
from .rows.job import job_line

MOST_CHARACTERS = 6000
"""Code and JSON take a token for three to four characters."""
_LONGEST = 300
_MOST_LINES = 40
"""Of a fix's code."""
_FIXES = 4


def render(diagnosis: Diagnosis) -> str:
    """Return the brief."""
    return within_limit(_told(diagnosis))


def within_limit(told: dict[str, Any]) -> str:
    """Return what is told as JSON in at most `MOST_CHARACTERS`, one key per line."""
    left_out: dict[str, int] = {}
    while len(text := _text({**told, "left_out": left_out})) > MOST_CHARACTERS:
        # The longest list loses its last entry: the first of each is what counts most.
        name = max(told, key=lambda key: len(json.dumps(told[key])) if isinstance(told[key], list) else 0)
        if not isinstance(told[name], list) or not told[name]:
            break
        told[name].pop()
        left_out[name] = left_out.get(name, 0) + 1
    return text


def _told(diagnosis: Diagnosis) -> dict[str, Any]:
    verdict, step = diagnosis.verdict, diagnosis.step
    root = root_of(diagnosis)
    fixes = [suggestion for suggestion in diagnosis.suggestions if suggestion.helps is not False]
    worth, _ = cause_rows(diagnosis)
    first = verdict.code or next((cause.code for cause in diagnosis.causes), "")
    return {
        "verdict": verdict.bottleneck_class.value,
        "also": [each.value for each in verdict.also],
        "confidence": verdict.confidence,
        "headline": brief(headline(diagnosis), _LONGEST),
        "why": brief(sentence(verdict.reason), _LONGEST),
        "remedy": brief(sentence(verdict.remedy), _LONGEST),
        "script": brief(clean(diagnosis.title), _LONGEST),
        "device": clean(device_line(diagnosis)),
        "step_ms": number(step.true_ms),
        "step_interval_ms": [number(edge) for edge in step.true_ci_ms or ()],
        "causes": [
            {
                "class": cause.bottleneck_class.value,
                "finding": clean(cause.code),
                "costs_ms": number(cause.cost_ms),
                "is_bound": is_bound(diagnosis, cause),
                "step_without_ms": None if entry_of(cause.code).is_work else number(cause.predicted_ms),
                "says": brief(row.means, _LONGEST),
                "at": [place(site, root=root, width=_LONGEST) for site in cause.sites[:3]],
            }
            for cause, row in zip((c for c in diagnosis.causes if not c.negligible), worth, strict=True)
        ],
        "code": [
            {"call": row.name, "is": row.role, "at": row.where, "ms": row.ms, "step_without": row.without}
            for row in code_rows(diagnosis)
        ],
        "fixes": [
            {
                "fix": row.fix,
                "title": brief(row.title, _LONGEST),
                "predicted_ms": number(fix.predicted_ms),
                "is_bound": fix.bound,
                "same_gain_as": row.instead_of,
                "measured": row.measured,
                "at": row.where,
                "how": brief(row.how, _LONGEST),
                "code": "\n".join(row.code.splitlines()[:_MOST_LINES]),
                "risk": row.risk,
                "warning": brief(row.warning, _LONGEST),
                "worked_if": row.verify,
            }
            for fix, row in zip(fixes[:_FIXES], fix_rows(diagnosis)[:_FIXES], strict=True)
        ],
        "does_not_help": [f"{name}: {why}" for name, why in useless_rows(diagnosis)],
        "rest_of_the_job": job_line(diagnosis),
        "capture": brief(capture_line(diagnosis), _LONGEST),
        "next": [
            *(["bottleneck verify RUN"] if any(fix.can_try for fix in fixes) else []),
            *([f"bottleneck explain {clean(first)}"] if first else []),
        ],
    }


def number(value: float | None) -> float | None:
    """Return a figure with as many digits as mean anything."""
    return None if value is None else float(f"{value:.4g}")


def _text(told: dict[str, Any]) -> str:
    kept = {key: value for key, value in told.items() if value not in ("", [], {}, None)}
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in kept.items())
    return "{" + ",\n".join(lines) + "}\n"
