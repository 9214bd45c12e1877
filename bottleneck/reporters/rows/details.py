"""What a report shows only when asked for all of it: findings, what-ifs, kernels, settings, artefacts.

In: a diagnosis. Out: titled sections of (indent, text) rows, the same for terminal and Markdown.
"""

from __future__ import annotations

from typing import TypeAlias

from ...model.diagnosis import Diagnosis
from ...model.finding import Finding
from ...model.words import clean, milliseconds, percent, place, shorten
from .diagnosis import answer_lines, root_of
from .job import job_rows

Row: TypeAlias = "tuple[int, str]"
Section: TypeAlias = "tuple[str, list[Row]]"

_KERNELS = 15
_RANKS = 64
_NAME_WIDTH = 60
_TEXT_WIDTH = 200


def sections(diagnosis: Diagnosis) -> list[Section]:
    """Return the sections that have something to say."""
    made = [
        ("Findings, with their evidence", _findings(diagnosis)),
        ("What if", _what_ifs(diagnosis)),
        ("Kernels and operators, per step", _kernels(diagnosis)),
        ("Host time per phase", _phases(diagnosis)),
        ("The rest of the job", _job(diagnosis)),
        ("Ranks", _ranks(diagnosis)),
        ("Settings in force", _settings(diagnosis)),
        ("Artefacts and what the capture cost", _artefacts(diagnosis)),
        ("Machine", _machine(diagnosis)),
    ]
    return [(title, rows) for title, rows in made if rows]


def _findings(diagnosis: Diagnosis) -> list[Row]:
    rows: list[Row] = []
    root = root_of(diagnosis)
    for finding in diagnosis.findings:
        price = _price(finding, diagnosis.step.true_ms)
        rows.append((0, f"{clean(finding.code)} {shorten(clean(finding.title), _TEXT_WIDTH)}{price}"))
        for evidence in finding.evidence:
            source = f" [{clean(evidence.source)}]" if evidence.source else ""
            at = f" at {place(evidence.site, root=root)}" if evidence.site else ""
            rows.append((1, f"{shorten(clean(evidence.text), _TEXT_WIDTH)}{at}{source}"))
        rows += [(1, f"at {place(site, root=root)}") for site in finding.sites]
        if finding.not_this:
            rows.append((1, f"Note: {clean(finding.not_this)}"))
        if finding.ranks and len(diagnosis.ranks) > 1:
            rows.append((1, f"ranks {', '.join(map(str, finding.ranks))}"))
    return rows


def _price(finding: Finding, true_ms: float | None) -> str:
    if finding.note:
        return " (a note)"
    if finding.cost_ms is None:
        return ": not priced"
    text = f": {milliseconds(finding.cost_ms, like=true_ms)} ms"
    if finding.cost_share is not None:
        text += f" ({percent(finding.cost_share)})"
    if finding.interval is not None:
        low, high = finding.interval.low_ms, finding.interval.high_ms
        text += f", 95 %: {milliseconds(low, like=true_ms)} to {milliseconds(high, like=true_ms)} ms"
    if finding.time_ms is not None:
        text += f"; time spent in it {milliseconds(finding.time_ms, like=true_ms)} ms"
    return text


def _what_ifs(diagnosis: Diagnosis) -> list[Row]:
    return [(0, text) for text in answer_lines(diagnosis.what_ifs, like=diagnosis.step.true_ms)]


def _kernels(diagnosis: Diagnosis) -> list[Row]:
    rows: list[Row] = []
    for row in diagnosis.kernels[:_KERNELS]:
        figures = f"{milliseconds(row.ms):>8} ms {percent(row.share):>7} {row.count:>7.4g}×"
        rows.append((0, f"{figures} {shorten(clean(row.name), _NAME_WIDTH)} ({row.part.value})"))
    rest = diagnosis.kernels[_KERNELS:]
    if rest:
        rows.append((0, f"{milliseconds(sum(row.ms for row in rest)):>8} ms in {len(rest)} more"))
    return rows


def _phases(diagnosis: Diagnosis) -> list[Row]:
    phases = sorted(diagnosis.phases_ms.items(), key=lambda item: -item[1])
    return [(0, f"{clean(name)} {milliseconds(ms)} ms") for name, ms in phases]


def _job(diagnosis: Diagnosis) -> list[Row]:
    rows = []
    for row in job_rows(diagnosis):
        more = " at ".join(filter(None, [row.what, row.where]))
        rows.append((0, f"{row.part}: {row.time}, once{f' ({more})' if more else ''}"))
    return rows


def _ranks(diagnosis: Diagnosis) -> list[Row]:
    rows = []
    for rank in diagnosis.ranks[:_RANKS]:
        parts = [f"rank {rank.rank}: step {milliseconds(rank.step_ms)} ms"]
        if rank.busy_share is not None:
            parts.append(f"device busy {percent(rank.busy_share)}")
        if rank.waits_for_others_ms is not None:
            parts.append(f"waits for others {milliseconds(rank.waits_for_others_ms)} ms")
        if rank.late_ms is not None and rank.cause:
            parts.append(f"late by {milliseconds(rank.late_ms)} ms ({rank.cause})")
        if rank.path:
            parts.append(clean(rank.path))
        rows.append((0, ", ".join(parts)))
    if len(diagnosis.ranks) > _RANKS:
        rows.append((0, f"{len(diagnosis.ranks) - _RANKS} more in diagnosis.json"))
    return rows if len(rows) > 1 else []


def _settings(diagnosis: Diagnosis) -> list[Row]:
    rows: list[Row] = []
    for row in diagnosis.acceleration:
        seen = f"[{clean(row.seen_by)}]" if row.seen_by else ""
        rows.append((0, " ".join(filter(None, [f"{clean(row.name)}: {row.state}", clean(row.value), seen]))))
    for name, value in sorted(diagnosis.settings.items()):
        rows.append((0, f"{clean(name)} = {clean(str(value))}"))
    return rows


def _artefacts(diagnosis: Diagnosis) -> list[Row]:
    rows = [
        (0, ": ".join(filter(None, [clean(name), item.status, clean(item.reason or "")])))
        for name, item in diagnosis.capture.artefacts.items()
    ]
    rows += [(0, f"{clean(name)} = {value:.4g}") for name, value in diagnosis.capture.overhead.items()]
    if diagnosis.capture.dispatch_scale is not None:
        rows.append((0, f"dispatch scale {diagnosis.capture.dispatch_scale:.3f}"))
    if diagnosis.capture.launches is not None:
        activities = diagnosis.capture.kernels
        rows.append((0, f"{diagnosis.capture.launches} launches, {activities} device activities"))
    if diagnosis.step.step_signal:
        rows.append((0, f"steps are found by: {clean(diagnosis.step.step_signal)}"))
    return rows


def _machine(diagnosis: Diagnosis) -> list[Row]:
    host = diagnosis.host
    facts = {"os": host.os, "cpu": host.cpu, "python": host.python, "torch": host.torch}
    facts |= {"CUDA": host.cuda or "", "cuDNN": host.cudnn or "", "NCCL": host.nccl or ""}
    rows: list[Row] = [(0, f"{name}: {clean(value)}") for name, value in facts.items() if value]
    if diagnosis.command:
        rows.append((0, f"command: {clean(' '.join(diagnosis.command))}"))
    if diagnosis.created:
        rows.append((0, f"captured {clean(diagnosis.created)} by bottleneck {clean(diagnosis.tool_version)}"))
    return rows
