"""report.md: the same report for a ticket, a pull request or a TensorBoard text panel.

In: a diagnosis. Out: GitHub-flavoured Markdown in which nothing from a script or a trace can act as
markup.
"""

from __future__ import annotations

import re
from dataclasses import astuple

from ..model.diagnosis import Diagnosis
from ..model.words import milliseconds, percent
from .markdown_text import escape, table, tried_table
from .rows import details
from .rows.closing import capture_line, settings_lines
from .rows.code import code_rows
from .rows.diagnosis import NEGLIGIBLE, bar_cells, budget_rows, cause_rows, device_line, headline, step_line
from .rows.fixes import FixRow, combination_line, fix_rows, useless_rows
from .rows.fleet import (
    account_rows,
    bubble_line,
    bucket_lines,
    clock_line,
    late_lines,
    link_lines,
    own_report,
    path_line,
    together_lines,
    traffic_rows,
    unread_lines,
    worth_a_look,
)
from .rows.groups import group_lines
from .rows.memory import memory_rows

_BAR_WIDTH = 30
_RANKS, _MOST_RANKS = 8, 256


def render(diagnosis: Diagnosis, *, verbose: bool = False) -> str:
    """Return the report as Markdown; `verbose` adds all findings, what-ifs, kernels and settings."""
    lines = _head(diagnosis)
    lines += _budget(diagnosis, whole=verbose)
    lines += _causes(diagnosis)
    lines += _ranks(diagnosis, whole=verbose)
    lines += _code(diagnosis)
    lines += _memory(diagnosis, whole=verbose)
    lines += _fixes(diagnosis)
    lines += _tried(diagnosis)
    lines += _closing(diagnosis)
    if verbose:
        for title, rows in details.sections(diagnosis):
            lines += ["", f"## {title}", ""]
            lines += [f"{'  ' * indent}- {escape(text)}" for indent, text in rows]
    return "\n".join(lines) + "\n"


def _head(diagnosis: Diagnosis) -> list[str]:
    verdict = diagnosis.verdict
    undetermined = verdict.bottleneck_class.value == "undetermined"
    classes = " / ".join(c.value for c in (verdict.bottleneck_class, *verdict.also))
    confidence = "" if undetermined else f" (confidence {verdict.confidence})"
    lines = [f"# {escape(diagnosis.title) or 'Diagnosis'}: {classes}{confidence}", ""]
    lines.append(f"**{escape(headline(diagnosis))}**")
    reason = "" if undetermined else verdict.reason  # the headline is the reason
    for text in (reason, f"To do: {verdict.remedy}" if verdict.remedy else ""):
        if text:
            lines += ["", escape(text)]
    lines += ["", escape(". ".join(filter(None, [step_line(diagnosis), device_line(diagnosis)])))]
    if diagnosis.outcome:
        lines += ["", escape(diagnosis.outcome)]
    return lines


def _budget(diagnosis: Diagnosis, *, whole: bool) -> list[str]:
    rows = budget_rows(diagnosis, whole=whole)
    if not rows:
        return []
    lines = ["", "## Where the step goes", "", "| part | ms | share | |", "|---|---:|---:|---|"]
    cells = bar_cells([row.share for row in rows], _BAR_WIDTH)
    for row, count in zip(rows, cells, strict=True):
        ms = milliseconds(row.ms, like=diagnosis.step.true_ms)
        tail = " ".join(filter(None, ["█" * count, escape(row.detail)]))
        lines.append(f"| {escape(row.label)} | {ms} | {percent(row.share)} | {tail} |")
    return lines


def _causes(diagnosis: Diagnosis) -> list[str]:
    worth, small = cause_rows(diagnosis)
    if not worth and not small:
        return []
    lines = ["", "## What each cause costs", ""]
    if worth:
        lines += [
            "| cause | finding | cost, ms | share | step without it, ms | |",
            "|---|---|---:|---:|---:|---|",
        ]
    for row in worth:
        told = "; ".join(filter(None, [row.means, ", ".join(row.sites[:3]), row.after_previous]))
        least, most = ("≥ ", "≤ ") if row.bound else ("", "")
        without = f"{least}{row.without}" if row.without else ""
        figures = f"{most}{row.cost} | {row.share} | {without}"
        lines.append(f"| {row.name} | {escape(row.code)} | {figures} | {escape(told)} |")
    if small:
        listed = ", ".join(row.brief for row in small)
        lines += ["", f"Below {NEGLIGIBLE} of the step: {escape(listed)}."]
    return lines


def _ranks(diagnosis: Diagnosis, *, whole: bool) -> list[str]:
    late, unread = late_lines(diagnosis), unread_lines(diagnosis)
    if not late and not unread:
        return []
    lines = ["", "## Ranks", ""]
    for who, why, without in late:
        rest = f" ({why}); step without it {without}" if without else ""
        lines.append(f"- {escape(f'{who}{rest}')}")
    told = [
        *group_lines(diagnosis),
        bubble_line(diagnosis),
        path_line(diagnosis),
        clock_line(diagnosis),
        *unread,
    ]
    lines += [f"- {escape(text)}" for text in filter(None, told)]
    links = [f"[rank {row.rank}]({link})" for row in worth_a_look(diagnosis) if (link := own_report(row))]
    lines += [f"- Own reports: {', '.join(links)}"] if links else []
    ranks = table(
        "| rank | step, ms | own work | waits | transfer | bubble | late by | |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
        map(astuple, account_rows(diagnosis, most=_MOST_RANKS if whole else _RANKS)),
    )
    lines += ["", *ranks] if ranks else []
    together = [*together_lines(diagnosis), *bucket_lines(diagnosis)]
    if together:
        lines += ["", "What if, on all ranks together:", "", *(f"- {escape(text)}" for text in together)]
    traffic = table(
        "| collective | ranks | size | per step | transfer of one, ms | GB/s | waiting per step, ms "
        "| of the best bandwidth | of its time latency |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        map(astuple, traffic_rows(diagnosis)[: None if whole else _RANKS]),
    )
    reached = [f"- {escape(text)}" for text in link_lines(diagnosis)]
    return [*lines, "", *traffic, *(["", *reached] if reached else [])] if traffic else lines


def _code(diagnosis: Diagnosis) -> list[str]:
    lines = table(
        "| call | line | what it is | ms | share | step without it |",
        "|---|---|---|---:|---:|---:|",
        (
            (row.name, row.where, row.role, row.ms, row.share, row.without or "not known")
            for row in code_rows(diagnosis)
        ),
    )
    return ["", "## Whose code", "", *lines] if lines else []


def _memory(diagnosis: Diagnosis, *, whole: bool) -> list[str]:
    rows = memory_rows(diagnosis, whole=whole)
    if not rows:
        return []
    return ["", "## Memory", "", *(f"{'  ' * indent}- {escape(text)}" for indent, text in rows)]


def _fixes(diagnosis: Diagnosis) -> list[str]:
    rows, useless = fix_rows(diagnosis), useless_rows(diagnosis)
    lines = ["", "## What to change"] if rows else []
    together = combination_line(diagnosis)
    if together:
        lines += ["", escape(together)]
    for row in rows:
        lines += _fix(row)
    if useless:
        lines += ["", "## Tried here, does not help", ""]
        lines += [f"- {escape(name)}: {escape(figures)}" for name, figures in useless]
    return lines


def _fix(row: FixRow) -> list[str]:
    gain = f": {row.gain}" if row.gain else ""
    lines = ["", f"### {escape(row.fix)} {escape(row.title)}{escape(gain)}"]
    if row.measured:
        lines += ["", f"Measured: {escape(row.measured)}"]
    if row.instead_of:
        lines += ["", f"The same gain as with {escape(row.instead_of)}: one of the two."]
    where = f" At {row.where}." if row.where else ""
    if row.how or where:
        lines += ["", escape(f"{row.how}{where}")]
    if row.code:
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", row.code)), default=0))
        lines += ["", f"{fence}python", row.code, fence]
    told = (
        ("Careful", row.warning),
        ("Not checked", row.unchecked),
        ("Gain from", row.basis),
        ("Record", row.record),
        ("Undo", row.undo),
        ("Verify", row.verify),
        *(("Source", source) for source in row.sources),
    )
    listed = [f"- {name}: {escape(text)}" for name, text in told if text]
    return [*lines, "", *listed] if listed else lines


def _tried(diagnosis: Diagnosis) -> list[str]:
    if not diagnosis.tried:
        return []
    return ["", "## Predicted and measured", "", *tried_table(diagnosis.tried)]


def _closing(diagnosis: Diagnosis) -> list[str]:
    lines: list[str] = []
    settings = settings_lines(diagnosis)
    if settings:
        lines += ["", "## What was on", ""]
        lines += [f"- {state}: {escape(names)}" for state, names in settings]
    lines += ["", "## Capture", "", escape(capture_line(diagnosis))]
    told = [*diagnosis.capture.problems, *diagnosis.notes]
    if told:
        lines += ["", *(f"- {escape(text)}" for text in told)]
    return lines
