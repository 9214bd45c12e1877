"""SARIF 2.1.0, the format in which code scanning takes findings: at the lines of the user's program.

In: a diagnosis, or a comparison. Out: one run of results with their rules. The schema:
docs.oasis-open.org/sarif/sarif/v2.1.0. Files are relative to the folder that the script was started from.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from .. import __version__
from ..model.codes import entry_of
from ..model.compare import Comparison
from ..model.diagnosis import Diagnosis
from ..model.run import SourceSite
from ..model.words import clean, milliseconds, percent, sentence
from .rows.diagnosis import headline, root_of

_LEVELS = {"error": "error", "warning": "warning", "notice": "note"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    rule: str
    level: str
    text: str
    sites: tuple[SourceSite, ...]


def render(diagnosis: Diagnosis) -> str:
    """Return one result per cause that is worth acting on, at its lines."""
    results: list[_Result] = []
    for cause in diagnosis.causes:
        if cause.negligible or entry_of(cause.code).is_work:
            continue
        first = not results
        is_verdict = cause.code == diagnosis.verdict.code
        told = sentence(cause.headline or cause.bottleneck_class.value)
        price = f"{milliseconds(cause.cost_ms, like=diagnosis.step.true_ms)} ms of each step"
        results.append(
            _Result(
                rule=cause.code,
                level="warning" if first else "note",
                text=headline(diagnosis) if is_verdict else f"{told}: {price} ({percent(cause.share)})",
                sites=cause.sites,
            )
        )
    return _log(results, root=root_of(diagnosis))


def render_comparison(comparison: Comparison) -> str:
    """Return one result per annotation: what became worse, at the line that is to blame."""
    return _log(
        [
            _Result(
                rule=note.key or note.title,
                level=_LEVELS[note.level],
                text=f"{note.title}: {note.message}",
                sites=() if note.site is None else (note.site,),
            )
            for note in comparison.annotations
        ]
    )


def fingerprint(*parts: str) -> str:
    """Return what identifies a complaint from run to run, whatever its numbers are this time."""
    return hashlib.sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()


def _log(results: list[_Result], *, root: str = "") -> str:
    rules = list(dict.fromkeys(clean(result.rule) for result in results))
    driver = {
        "name": "bottleneck",
        "version": __version__,
        "rules": [{"id": rule, "name": clean(entry_of(rule).name) or rule} for rule in rules],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_row(result, rules, root) for result in results]}],
    }
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _row(result: _Result, rules: list[str], root: str) -> dict[str, Any]:
    rule = clean(result.rule)
    places = [(quote(clean(site.file).removeprefix(root)), max(site.line, 1)) for site in result.sites]
    row: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": result.level,
        "message": {"text": clean(result.text)},
        "partialFingerprints": {
            "bottleneck/v1": fingerprint(rule, *(f"{file}:{line}" for file, line in places))
        },
    }
    if places:
        row["locations"] = [
            {"physicalLocation": {"artifactLocation": {"uri": file}, "region": {"startLine": line}}}
            for file, line in places
        ]
    return row
