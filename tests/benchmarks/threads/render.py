"""Writes reports/threads.md.

In: scores. Out: Markdown: the totals, a row per thread, each miss with its explanation, what was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from explained import EXPLAINED
from score import LEAST_GAIN, NEAR_LINES, NEAR_PRICE, Score
from truth import Thread


def render(scores: list[Score], threads: Sequence[Thread], *, machine: str) -> str:
    """Return the report on `threads`, of which those without a score were not run."""
    truth = {thread.id: thread for thread in threads}
    counted = [s for s in scores if s.shown and s.said]
    named, traps = [s for s in counted if not s.trap], [s for s in counted if s.trap]
    errors = [abs(s.price_error) for s in named if s.price_error is not None]
    lines = [
        "# Real threads: was their cause named?",
        "",
        f"{machine}. Written by `python tests/benchmarks/threads/run.py`.",
        "Scripts written after public issue threads whose cause was confirmed there",
        "(`tests/benchmarks/threads/`, sources below). Slow and fixed: the script alone, medians of runs in",
        "turns, taken before the diagnosis. Line: of the first cause or the first two suggestions, within",
        f"{NEAR_LINES} lines. Fix: the thread's own is the first or second suggestion. Price: the step with",
        f"the fix as a share of the step, predicted against measured, within {NEAR_PRICE:.0%}.",
        "",
        f"**Verdict {_of(named, 'verdict')}, line {_of(named, 'line')}, fix {_of(named, 'fix')}, "
        f"price {_of(named, 'price')}"
        + (f" (median error {median(errors):.0%} of {len(errors)})" if errors else "")
        + f"; traps avoided {_of(traps, 'verdict')}.**",
        "",
        "| id | slow ms | fixed ms | gain | verdict | | line | fix | price | first suggestions |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(_row, named),
        "",
        "## Traps",
        "",
        "What everyone suspects there was measured not to be the cause.",
        "",
        "| id | slow ms | fixed ms | gain | verdict | avoided | first suggestions |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for s in traps:
        lines.append(
            f"| {s.id} | {s.slow_ms:.1f} | {s.fixed_ms:.1f} | {s.gain:.2f} | {s.said} | {_mark(s.verdict)} "
            f"| {'; '.join(s.fixes)} |"
        )
    lines += [
        "",
        "## Misses",
        "",
        "| id | what | said | truth | explanation |",
        "| --- | --- | --- | --- | --- |",
    ]
    missed = [s for s in counted if s.missed]
    lines += [
        f"| {s.id} | {', '.join(s.missed)} | {s.why or s.headline} | {_truth(truth[s.id])} "
        f"| {EXPLAINED.get(s.id, 'not looked at yet')} |"
        for s in missed
    ]
    left = [
        f"- {s.id}: {s.slow_ms:.1f} to {s.fixed_ms:.1f} ms ({s.gain:.2f})"
        for s in scores
        if not s.shown and not s.why
    ]
    failed = [f"- {s.id}: {s.why}" for s in scores if not s.said and s.why]
    if left:
        lines += [
            "",
            "## Not counted",
            "",
            f"Threads gain less than {LEAST_GAIN - 1:.0%} here, traps more:",
            *left,
        ]
    if failed:
        lines += ["", "## Failed", "", *failed]
    others = sorted(set(truth) - {s.id for s in scores})
    if others:
        lines += ["", f"Not run on this machine: {', '.join(others)}."]
    lines += [
        "",
        "## Sources",
        "",
        *(f"- {s.id}: {truth[s.id].source} (`{truth[s.id].script}`)" for s in scores),
    ]
    return "\n".join(lines) + "\n"


def _row(s: Score) -> str:
    price = "-" if s.price is None else "none" if s.price_error is None else f"{s.price_error:+.0%}"
    price += " NO" if s.price is False else ""
    return (
        f"| {s.id} | {s.slow_ms:.1f} | {s.fixed_ms:.1f} | {s.gain:.2f} | {s.said} | {_mark(s.verdict)} "
        f"| {_mark(s.line)} | {_mark(s.fix)} | {price} | {'; '.join(s.fixes)} |"
    )


def _mark(right: bool | None) -> str:
    return "-" if right is None else "yes" if right else "NO"


def _of(scores: list[Score], name: str) -> str:
    judged = [getattr(s, name) for s in scores if getattr(s, name) is not None]
    return f"{sum(judged)} of {len(judged)}"


def _truth(thread: Thread) -> str:
    if thread.trap:
        return f"not {', '.join((*thread.not_verdicts, *thread.not_fixes))}"
    places = ", ".join(f"{file}:{line}" for file, line in thread.places())
    return f"{' or '.join(thread.verdicts)}; {' or '.join(thread.fixes) or 'no entry'}; {places}"
